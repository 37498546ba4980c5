"""Models on their way through recorded steps, one after the other, operation by operation.

They go in one piece, or as a tensor for every part that a step looks at. What follows from the inputs that hold for
many steps (see `record`) is worked out when one of them changes: in the first step, and where clients' batches are not
full or run out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equipoise.core import State
from equipoise.engine.record import Apart, Recorded

Inputs = dict[str, Tensor]
STATE = "state."  # the names of inputs that are a client's state begin so
_MOVING = ("w", "index", "key", "x", "y")  # what every step is handed anew, with the state


def holds(name: str) -> bool:
    """Whether an input is often the same in many steps: the step size, what was received, and the masks too."""
    return name not in _MOVING and not name.startswith(STATE)


class InOne:
    """Models [K, d] on their way, as they are."""

    def __init__(self, recorded: Recorded, rows: Tensor) -> None:
        self.rows, self._run, self._fresh = rows.clone(memory_format=torch.contiguous_format), recorded.step, True

    def step(self, inputs: Sequence[Any]) -> Sequence[Tensor]:
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

    def step(self, inputs: Sequence[Any]) -> Sequence[Tensor]:
        return self._step(*inputs, *self._views)

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


class Played:
    """A recorded step: inputs by name -> the model, which it overwrites, and the state."""

    def __init__(self, names: tuple[str, ...], recorded: Recorded) -> None:
        self.names, self.recorded = names, recorded
        self.state = tuple(n for n in names if n.startswith(STATE))
        self.holding = tuple(n for n in names if holds(n))
        self.moving = tuple(n for n in names[1:] if not holds(n))
        self.used = {n for n, used in zip(names, recorded.used, strict=True) if used} | {"w", *self.state}
        self._spare: list[InParts] = []

    def __call__(self, inputs: Inputs) -> tuple[Tensor, State]:
        moving = (inputs[n] for n in self.moving)
        w, *state = self.recorded.step(inputs["w"], *moving, *self.ahead(inputs))
        return w, dict(zip(self.state, state, strict=True))

    def ahead(self, inputs: Inputs) -> Sequence[Any]:
        """What steps need that stays the same as long as the inputs do that hold."""
        return self.recorded.ahead(*(inputs[n] for n in self.holding))

    @contextmanager
    def model(self, rows: Tensor) -> Iterator[InOne | InParts]:
        """These models, for one caller at a time to take steps with; the room for parts is kept for the next one."""
        if self.recorded.apart is None:
            yield InOne(self.recorded, rows)
            return
        try:
            model = self._spare.pop()
        except IndexError:
            model = InParts(self.recorded.apart, rows)
        model.enter(rows)
        try:
            yield model
        finally:
            self._spare.append(model)


def walk(
    play: Played, fixed: Inputs, each: Inputs, steps: Sequence[int], update: Tensor | None
) -> tuple[Tensor | None, State]:
    """Step after step. What clients have when they run out of steps is put aside, and put back in the end.

    Until then their rows go on with the others': what becomes of them there touches nobody and is thrown away.
    """
    state = {n: fixed[n] for n in play.state}
    ready: list[tuple[Tensor, list[Tensor], list[Tensor]]] = []
    changes, by_step = _changes(each["mask"]), {n: t.unbind() for n, t in each.items()}
    with play.model(fixed["w"]) as model:
        for s in range(max(steps)):
            resting = [k for k, n in enumerate(steps) if n == s]
            if resting:
                out = torch.tensor(resting, device=fixed["w"].device)
                ready.append((out, model.take(out), [t[out] for t in state.values()]))
            now = {**state, **{n: t[s] for n, t in by_step.items()}}
            if changes[s]:
                known = play.ahead({**fixed, **now})
            state = dict(zip(play.state, model.step([*(now[n] for n in play.moving), *known]), strict=True))
        if ready:
            at, rows, states = zip(*ready, strict=True)
            back = torch.cat(at)
            model.put(back, [torch.cat(part) for part in zip(*rows, strict=True)])
            held = dict(zip(state, map(torch.cat, zip(*states, strict=True)), strict=True)) if state else {}
            state = {n: t.index_copy(0, back, held[n]) for n, t in state.items()}
        if update is None:
            return model.end(), state
        model.less(fixed["w"], update)
    return None, state


def _changes(mask: Tensor) -> list[bool]:
    """[S]: whether the mask of a step is another than that of the step before."""
    return [True, *(mask[1:] != mask[:-1]).flatten(1).any(1).tolist()]
