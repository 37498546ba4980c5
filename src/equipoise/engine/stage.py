"""Models on their way through recorded steps, one after the other, operation by operation.

They go in one piece, or as a tensor for every part that a step looks at. What follows from the inputs that hold for
many steps (see `record`) is worked out when one of them changes: in the first step, and where clients' batches are not
full or run out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equipoise.core import State
from equipoise.engine.record import Apart, Recorded
from equipoise.questions import moved

Inputs = dict[str, Tensor]
STATE = "state."  # the names of inputs that are a client's state begin so
_MOVING = ("w", "index", "key", "x", "y")  # what every step is handed anew, with the state


def holds(name: str) -> bool:
    """Whether an input is often the same in many steps: the step size, what was received, and the masks too."""
    return name not in _MOVING and not name.startswith(STATE)


class Placed(ABC):
    """Models [K, d] on their way, a tensor for each of the `places`: which columns it holds."""

    def __init__(self, places: Sequence[slice], like: Tensor) -> None:
        self._widths = [p.stop - p.start for p in places]
        self.parts = [like.new_empty((len(like), width)) for width in self._widths]

    def enter(self, rows: Tensor) -> None:
        torch._foreach_copy_(self.parts, torch.split(rows, self._widths, 1))

    @abstractmethod
    def step(self, inputs: Sequence[Any]) -> Sequence[Tensor]:
        """One step; the new state."""

    def take(self, at: Tensor) -> list[Tensor]:
        return [part[at] for part in self.parts]

    def put(self, at: Tensor, rows: Sequence[Tensor]) -> None:
        for part, kept in zip(self.parts, rows, strict=True):
            part.index_copy_(0, at, kept)

    def end(self) -> Tensor:
        return torch.cat(self.parts, 1)

    def less(self, start: Tensor, out: Tensor) -> None:
        """start - end."""
        cut = zip(torch.split(start, self._widths, 1), self.parts, torch.split(out, self._widths, 1), strict=True)
        for before, part, into in cut:
            torch.sub(before, part, out=into)


class InOne(Placed):
    """Models as they are, in one piece; a step may make a new one of them."""

    def __init__(self, recorded: Recorded, like: Tensor) -> None:
        super().__init__([slice(0, like.shape[1])], like)
        self._run, self._ours = recorded.step, self.parts[0]

    def step(self, inputs: Sequence[Any]) -> Sequence[Tensor]:
        w, *state = self._run(self.parts[0], *inputs)
        self.parts = [w]
        return state

    def put(self, at: Tensor, rows: Sequence[Tensor]) -> None:
        if self.parts[0] is self._ours:
            super().put(at, rows)
        else:  # what a step made may be part of the state too
            self.parts = [self.parts[0].index_copy(0, at, rows[0])]

    def end(self) -> Tensor:
        return self.parts[0]


class InParts(Placed):
    """Models in the parts that a recorded step looks at, and the views of them that it takes."""

    def __init__(self, apart: Apart, like: Tensor) -> None:
        super().__init__(apart.places, like)
        self._views, self._step = apart.views(*self.parts), apart.step

    def step(self, inputs: Sequence[Any]) -> Sequence[Tensor]:
        return self._step(*inputs, *self._views)


class Played:
    """A recorded step: inputs by name -> the model, which it overwrites, and what it makes anew of the state.

    The latter goes by the names `state`; what a step gives back as it was stays where it is, for the whole round.
    """

    def __init__(self, names: tuple[str, ...], state: Sequence[str], recorded: Recorded) -> None:
        self.names, self.state, self.recorded = names, tuple(state), recorded
        self.holding = tuple(n for n in names if holds(n))
        self.moving = tuple(n for n in names[1:] if not holds(n))
        self.used = {n for n, used in zip(names, recorded.used, strict=True) if used} | {"w", *self.state}
        self._spare: list[Placed] = []

    def ahead(self, inputs: Inputs) -> Sequence[Any]:
        """What steps need that stays the same as long as the inputs do that hold."""
        return self.recorded.ahead(*(inputs.get(n) for n in self.holding))  # what is not there is not looked at

    def room(self, like: Tensor) -> Placed:
        """For models such as these to take steps in."""
        apart = self.recorded.apart
        return InOne(self.recorded, like) if apart is None else InParts(apart, like)

    @contextmanager
    def model(self, rows: Tensor) -> Iterator[Placed]:
        """These models, for one caller at a time to take steps with; the room for parts is kept for the next one."""
        try:
            model = self._spare.pop()
        except IndexError:
            model = self.room(rows)
        model.enter(rows)
        try:
            yield model
        finally:
            if isinstance(model, InParts):  # in one piece they are handed on
                self._spare.append(model)


def running_out(steps: Sequence[int], device: torch.device) -> dict[int, Tensor]:
    """Who has no more steps than that many, by that number; those who have the most are left out."""
    most = max(steps)
    early = sorted((n, k) for k, n in enumerate(steps) if n < most)
    if not early:
        return {}
    many = Counter(n for n, _ in early)
    who = moved(torch.tensor([k for _, k in early]), device)
    return dict(zip(many, torch.split(who, list(many.values())), strict=True))


def walk(
    play: Played, fixed: Inputs, each: Inputs, steps: Sequence[int], turns: Sequence[bool], update: Tensor | None
) -> tuple[Tensor | None, State]:
    """Step after step, as many as each client has; `turns` says before which of them the masks are others.

    What clients have when they run out of steps is put aside, and put back in the end. Until then their rows go on with
    the others': what becomes of them there touches nobody and is thrown away.
    """
    state = {n: fixed[n] for n in play.state}
    ready: list[tuple[Tensor, list[Tensor], list[Tensor]]] = []
    resting, by_step = running_out(steps, fixed["w"].device), {n: t.unbind() for n, t in each.items()}
    with play.model(fixed["w"]) as model:
        for s, turn in enumerate(turns):
            if s in resting:
                out = resting[s]
                ready.append((out, model.take(out), [t[out] for t in state.values()]))
            now = {**fixed, **state, **{n: t[s] for n, t in by_step.items()}}
            if turn:
                known = play.ahead(now)
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
