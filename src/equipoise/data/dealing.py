"""From shares to samples: the arithmetic under every partition. No Python per sample or per client.

`counts` [N, C] says how many samples of each class c every client u gets: `apportion` rounds shares to such counts,
`top_up` moves some where a client has too few, and `deal` draws the samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.streams import Stream


def apportion(shares: Tensor, totals: Tensor, stream: Stream) -> Tensor:
    """[N, C] whole numbers in proportion to `shares`, less than 1 off, with column sums `totals`.

    The running sum is rounded from a random start in each class: the classes do not all favour the same clients.
    """
    start = stream.uniform(torch.arange(len(totals)))
    running = shares.cumsum(0)
    ends = (running / running[-1] * totals + start).floor().to(torch.int64)
    return ends.diff(dim=0, prepend=torch.zeros_like(ends[:1]))


def _first(amounts: Tensor, total: int) -> Tensor:
    """As much of `amounts`, in order, as makes up `total`."""
    return torch.minimum(amounts, (total - amounts.cumsum(0) + amounts).clamp(min=0))


def _from_largest(sizes: Tensor, spare: Tensor, total: int) -> Tensor:
    """What each client gives, at most `spare`, when `total` samples are taken one by one from whoever is largest."""

    def above(level: int) -> Tensor:
        return torch.minimum(spare, (sizes - level).clamp(min=0))

    low, high = 0, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(above(middle).sum()) >= total else (low, middle - 1)
    given = above(low + 1)
    return given + _first(above(low) - given, total - int(given.sum()))


def top_up(counts: Tensor, allowed: Tensor, least: int, kind: str, stream: Stream) -> Tensor:
    """Give those with fewer than `least` samples some of classes that they may hold, from the largest that have them.

    A client asks for one class after the other, from a random one on; so it ends, and with all classes allowed it
    fails only if there are too few samples for everyone.
    """
    n, (n_clients, classes) = int(counts.sum()), counts.shape
    if least < 0 or n < n_clients * least:
        found = f"{kind}: {n} samples for {n_clients} clients of at least min_size = {least}"
        raise EquipoiseError(found, "fewer clients, or a smaller min_size (0 allows clients without samples)")
    counts, asks = counts.clone(), stream.integers(classes, torch.arange(n_clients))
    for turn in range(classes):
        if not (counts.sum(1) < least).any():
            break
        wanted = (asks + turn) % classes
        for c in range(classes):
            sizes = counts.sum(1)
            need = (least - sizes).clamp(min=0) * ((wanted == c) & allowed[:, c])
            spare = torch.minimum(counts[:, c], (sizes - least).clamp(min=0))
            total = min(int(need.sum()), int(spare.sum()))
            if total:
                counts[:, c] += _first(need, total) - _from_largest(sizes, spare, total)
    if (short := counts.sum(1) < least).any():
        found = f"{kind}: {int(short.sum())} clients got fewer than min_size = {least} samples of their classes"
        raise EquipoiseError(found, "fewer clients, more classes per client, or a smaller min_size")
    return counts


def shuffled(groups: Tensor, stream: Stream, *ids: Tensor) -> Tensor:
    """All positions by group, at random within each; `ids` name the samples in the stream."""
    order = stream.bits(*(ids or (torch.arange(len(groups)),))).argsort(stable=True)
    return order[groups[order].argsort(stable=True)]


def ranks(groups: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
    """The place of every sample in its group, when `order` lists the samples by group."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[groups[order]]
    return rank


def deal(groups: Tensor, counts: Tensor, stream: Stream) -> list[Tensor]:
    """Random samples: counts[u, c] of group c for client u."""
    n_clients, classes = counts.shape
    order = shuffled(groups, stream)
    rank = ranks(groups, order, torch.bincount(groups, minlength=classes))
    chosen = order[(rank < counts.sum(0)[groups])[order]]
    owner = torch.repeat_interleave(torch.arange(n_clients).repeat(classes), counts.T.reshape(-1))
    return gather(chosen, owner, n_clients)


def gather(chosen: Tensor, owner: Tensor, n_clients: int) -> list[Tensor]:
    """One ascending tensor of positions per client."""
    order = chosen.argsort()
    order = order[owner[order].argsort(stable=True)]
    ends = torch.bincount(owner, minlength=n_clients).cumsum(0)
    return list(torch.tensor_split(chosen[order], ends[:-1].tolist()))


def deal_alike(key: Tensor, parts: list[Tensor], held: Tensor, stream: Stream) -> list[Tensor]:
    """Deal the samples `held` in proportion to `parts`: each goes to the owner of a sample of the same key.

    Within a key the samples of `parts`, listed by owner, are visited at even steps from a random start, so that a
    client's share of it in `held` is its share in `parts`, less than one sample off. Keys that nobody has are left out.
    """
    groups = torch.unique(key, return_inverse=True)[1]
    owned, owner = torch.cat(parts), torch.repeat_interleave(torch.tensor([len(p) for p in parts]))
    by_group = groups[owned].argsort(stable=True)
    size = torch.bincount(groups[owned], minlength=len(key))
    held = held[size[groups[held]] > 0]
    asked = groups[held]
    total = torch.bincount(asked, minlength=len(size))
    rank = ranks(asked, shuffled(asked, stream.child("order"), held), total)
    step = (rank + stream.child("start").uniform(asked)) / total[asked]
    place = torch.minimum((step * size[asked]).to(torch.int64), size[asked] - 1)
    return gather(held, owner[by_group[(size.cumsum(0) - size)[asked] + place]], len(parts))
