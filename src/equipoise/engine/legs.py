"""A round's steps in legs, like a relay: when half of the clients have no step left, the others go on without them.

Clients with much data take many times the steps of others (three times as many as the mean of ten, with Dirichlet(0.1)
over classes). Rows that rest would go through all of these steps with them, for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.engine.batches import Batches
from equipoise.engine.stage import Inputs
from equipoise.questions import moved

_LEAST = 4  # steps that are worth moving models for


def halves(n: int) -> frozenset[int]:
    """n, half of it, and so on: as clients stop one by one, a recording is used until half of them have."""
    return frozenset({n}) if n < 2 else frozenset({n}) | halves(-(-n // 2))


def stretches(steps: Sequence[int], rows: int, sizes: frozenset[int]) -> list[tuple[int, int, int]]:
    """From which step up to which so many rows go on, `rows` at first and then fewer, of `sizes`."""
    order, last = sorted(steps, reverse=True), max(steps)
    found = []
    for few in sorted(n for n in sizes if n < min(rows, len(order))):
        first = order[few]  # no more than so many have steps left by then
        if first > 0 and last - first >= _LEAST:
            found.append((first, last, few))
            last = first
    return [(0, last, rows), *reversed(found)]


@dataclass(frozen=True)
class Leg:
    """Steps from one to another, of the clients who have any left; `who` is None where that is everyone."""

    batches: Batches
    rows: int
    first: int
    last: int
    who: Tensor | None

    @classmethod
    def of(cls, whole: Batches, first: int, last: int, rows: int) -> Leg:
        if first == 0:
            return cls(whole.between(0, last, list(range(len(whole.steps)))), rows, 0, last, None)
        who = [k for k, n in enumerate(whole.steps) if n > first]
        there = moved(torch.tensor(who), whole.index.device)
        return cls(whole.between(first, last, who), rows, first, last, there)

    def fixed(self, inputs: Inputs) -> Inputs:
        """[n, ...] of [K, ...]; what has no rows stays."""
        who = self.who
        return inputs if who is None else {n: t if t.dim() == 0 else t[who] for n, t in inputs.items()}

    def each(self, inputs: Inputs) -> Inputs:
        """[S', b, n, ...] of [S, b, K, ...]."""
        cut = {n: t[self.first : self.last] for n, t in inputs.items()}
        return cut if self.who is None else {n: t.index_select(2, self.who) for n, t in cut.items()}

    def put(self, whole: Tensor, rows: Tensor) -> Tensor:
        """What everyone has, with the rows that these clients have by now."""
        return rows if self.who is None else whole.index_copy(0, self.who, rows)
