"""What an attack does to a federation before the first round: clients it adds, and samples it changes; what it does to
batches in every round; and how what malicious clients send takes the place of what they would have sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.data.federation import SPLITS, Dataset, Federation, Split
from equipoise.engine.exchange import Replies
from equipoise.engine.phases import phase
from equipoise.engine.view import Disturb
from equipoise.streams import Stream
from equipoise.threat import Attack, Claims, Samples


def infiltrated(federation: Federation, attack: Attack | None, stream: Stream) -> tuple[Federation, Tensor]:
    """The federation with the attack's own clients and poisoned samples in it, and who is malicious [N + added]."""
    if attack is None:
        return federation, torch.zeros(federation.n_clients, dtype=torch.bool)
    honest = federation.n_clients
    federation = enlarged(federation, attack, stream.child("added"))
    malicious = torch.arange(federation.n_clients) >= honest
    malicious[attack.malicious(honest, stream.child("who"))] = True
    return poisoned(federation, attack, malicious, stream.child("poison")), malicious


def enlarged(federation: Federation, attack: Attack, stream: Stream) -> Federation:
    """The federation with the clients that the attack adds, behind the others.

    Each is modelled on a client drawn at random: for every training sample of that client it holds a random one of the
    same class from the whole federation (for a regression, any one). Honest clients' data stay as they are. Clients of
    an attack that needs no data hold none.
    """
    count, n = attack.added_to(federation.n_clients), federation.n_clients
    if count == 0:
        return federation
    empty = torch.zeros(count, dtype=torch.int64)
    splits = {
        k: Split(s.index, torch.cat([s.start, empty]), torch.cat([s.size, empty])) for k, s in federation.splits.items()
    }
    if attack.holds_data:
        model = stream.child("model").integers(n, torch.arange(count)).tolist()
        train = federation.splits["train"]
        held = [_alike(federation.data, train.of_client(m), train.index, stream.child(j)) for j, m in enumerate(model)]
        own = Split.of(held)
        splits["train"] = Split(
            torch.cat([train.index, own.index]),
            torch.cat([train.start, len(train.index) + own.start]),
            torch.cat([train.size, own.size]),
        )
    return replace(federation, splits=splits)


def _alike(data: Dataset, samples: Tensor, pool: Tensor, stream: Stream) -> Tensor:
    """For every sample, a random one of the same class from the pool."""
    u = stream.uniform(torch.arange(len(samples)))
    if data.y.is_floating_point():
        return pool[(u * len(pool)).long()]
    labels = data.y[pool]
    order = labels.argsort(stable=True)
    count = torch.bincount(labels, minlength=data.classes)
    first = count.cumsum(0) - count
    wanted = data.y[samples]
    return pool[order[first[wanted] + (u * count[wanted]).long()]]


def claimed_sizes(federation: Federation, malicious: Tensor) -> Tensor:
    """[N]: the training sizes that clients report; a malicious client without data says it has the median."""
    sizes = federation.sizes.clone()
    honest = sizes[~malicious]
    if len(honest):
        sizes[malicious & (sizes == 0)] = honest.median()
    return sizes


def targeted(federation: Federation, attack: Attack, malicious: Tensor) -> Federation | None:
    """Honest clients' test data as the attacker wants them to be answered; None if it does not aim."""
    data, test = federation.data, federation.splits["test"]
    size = torch.where(malicious.to(test.size.device), torch.zeros_like(test.size), test.size)
    client, place = _every(size)
    index = test.index[test.start[client] + place]
    wanted = attack.target(Samples(data.inputs(index), data.y[index], client, index, data.classes))
    if wanted is None or len(wanted.y) == 0:
        return None
    own = replace(data, x=_stored(data, wanted.x), y=wanted.y.to(data.y.dtype), attributes={})
    each = torch.bincount(wanted.client, minlength=federation.n_clients)
    split = Split(torch.arange(len(wanted.y), device=each.device), each.cumsum(0) - each, each)
    return replace(federation, data=own, splits=dict.fromkeys(SPLITS, split))


def _every(size: Tensor) -> tuple[Tensor, Tensor]:
    """For sizes [N]: the client and the place within the client of every sample, client after client."""
    client = torch.repeat_interleave(torch.arange(len(size), device=size.device), size)
    return client, torch.arange(len(client), device=size.device) - (size.cumsum(0) - size)[client]


def poisoned(federation: Federation, attack: Attack, malicious: Tensor, stream: Stream) -> Federation:
    """The federation after the attack has changed the training samples of malicious clients.

    Changed samples are appended to the dataset and the malicious clients' numbers point there, so that honest clients
    who share a sample keep the true one. Images are stored with the dataset's own precision.
    """
    split, data = federation.splits["train"], federation.data
    ids = torch.nonzero(malicious).flatten()
    nth, place = _every(split.size[ids])
    client = ids[nth]
    index = split.index[split.start[client] + place]
    before = Samples(data.inputs(index), data.y[index], client, index, data.classes)
    after = attack.poison(before, stream)
    if after is before or len(index) == 0:
        return federation
    # Every malicious client gets a range of its own behind the old ones, which honest clients may share.
    first, start = len(split.index), split.start.clone()
    start[ids] = first + split.size[ids].cumsum(0) - split.size[ids]
    numbers = torch.cat([split.index, torch.arange(len(data), len(data) + len(index))])
    bigger = replace(
        data, x=torch.cat([data.x, _stored(data, after.x)]), y=torch.cat([data.y, after.y.to(data.y.dtype)])
    )
    bigger = replace(bigger, attributes={n: torch.cat([a, a[index]]) for n, a in data.attributes.items()})
    return replace(federation, data=bigger, splits={**federation.splits, "train": Split(numbers, start, split.size)})


def _stored(data: Dataset, x: Tensor) -> Tensor:
    """Inputs as a model sees them, back in the form in which the dataset keeps them."""
    if data.x.dtype == torch.uint8:
        return (x / data.scale).round().clamp(0, 255).to(torch.uint8)
    return x.to(data.x.dtype) if data.scale == 1.0 or data.x.dtype == torch.int64 else (x / data.scale).to(data.x.dtype)


def disturbance(attack: Attack, malicious: Tensor, classes: int, stream: Stream) -> Disturb:
    """What the attack does to the batches of malicious clients in one round."""

    @phase("attack")
    def disturb(x: Tensor, y: Tensor, ids: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        bad = torch.nonzero(malicious.to(ids.device)[ids]).flatten()
        if len(bad) == 0:
            return x, y
        client = ids[bad].repeat_interleave(index.shape[1])
        seen = Samples(x[bad].flatten(0, 1), y[bad].flatten(0, 1), client, index[bad].reshape(-1), classes)
        out = attack.outliers(seen, stream)
        return x.index_copy(0, bad, out.x.view_as(x[bad])), y.index_copy(0, bad, out.y.view_as(y[bad]))

    return disturb


def put(whole: Tensor, bad: Tensor, part: Tensor | None) -> Tensor:
    """A copy with other rows in the place of the malicious ones."""
    assert part is not None
    out = whole.clone()
    out[bad] = part.to(out.dtype)
    return out


def misreported(replies: Replies, bad: Tensor, attack: Attack, stream: Stream) -> Replies:
    """The replies with what malicious clients say about themselves: sizes, losses, signals."""
    losses, signals = replies.losses, replies.signals
    claims = Claims(
        replies.sizes[bad], None if losses is None else losses[bad], {n: s[bad] for n, s in signals.items()}
    )
    told = attack.lie(claims, stream)
    return replace(
        replies,
        sizes=put(replies.sizes, bad, told.sizes),
        losses=None if losses is None else put(losses, bad, told.losses),
        signals={n: put(s, bad, told.signals[n]) for n, s in signals.items()},
    )


def forged(replies: Replies, bad: Tensor, sent: Any) -> Replies:
    """The replies with the malicious rows replaced; rows of the wrong form are refused like any malformed message."""
    f, d = int(bad.sum()), replies.updates.shape[1]
    reason = "shape" if not isinstance(sent, Tensor) or sent.shape != (f, d) else ""
    reason = reason or ("" if sent.is_floating_point() else "dtype")
    if not reason:
        return replace(replies, updates=put(replies.updates, bad, sent))
    good = ~bad
    return Replies(
        replies.ids[good],
        replies.updates[good],
        replies.sizes[good],
        None if replies.losses is None else replies.losses[good],
        {n: s[good] for n, s in replies.signals.items()},
        dict.fromkeys(replies.ids[bad].tolist(), reason),
    )
