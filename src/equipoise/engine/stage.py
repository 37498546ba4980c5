"""Models on their way through recorded steps: in one piece, or a tensor for every part that a step looks at."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.engine.record import Apart, Recorded


class InOne:
    """Models [K, d] on their way, as they are."""

    def __init__(self, recorded: Recorded, rows: Tensor) -> None:
        self.rows, self._run, self._fresh = rows.clone(memory_format=torch.contiguous_format), recorded.run, True

    def step(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """One step; the new state."""
        w, *state = self._run(self.rows, *inputs)
        self.rows, self._fresh = w, self._fresh and w is self.rows
        return state

    def take(self, at: Tensor) -> list[Tensor]:
        return [self.rows[at]]

    def put(self, at: Tensor, rows: Sequence[Tensor]) -> None:
        # What a step made may be part of the state too; what has been ours from the start is nobody else's.
        put = self.rows.index_copy_ if self._fresh else self.rows.index_copy
        self.rows = put(0, at, rows[0])

    def end(self) -> Tensor:
        return self.rows

    def less(self, start: Tensor, out: Tensor) -> None:
        """start - end."""
        torch.sub(start, self.rows, out=out)


class InParts:
    """Models [K, d] on their way, a tensor for every part, and the views of them that a recorded step looks at."""

    def __init__(self, apart: Apart, like: Tensor) -> None:
        self.places = apart.places
        self.parts = [like.new_empty((len(like), p.stop - p.start)) for p in self.places]
        self._views, self._step = apart.views(*self.parts), apart.step

    def enter(self, rows: Tensor) -> None:
        for place, part in zip(self.places, self.parts, strict=True):
            part.copy_(rows[:, place])

    def step(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return self._step(*self._views, *inputs)

    def take(self, at: Tensor) -> list[Tensor]:
        return [part[at] for part in self.parts]

    def put(self, at: Tensor, rows: Sequence[Tensor]) -> None:
        for part, kept in zip(self.parts, rows, strict=True):
            part.index_copy_(0, at, kept)

    def end(self) -> Tensor:
        return torch.cat(self.parts, 1)

    def less(self, start: Tensor, out: Tensor) -> None:
        for place, part in zip(self.places, self.parts, strict=True):
            torch.sub(start[:, place], part, out=out[:, place])
