"""How models do on clients' whole splits, a chunk of samples at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.engine.graphs import Ready

if TYPE_CHECKING:
    from equipoise.engine.view import World

CHUNK = 2048  # samples of one client in a single evaluation pass: bounds memory, changes no result beyond rounding
_AT_ONCE = 1 << 14  # samples of all clients in one, on a GPU
_NUMBERS = 1 << 24  # in these samples: what a network makes of large images takes a hundred times their memory
_NEAR = 1 << 12  # the same on a CPU, where what was read should still be near when it is needed
_EMPTY = 2  # times as many places as samples, of which a graph may have to work on more than a cohort needs


def answers(
    world: World, ids: Tensor, rows: Tensor, split: str, longest: int | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Outputs, losses, labels and mask of model `rows[k]` on the split of client `ids[k]`, a chunk at a time.

    `longest`: room for so many samples of each, in place of as many as one of these clients has.
    """
    data = world.federation.data
    index, mask = world.federation.splits[split].padded(ids, longest)
    most = min(_AT_ONCE, _NUMBERS // max(1, data.x[0].numel())) if rows.is_cuda else _NEAR
    chunk = max(1, min(CHUNK, most // max(1, len(ids))))
    for at in range(0, index.shape[1], chunk):
        part, y = index[:, at : at + chunk], data.y[index[:, at : at + chunk]]
        y = y.to(rows.dtype) if y.is_floating_point() else y
        out, losses = world.net.forward(rows, data.inputs(part, rows.dtype), y, vectorised=world.vectorised)
        yield out, losses, y, mask[:, at : at + chunk]


def risk(world: World, ids: Tensor, rows: Tensor, split: str) -> Tensor:
    """[K]: the mean loss of model `rows[k]` over the whole split of client `ids[k]`; 0 where it is empty.

    [K, C] of C models [K, C, d] for each, which are asked at once where clients are.
    """
    if rows.dim() == 3:
        if not world.vectorised:
            return torch.stack([risk(world, ids, m, split) for m in rows.unbind(1)], 1)
        longest, each = world.federation.splits[split].longest(ids), ids.repeat_interleave(rows.shape[1])
        return _risk(world, each, rows.flatten(0, 1), split, longest).view(rows.shape[:2])
    ready = None
    if world.risks is not None and len(rows) > 1 and rows.stride(0) == 0:
        ready = world.risks.graph(world, ids, rows[0], split)
    return _risk(world, ids, rows, split) if ready is None else ready((ids, rows[0]))[0]


def _risk(world: World, ids: Tensor, rows: Tensor, split: str, longest: int | None = None) -> Tensor:
    total = torch.zeros(rows.shape[0], dtype=torch.float64, device=rows.device)
    for _, losses, _, mask in answers(world, ids, rows, split, longest):
        total += torch.where(mask, losses, torch.zeros_like(losses)).sum(1, dtype=torch.float64)
    return (total / world.federation.splits[split].size[ids].clamp(min=1)).to(rows.dtype)


def _captured(world: World, ids: Tensor, w: Tensor, split: str, longest: int) -> Ready:
    """The risk of one model for so many clients, with room for whatever clients they are."""
    return Ready(lambda ids, w: (_risk(world, ids, w.expand(len(ids), -1), split, longest),), (ids, w))


class Risks:
    """Graphs for the risk of a model that all clients of a cohort share, which some methods ask for in every round.

    On a GPU, where it is some fifty launches. Only for cohorts of the sizes `clients`, and where clients' splits are
    about equally large: a graph has room for the largest of them all.
    """

    def __init__(self, clients: Collection[int]) -> None:
        self.clients = clients
        self.reasons: dict[str, str] = {}
        """Why there is no graph for a split, if it was tried."""
        self._made: dict[tuple[str, int], Ready | None] = {}

    def graph(self, world: World, ids: Tensor, w: Tensor, split: str) -> Ready | None:
        key = (split, len(ids))
        if len(ids) not in self.clients:
            return None
        if key not in self._made:
            sizes = world.federation.splits[split].size.to(torch.float64)
            longest, mean = sizes.max().item(), sizes.mean().item()
            try:
                fits = 0 < longest <= _EMPTY * mean
                self._made[key] = _captured(world, ids, w, split, int(longest)) if fits else None
            except RuntimeError as error:  # an operation that a graph cannot hold
                self._made[key] = None
                self.reasons[split] = str(error).splitlines()[0]
        return self._made[key]
