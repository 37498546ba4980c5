"""Local steps played back from a recording, on a CPU operation by operation, on a GPU as captured graphs.

A recording fits one rule and one shape of cohort: so many clients, so large a batch. `Replay` makes it when that shape
is first trained with, and keeps it. What a recording may not contain is looked up before every step and handed in: the
batch, the key of dropout, the step size. A step that cannot be recorded runs as it is; the reason is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import NoReturn

import torch
from torch import Tensor

from equipoise.at import Stop
from equipoise.core import ClientRule, State
from equipoise.data.federation import SPLITS
from equipoise.engine import graphs
from equipoise.engine.fill import Fill
from equipoise.engine.legs import Leg, halves, stretches
from equipoise.engine.record import Unrecordable, record
from equipoise.engine.stage import STATE, Inputs, Played, holds, running_out, walk
from equipoise.engine.store import Seen
from equipoise.engine.view import View, World

_EACH = ("index", "mask", "key", "x", "y")  # what differs from step to step; all else holds for the round
_MESSAGE, _SIZE = "message.", "size."
_STRIDES = (16, 4)  # steps in one launch, where clients have as many before a mask changes
_WASTE = 2  # times as much as there is: what is still better than steps that are not played back


class Recording(View):
    """What a rule sees while its step is being written down: nothing but the inputs of the recording."""

    def __init__(self, rule: ClientRule, world: World, given: Mapping[str, Tensor]) -> None:
        self.world, self.objective, self._features, self.given = world, rule.objective, rule.features, given
        self.received, self.lr = given["received"], given["lr"]  # type: ignore[assignment]
        self.message = {n.removeprefix(_MESSAGE): t for n, t in given.items() if n.startswith(_MESSAGE)}
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}

    def _batch(self, batch: int) -> tuple[Tensor, Tensor]:
        if batch not in self._cache:
            if "x" in self.given:
                self._cache[batch] = self.given["x"][batch], self.given["y"][batch]
            else:
                self._cache[batch] = self.lookup(self.given["index"][batch])
        return self._cache[batch]

    def _mask(self, batch: int) -> Tensor:
        return self.given["mask"][batch]

    def _key(self, batch: int) -> Tensor:
        return self.given["key"][batch] if "key" in self.given else self.given["index"][batch, :, 0]

    @property
    def index(self) -> Tensor:
        return self.given["index"][0]

    def descend(self, rows: Tensor, grad: Tensor) -> Tensor:
        return torch.addcmul(rows, grad, self.given["lr"], value=-1)

    def size(self, split: str = "train") -> Tensor:
        return self.given[_SIZE + split]

    @property
    def round(self) -> int:  # type: ignore[override]
        _refuse("the step looks at the number of the round")

    def risk(self, rows: Tensor, split: str = "train") -> Tensor:
        _refuse("the step looks at a whole split")

    def fit_alone(self, stop: Stop) -> Tensor:
        _refuse("the step trains clients alone")


def _refuse(reason: str) -> NoReturn:
    raise Unrecordable(reason)


def played(rule: ClientRule, world: World, inputs: Inputs) -> Played:
    names, anew = tuple(inputs), list[str]()
    own = [n.removeprefix(STATE) for n in names if n.startswith(STATE)]

    def step(*tensors: Tensor) -> list[Tensor]:
        given = dict(zip(names, tensors, strict=True))
        before = {n: given[STATE + n] for n in own}
        seen = Seen({"w": given["w"], **before})
        w, state = rule.step(given["w"], before, Recording(rule, world, given))
        if seen.written():
            _refuse("the step writes into what it is given")  # step by step, that is an error
        if set(state) != set(own):
            _refuse("the step changes what its state consists of")
        new = seen.changed({n: state[n] for n in own})
        anew[:] = ["w", *(STATE + n for n in new)]
        return [w, *new.values()]

    def others() -> list[Tensor]:
        after = step(*(t.clone() for t in inputs.values()))
        return list({**inputs, **_others(inputs), **dict(zip(anew, after, strict=True))}.values())

    recorded = record(step, list(inputs.values()), [holds(n) for n in names], others)
    return Played(names, anew[1:], recorded)


def _others(inputs: Inputs) -> Inputs:
    """What, with the model and the state after this step, might be the inputs of another: other samples, fewer of them.

    They must be such as a step may meet. Numbers made up are not: on a GPU an index beyond a table ends the process.
    """
    turned = {n: t.roll(1, -1) for n, t in inputs.items() if n in ("index", "y", "key")}
    mask = inputs["mask"].clone()
    mask[..., mask.shape[-1] // 2 :] = False
    return {**turned, "mask": mask}


class Captured:
    """A recorded step as a CUDA graph: launched once per step, with everything it reads and writes in fixed places.

    What comes ahead of a step has a graph of its own, launched only where the mask is another. Clients that run out of
    steps are put aside between two launches, and put back in the end, as in `stage.walk`. In runs that last, there are
    graphs of several steps too: a launch takes a host as long as a small step takes a GPU.
    """

    def __init__(self, play: Played, inputs: Inputs, steps: int) -> None:
        self.fixed = {n: t.clone() for n, t in inputs.items() if n not in _EACH and n != "w"}
        self.each = {n: t.new_zeros((steps, *t.shape)) for n, t in inputs.items() if n in _EACH}
        self.steps = steps
        self.at = torch.zeros(1, dtype=torch.int64, device=inputs["w"].device)
        self.play, self.model = play, play.room(inputs["w"])
        self.model.enter(inputs["w"])
        self.places = [*self.model.parts, *(self.fixed[n] for n in play.state)]
        """Where the models and the state lie, before every step and after it."""
        self.ahead = self._capture(self._ahead)
        self.ahead.replay()  # to capture is not to do; the step, which is run before it is captured, needs the numbers
        self.strides = {1: self._capture(self._step)}
        """Graphs of so many steps."""
        self._before = 0

    def _now(self, names: Collection[str]) -> Inputs:
        """These inputs of the step that comes next."""
        return {n: self.each[n].index_select(0, self.at)[0] if n in self.each else self.fixed[n] for n in names}

    def _ahead(self) -> None:
        self.known = self.play.ahead(self._now(self.play.holding))

    def _step(self) -> None:
        state = self.model.step([*self._now(self.play.moving).values(), *self.known])
        found = self._copied([*self.model.parts, *state])
        self.model.parts = self.places[: len(self.model.parts)]
        for place, new in zip(self.places, found, strict=True):
            if new is not place:
                place.copy_(new)
        self.at.add_(1)

    def _copied(self, found: list[Tensor]) -> list[Tensor]:
        """What is still in the place of another, which is about to be overwritten (say, the w before), copied."""
        ours = {t.untyped_storage().data_ptr() for t in (*self.places, *self.fixed.values())}
        return [
            t.clone() if t is not place and t.untyped_storage().data_ptr() in ours else t
            for t, place in zip(found, self.places, strict=True)
        ]

    def _capture(self, work: Callable[[], None], trials: int = 2) -> torch.cuda.CUDAGraph:
        return graphs.captured(work, self.at.zero_, trials)

    def _steps(self, n: int) -> None:
        for _ in range(n):
            self._step()

    def _lengthen(self) -> None:
        """Graphs of several steps, once it is worth it, and as far as there is room for them."""
        self._before += 1
        if self._before == graphs.OFTEN:
            with suppress(RuntimeError):
                for n in (n for n in reversed(_STRIDES) if n <= self.steps):
                    self.at.zero_()
                    self.strides[n] = self._capture(partial(self._steps, n), trials=0)  # each step has been tried

    def _launch(self, steps: int) -> None:
        for n in sorted(self.strides, reverse=True):
            for _ in range(steps // n):
                self.strides[n].replay()
            steps %= n

    def rounds(
        self, fixed: Inputs, each: Inputs, steps: Sequence[int], turns: Sequence[bool], update: Tensor | None
    ) -> tuple[Tensor | None, State]:
        """All steps of a round, see `stage.walk`."""
        resting = running_out(steps, self.at.device)
        self._lengthen()
        self.model.enter(fixed["w"])
        for name in self.play.used & self.fixed.keys():
            self.fixed[name].copy_(fixed[name])
        for name in self.play.used & each.keys():
            self.each[name][: len(turns)].copy_(each[name])
        self.at.zero_()
        ready: list[list[Tensor]] = []
        stops = [s for s, turn in enumerate(turns) if turn or s in resting]
        for s, end in zip(stops, [*stops[1:], len(turns)], strict=True):
            if s in resting:
                ready.append([t[resting[s]] for t in self.places])
            if turns[s]:
                self.ahead.replay()
            self._launch(end - s)
        if ready:
            back = torch.cat(list(resting.values()))
            for place, rows in zip(self.places, map(torch.cat, zip(*ready, strict=True)), strict=True):
                place.index_copy_(0, back, rows)
        state = {n: self.fixed[n].clone() for n in self.play.state}
        if update is None:
            return torch.cat(self.model.parts, 1), state
        self.model.less(fixed["w"], update)
        return None, state


class Replay:
    """Recordings of a run's steps, made when they are first needed.

    Which steps are played back depends on the scenario and the cohort, never on what happened before: a run that was
    stopped and resumed takes the same ones. A recording is of as many clients as a full cohort is cut into (`clients`)
    and of full batches (`batch`). What is smaller is filled up (`Fill`), unless it is less than half of it.
    With `relay`, who has many steps goes on without those who have none left, in recordings of half as many (`legs`).
    """

    def __init__(self, clients: frozenset[int], batch: int, capture: bool, relay: bool = False) -> None:
        self.clients, self.batch, self.capture, self.relay = clients, batch, capture, relay
        self.reasons: dict[str, str] = {}
        """Why a rule's steps are not played back, by its name."""
        self.plain: dict[str, str] = {}
        """Why some operations in them have no kernels of their own, by what they are, and of which rule."""
        self._made: dict[object, Played | None] = {}
        self._captured: dict[object, Captured | None] = {}
        self._lock = Lock()

    def room(self, clients: int, width: int) -> tuple[int, int] | None:
        """The clients and the width of the recording that these can use, filled up to not more than twice as much."""
        fit = (n for n in self.clients if n >= clients and n * self.batch <= _WASTE * clients * width)
        rows = min(fit, default=0)
        return (rows, self.batch) if rows and width <= self.batch else None

    def steps(
        self, rule: ClientRule, view: View, w: Tensor, state: State, update: Tensor | None = None
    ) -> tuple[Tensor | None, State] | None:
        """All local steps of a round: the model and state at their end; None if they have to be taken one by one.

        With `update`, w less that model is written there, and no model is given back: one pass less over all rows.
        """
        _, _, *now = view.batches.index.shape
        room = self.room(*now) if view.batches.longest else None
        if room is None or not (view.world.vectorised or room == tuple(now)):
            return None
        legs = stretches(view.batches.steps, room[0], halves(room[0]) if self.relay else frozenset())
        fixed, each = _inputs(view, w, state)
        with torch.no_grad():
            for leg in (Leg.of(view.batches, *part) for part in legs):
                done = self._leg(rule, view, leg, fixed, each, update if len(legs) == 1 else None)
                if done is None:
                    return None
                fixed |= {n: leg.put(fixed[n], t) for n, t in done.items()}
            if update is not None and fixed["w"] is not w:  # else it has been written
                torch.sub(w, fixed["w"], out=update)
        return None if update is not None else fixed["w"], {n: fixed[STATE + n] for n in state}

    def _leg(
        self, rule: ClientRule, view: View, leg: Leg, fixed: Inputs, each: Inputs, update: Tensor | None
    ) -> Inputs | None:
        """What these steps make of the model and the state; of the model nothing, where the update has been written."""
        fill = Fill(leg.batches, leg.rows, self.batch)

        def cut(inputs: Inputs) -> Inputs:
            return fill.fixed(leg.fixed(inputs))

        def whole() -> Inputs:
            return {**first, **cut(_sizes(view))}

        fixed, each = cut(fixed), fill.each(leg.each(each))
        first = {**fixed, **{n: t[0] for n, t in each.items()}}
        key = (_name(rule), view.world.vectorised, id(view.world.federation.data.x), _form(first))
        play = self._recorded(key, rule, view.world, whole)
        if play is None:
            return None
        graph = self._graph(key, rule, play, view.batches.longest, whole) if self.capture else None
        fixed = {**fixed, **cut(_sizes(view, play.used))}
        into, turns = update if fill.idle else None, leg.batches.turns
        if graph is None:
            end, new = walk(play, fixed, each, fill.steps, turns, into)
        else:
            end, new = graph.rounds(fixed, each, fill.steps, turns, into)
        many = len(leg.batches.steps)
        return {n: t[:many] for n, t in (new if end is None else {"w": end, **new}).items()}

    def _recorded(self, key: object, rule: ClientRule, world: World, inputs: Callable[[], Inputs]) -> Played | None:
        with self._lock:
            if key not in self._made:
                try:
                    made = self._made[key] = played(rule, world, inputs())
                    of = type(rule).__name__
                    self.plain |= {f"{what} of {of}": why for what, why in made.recorded.plain.items()}
                except Unrecordable as reason:
                    self._made[key] = None
                    self.reasons[type(rule).__name__] = str(reason)
            return self._made[key]

    def _graph(
        self, key: object, rule: ClientRule, play: Played, steps: int, inputs: Callable[[], Inputs]
    ) -> Captured | None:
        made = self._captured.get(key)
        try:
            if key not in self._captured or (made is not None and made.steps < steps):
                self._captured[key] = made = Captured(play, inputs(), steps if made is None else 2 * steps)
        except RuntimeError as error:  # an operation that a graph cannot hold
            self._captured[key] = made = None
            self.reasons[type(rule).__name__] = f"no CUDA graph: {str(error).splitlines()[0]}"
        return made


def _name(rule: ClientRule) -> object:
    """What tells rules apart; one that cannot be compared is only ever itself."""
    try:
        hash(rule)
    except TypeError:
        return id(rule)
    return rule


def _inputs(view: View, w: Tensor, state: State) -> tuple[Inputs, Inputs]:
    """What holds for the whole round, but `_sizes`, and what differs by step, the steps stacked."""
    lr = torch.full((), view.lr, dtype=torch.float64, device=w.device)  # not `tensor`: a GPU would be waited for
    fixed = {"w": w, "received": view.received, "lr": lr}
    fixed |= {STATE + n: t for n, t in state.items()}
    fixed |= {_MESSAGE + n: t for n, t in view.message.items()}
    each = {"index": view.batches.index, "mask": view.batches.mask, **view.prepared()}
    return fixed, {n: t.contiguous() for n, t in each.items()}  # a recording holds on to how its inputs lie


def _sizes(view: View, used: Collection[str] | None = None) -> Inputs:
    """How much data clients hold, of the splits that somebody looks at."""
    return {_SIZE + split: view.size(split) for split in SPLITS if used is None or _SIZE + split in used}


def _form(inputs: Inputs) -> tuple[object, ...]:
    return tuple((n, t.shape, t.dtype, t.device) for n, t in inputs.items())
