"""The simulated world: clients that train here, some of which may be malicious, behind the engine's exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from equipoise.at import Schedule, Stop
from equipoise.core import Method, State
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.batches import plan_batches
from equipoise.engine.clients import Done, Executor, Work
from equipoise.engine.exchange import Plan, Replies
from equipoise.engine.net import Net
from equipoise.engine.participation import Participants
from equipoise.engine.settings import Train
from equipoise.engine.store import ClientStore
from equipoise.engine.view import Disturb, World
from equipoise.streams import Stream
from equipoise.threat import Attack, Claims, Forgery, Samples


class Simulator:
    """Carries rounds out in this process; implements `Exchange`."""

    def __init__(
        self,
        method: Method,
        net: Net,
        federation: Federation,
        train: Train,
        participants: Participants,
        attack: Attack | None,
        stream: Stream,
        device: torch.device,
        vectorised: bool,
        workers: int,
    ) -> None:
        self.rule, self.participants, self.attack, self.stream = method.client, participants, attack, stream
        self.lr, self.schedule = train.lr, Schedule(train.epochs, train.steps, train.batch or None)
        self.malicious = torch.zeros(federation.n_clients, dtype=torch.bool)
        if attack is not None:
            self.malicious[attack.malicious(federation.n_clients, stream.child("attack", "who"))] = True
            federation = poisoned(federation, attack, self.malicious, stream.child("attack", "poison"))
        self.federation, self.host = federation.to(device), federation.splits["train"]
        self.net, self.vectorised, self.workers = net, vectorised, workers
        self.store, self.w0 = ClientStore(federation.n_clients), net.initial()
        self._last: tuple[Tensor, Done] | None = None
        self.aggregate: Callable[[Plan, Replies], Tensor] | None = None
        """What the server would do with these replies; set by the run, for attacks that look ahead."""

    def executor(self, disturb: Disturb | None = None) -> Executor:
        return Executor(World(self.net, self.federation, self.host, self.vectorised, disturb), self.workers)

    def __call__(self, plan: Plan) -> Replies:
        ids = self.participants.answering(plan.round, plan.ids.cpu()).to(plan.w.device)
        if len(ids) == 0:
            return Replies(ids, plan.w.new_zeros((0, len(plan.w))), ids)
        keep = torch.isin(plan.ids, ids)
        messages = {n: t[keep] for n, t in plan.messages.items()}
        done = self.train(plan, ids, messages)
        self.store.put(ids, done.state)
        self._last = ids, done
        sizes = self.host.size[ids.cpu()].to(plan.w.device)
        return self._attacked(plan, Replies(ids, done.updates, sizes, done.losses, done.signals))

    def train(self, plan: Plan, ids: Tensor, messages: State) -> Done:
        stream = self.stream.child("batch", plan.round)
        schedule = self.rule.schedule(self.schedule, plan.round, self.stream.child("schedule", plan.round))
        batches = plan_batches(self.host, ids.cpu(), schedule, stream, self.rule.batches)
        received = plan.w.expand(len(ids), -1)
        work = Work(
            ids, received, batches, messages, plan.lr, plan.round, stream.child("model"), "losses" in plan.needs
        )
        executor = self.executor(self._disturb(plan.round))
        return executor.run(self.rule, work, self.states(ids), self._alone)

    def states(self, ids: Tensor) -> State:
        """The lasting state of these clients; those seen for the first time are prepared."""
        new = ids[~self.store.known(ids).to(ids.device)]
        if len(new):
            rows = self.w0.expand(len(new), -1)
            self.store.put(new, self.executor().prepare(self.rule, new, rows, self.lr, self.stream, self._alone))
        return self.store.get(ids)

    def personal(self, ids: Tensor, w: Tensor) -> Tensor:
        """The models that these clients use; clients never drawn have the state they started with, unsaved."""
        rows, known = w.expand(len(ids), -1), self.store.known(ids).to(ids.device)
        fresh = self.rule.init(self.w0.expand(int((~known).sum()), -1))
        state = {n: t.new_zeros((len(ids), *t.shape[1:])) for n, t in fresh.items()}
        for name, t in self.store.get(ids[known]).items():
            state[name][known] = t
        for name, t in fresh.items():
            state[name][~known] = t
        return self.rule.personal(rows, state)

    def _alone(self, ids: Tensor, stop: Stop) -> Tensor:
        return self.executor().fit_alone(ids, self.w0, self.schedule, self.lr, stop, self.stream.child("alone"))

    def probe(self, plan: Plan, ids: Tensor, models: Tensor) -> Tensor:
        executor = self.executor()
        return torch.stack([executor.risk(ids, m.expand(len(ids), -1)) for m in models])

    def deliver(self, plan: Plan, ids: Tensor, downloads: Tensor) -> None:
        assert self._last is not None
        trained, done = self._last
        at = torch.searchsorted(trained, ids)
        state = {n: t[at] for n, t in done.state.items()}
        self.store.put(ids, self.rule.receive(done.end[at], state, downloads))

    # ------------------------------------------------------------------------------------------------------- the attack

    def _disturb(self, round: int) -> Disturb | None:
        attack = self.attack
        if attack is None or type(attack).outliers is Attack.outliers:
            return None
        stream, malicious = self.stream.child("attack", "outliers", round), self.malicious
        classes = self.federation.data.classes

        def disturb(x: Tensor, y: Tensor, ids: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            bad = torch.nonzero(malicious.to(ids.device)[ids]).flatten()
            if len(bad) == 0:
                return x, y
            flat = index[bad].reshape(-1)
            client = ids[bad].repeat_interleave(index.shape[1])
            seen = Samples(x[bad].flatten(0, 1), y[bad].flatten(0, 1), client, flat, classes)
            out = attack.outliers(seen, stream)
            return (
                x.index_copy(0, bad, out.x.view_as(x[bad])),
                y.index_copy(0, bad, out.y.view_as(y[bad])),
            )

        return disturb

    def _attacked(self, plan: Plan, replies: Replies) -> Replies:
        bad = self.malicious.to(replies.ids.device)[replies.ids]
        if self.attack is None or not bool(bad.any()):
            return replies
        stream = self.stream.child("attack", plan.round)
        claims = Claims(
            replies.sizes[bad],
            None if replies.losses is None else replies.losses[bad],
            {n: s[bad] for n, s in replies.signals.items()},
        )
        told = self.attack.lie(claims, stream.child("lie"))
        replies = replace(
            replies,
            sizes=_put(replies.sizes, bad, told.sizes),
            losses=None if replies.losses is None else _put(replies.losses, bad, told.losses),
            signals={n: _put(s, bad, told.signals[n]) for n, s in replies.signals.items()},
        )
        own, honest = replies.updates[bad], replies.updates[~bad]

        def oracle(updates: Tensor) -> Tensor:
            assert self.aggregate is not None
            return self.aggregate(plan, replace(replies, updates=_put(replies.updates, bad, updates)))

        seen = Forgery(replies.ids[bad], own, honest, plan.round, plan.lr, stream.child("corrupt"), oracle)
        return _forged(replies, bad, self.attack.corrupt(seen))


def _put(whole: Tensor, bad: Tensor, part: Tensor | None) -> Tensor:
    assert part is not None
    out = whole.clone()
    out[bad] = part.to(out.dtype)
    return out


def _forged(replies: Replies, bad: Tensor, sent: Any) -> Replies:
    """The replies with the malicious rows replaced; rows of the wrong form are refused like any malformed message."""
    f, d = int(bad.sum()), replies.updates.shape[1]
    reason = "shape" if not isinstance(sent, Tensor) or sent.shape != (f, d) else ""
    reason = reason or ("" if sent.is_floating_point() else "dtype")
    if not reason:
        return replace(replies, updates=_put(replies.updates, bad, sent))
    good = ~bad
    return Replies(
        replies.ids[good],
        replies.updates[good],
        replies.sizes[good],
        None if replies.losses is None else replies.losses[good],
        {n: s[good] for n, s in replies.signals.items()},
        dict.fromkeys(replies.ids[bad].tolist(), reason),
    )


def poisoned(federation: Federation, attack: Attack, malicious: Tensor, stream: Stream) -> Federation:
    """The federation after the attack has changed the training samples of malicious clients.

    Changed samples are appended to the dataset and the malicious clients' numbers point there, so that honest clients
    who share a sample keep the true one. Images are stored with the dataset's own precision.
    """
    split, data = federation.splits["train"], federation.data
    ids = torch.nonzero(malicious).flatten()
    client = torch.repeat_interleave(ids, split.size[ids])
    place = torch.arange(len(client)) - torch.repeat_interleave(
        split.size[ids].cumsum(0) - split.size[ids], split.size[ids]
    )
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
