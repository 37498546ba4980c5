"""One round on the clients' side: the cohort as rows at once, or one client after the other.

`client_round` is the whole of it, for any number of rows; a deployed client runs the same function with one. The two
executors differ only in how they cut the cohort: `vmap` hands it over in big blocks, `loop` one row at a time (over
several threads, if asked). With `loop` a client's numbers depend on nothing but that client, so they are the same bits
whoever else is there and however many workers there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce

import torch
from torch import Tensor

from equipoise.at import Schedule, Stop
from equipoise.core import SGD, ClientRule, State
from equipoise.engine.batches import Batches, full, plan_batches
from equipoise.engine.exchange import Plan, Replies
from equipoise.engine.legs import halves
from equipoise.engine.precision import steps_in
from equipoise.engine.replay import Replay
from equipoise.engine.risk import risk
from equipoise.engine.store import Seen
from equipoise.engine.view import View, World
from equipoise.engine.waiting import tell
from equipoise.layout import all_at_hand, finite_rows
from equipoise.questions import part
from equipoise.streams import Stream

_BLOCK = 1 << 26  # numbers in one block of rows: bounds memory, changes no result beyond rounding


@dataclass(frozen=True)
class Work:
    """What the clients of a cohort are asked to do in one round; every tensor has a row per client."""

    ids: Tensor
    received: Tensor
    batches: Batches
    message: Mapping[str, Tensor]
    lr: float
    round: int
    stream: Stream
    losses: bool
    ends: bool = True
    """Whether anybody will look at the models at the end, and not only at the updates."""

    def cut(self, c: slice) -> Work:
        ids, message = part(self.ids, c), {n: t[c] for n, t in self.message.items()}
        return replace(self, ids=ids, received=self.received[c], batches=self.batches.cut(c), message=message)


@dataclass(frozen=True)
class Done:
    """What came of it: the update that is sent, the model at the end, the state that is kept."""

    updates: Tensor
    end: Tensor | None
    """None where nobody asked for it."""
    state: State
    losses: Tensor | None
    signals: State = field(default_factory=dict)
    same: frozenset[str] = frozenset()
    """What of the state is as it was before the round."""


@dataclass(frozen=True)
class Trained:
    """What clients `ids`, in host memory, made of a plan and its model, which had been written to so many times.

    What is `done` is of those who are `kept`: all, unless some do no more than they send.
    """

    plan: Plan
    writes: int
    ids: Tensor
    kept: Tensor
    done: Done
    replies: Replies

    def is_of(self, plan: Plan) -> bool:
        return self.plan is plan and self.writes == plan.w._version


def client_round(
    rule: ClientRule, world: World, work: Work, state: State, alone: Callable[..., Tensor], update: Tensor
) -> Done:
    """Report, begin, every local step, end: for all rows of `work`, which are clients; `update` [K, d] is filled."""
    batches, seen = work.batches.to(work.received.device), Seen({"w": work.received, **state})
    view = View(world, work.ids, rule, batches, work.received, work.message, work.lr, work.round, work.stream, alone)
    losses = view.risk(work.received) if work.losses else None  # first: it asks a GPU, which later is busy, for sizes
    signals = rule.report(state, view)
    start, extra = rule.begin(work.received, state, view)
    direct = update if not work.ends and type(rule).end is ClientRule.end else None
    with steps_in(world.precision):
        played = None if world.replay is None else world.replay.steps(rule, view, start, {**state, **extra}, direct)
        w, now = played or _step_by_step(rule, view, start, {**state, **extra})
    end = None
    if w is not None:  # else the steps have written the update
        end, now = rule.end(w, now, view)
        with torch.no_grad():
            torch.sub(start, end, out=update)
    seen.require_untouched(rule)
    lasting = {name: now[name] for name in state}  # what there was before the round
    changed = seen.changed(lasting)
    kept, same = _finite_or(lasting, state, changed), frozenset(lasting.keys() - changed.keys())
    return Done(update, end if work.ends else None, kept, losses, signals, same)


def _step_by_step(rule: ClientRule, view: View, w: Tensor, state: State) -> tuple[Tensor, State]:
    for s in range(view.batches.longest):
        view.step(s)
        seen = Seen({"w": w, **state})
        new_w, new = rule.step(w, state, view)
        seen.require_untouched(rule)
        resting = [k for k, n in enumerate(view.batches.steps) if n <= s]
        w, state = (new_w, new) if not resting else _hold(resting, (w, state), (new_w, new))
    return w, state


def _hold(rows: list[int], old: tuple[Tensor, State], new: tuple[Tensor, State]) -> tuple[Tensor, State]:
    """The new model and state, except that `rows`, whose clients have no step left, stay as they were."""
    at = torch.tensor(rows, device=old[0].device)
    held = {n: t if t is old[1].get(n) else t.index_copy(0, at, old[1][n][at]) for n, t in new[1].items()}
    return new[0].index_copy(0, at, old[0][at]), held


def _finite_or(new: State, old: State, changed: State) -> State:
    """A client whose state is no longer finite keeps its last good one: divergence must not outlive the round."""
    if not changed:
        return new
    good = reduce(torch.logical_and, map(finite_rows, new.values()))
    if all_at_hand(good):
        return new
    return {**new, **{n: torch.where(good.view(-1, *[1] * (t.dim() - 1)), t, old[n]) for n, t in changed.items()}}


def cuts(k: int, d: int, vectorised: bool) -> list[slice]:
    """How k rows of d numbers are cut into what is trained together."""
    size = max(1, _BLOCK // max(d, 1)) if vectorised else 1
    return [slice(a, min(a + size, k)) for a in range(0, k, size)]


class Executor:
    """Runs client rounds in the chosen way: in big blocks of rows, or row by row over `workers` threads."""

    def __init__(self, world: World, workers: int = 1) -> None:
        self.world, self.workers = world, workers

    def _cuts(self, k: int, d: int) -> list[slice]:
        return cuts(k, d, self.world.vectorised)

    def run(self, rule: ClientRule, work: Work, state: State, alone: Callable[..., Tensor]) -> Done:
        updates = torch.empty_like(work.received, memory_format=torch.contiguous_format)  # everyone fills its rows

        def one(c: slice) -> Done:
            return client_round(rule, self.world, work.cut(c), {n: t[c] for n, t in state.items()}, alone, updates[c])

        cuts = self._cuts(*work.received.shape)
        if len(cuts) == 1:
            return client_round(rule, self.world, work, state, alone, updates)
        if self.world.vectorised or self.workers == 1:
            return _join([one(c) for c in cuts], updates)
        # A thread that has not asked yet lets convolutions take all cores, whatever was set for the process.
        with ThreadPoolExecutor(self.workers, initializer=torch.get_num_threads) as pool:
            return _join(list(pool.map(one, cuts)), updates)

    def prepare(
        self, rule: ClientRule, ids: Tensor, rows: Tensor, lr: float, stream: Stream, alone: Callable[..., Tensor]
    ) -> State:
        """The first state of clients, given the run's initial model as rows."""
        nothing = plan_batches(self.world.train, ids[:0].cpu(), Schedule(), stream)
        states = []
        for c in self._cuts(*rows.shape):
            view = View(self.world, ids[c], rule, nothing, rows[c], {}, lr, 0, stream, alone)
            states.append(rule.prepare(rule.init(rows[c]), view))
        return _stacked(states)

    def each(self, ids: Tensor, rows: Tensor, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """`measure(ids, rows)` for all rows, cut as this executor cuts; for evaluations that have no batches."""
        cuts = self._cuts(*rows.shape)
        return torch.cat([measure(ids[c], rows[c]) for c in cuts]) if cuts else rows.new_zeros(0)

    def risk(self, ids: Tensor, rows: Tensor, split: str = "train") -> Tensor:
        return self.each(ids, rows, lambda i, r: risk(self.world, i, r, split))

    def fit_alone(
        self, ids: Tensor, start: Tensor, schedule: Schedule, lr: float, stop: Stop, stream: Stream
    ) -> Tensor:
        """[K, d]: plain SGD on each client's own training split until the curve of its loss is flat.

        Up is not flat, nor is down again: full batches on a network have spikes. What is kept is the model of the
        lowest training loss, looked at every `window` epochs: the last one where nothing rises. Who diverges is kept as
        it is, for others to see.
        """
        rows = start.expand(len(ids), -1).clone()
        kept, last, busy = rows.clone(), self.risk(ids, rows), torch.arange(len(ids))
        lowest = last.clone()
        # The same bits, however long the run is to be, and however exact.
        widest = full(schedule.batch, self.world.train.size[ids.cpu()])
        replay = Replay(halves(len(ids)), widest, False) if self.world.alone else None
        plain = Executor(replace(self.world, replay=replay, precision="full"), self.workers)
        for epoch in range(0, stop.cap, stop.window):
            at, now = busy.to(rows.device), stream.child(epoch)
            window = Schedule(epochs=min(stop.window, stop.cap - epoch), batch=schedule.batch)
            batches = plan_batches(self.world.train, ids[at].cpu(), window, now)
            done = plain.run(SGD(), Work(ids[at], rows[at], batches, {}, lr, 0, now, False), {}, _no_alone)
            assert done.end is not None
            rows[at] = done.end
            loss = self.risk(ids[at], rows[at])
            best = (loss <= lowest[at]) | ~loss.isfinite()
            kept[at] = torch.where(best[:, None], rows[at], kept[at])
            lowest[at] = torch.where(best, loss, lowest[at])
            steep = (loss - last[at]).abs() > stop.tolerance * last[at].abs()
            last[at] = loss
            busy = busy[(steep & loss.isfinite()).cpu()]
            tell(epoch + window.epochs, stop.cap, ids, len(busy))
            if len(busy) == 0:
                break
        return kept


def _no_alone(ids: Tensor, stop: Stop) -> Tensor:
    raise RuntimeError("training alone inside of training alone")


def _join(parts: list[Done], updates: Tensor) -> Done:
    """All rows' results as one; the updates are in their places already."""
    first = parts[0]
    if len(parts) == 1:
        return first
    ends = [p.end for p in parts if p.end is not None]
    losses = [p.losses for p in parts if p.losses is not None]
    return Done(
        updates,
        torch.cat(ends) if ends else None,
        _stacked([p.state for p in parts]),
        torch.cat(losses) if losses else None,
        _stacked([p.signals for p in parts]),
        frozenset.intersection(*(p.same for p in parts)),
    )


def mixed(some: Done, others: Done, here: Tensor, there: Tensor) -> Done:
    """What two cohorts send, as one: `here` are the rows of the first, `there` those of the second."""

    def rows(a: Tensor, b: Tensor) -> Tensor:
        out = a.new_empty((len(a) + len(b), *a.shape[1:]))
        return out.index_copy_(0, here, a).index_copy_(0, there, b)

    losses = None if some.losses is None or others.losses is None else rows(some.losses, others.losses)
    signals = {n: rows(t, others.signals[n]) for n, t in some.signals.items()}
    return Done(rows(some.updates, others.updates), None, {}, losses, signals)


def _stacked(states: list[State]) -> State:
    return {n: torch.cat([s[n] for s in states]) for n in states[0]}


@contextmanager
def steady() -> Iterator[None]:
    """One thread per operation on a CPU; on a GPU full float32 precision and kernels that repeat themselves.

    A client's operations are small: threads that wait for each other cost more than they bring (many times more on a
    busy machine), and results must not depend on how many cores there are.
    """
    before, rough = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(1)
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cuda.matmul.allow_tf32 = rough
