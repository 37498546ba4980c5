"""The rounds of one run, and what is written between them.

After every `eval_every` rounds each client is evaluated; after every `checkpoint_every` rounds the run can be resumed
from there, or later, if a checkpoint takes long: the next waits ten times as long. A resumed run repeats rounds since
its last checkpoint with the same random numbers, so it ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from equipoise import files, large, metrics, tracking
from equipoise.engine import checkpoint
from equipoise.engine.cautions import cautions
from equipoise.engine.phases import phase
from equipoise.engine.run import Simulation
from equipoise.engine.server import RoundRecord
from equipoise.engine.waiting import Alone, told
from equipoise.errors import EquipoiseError
from equipoise.provenance import essence
from equipoise.results import MemoryRun, Result, RunFolder

if TYPE_CHECKING:
    from equipoise.experiment import Experiment

_LONG = 1.0  # seconds that a checkpoint may take, however often it is due
_SHARE = 0.25  # of the free space of a disk, for a point of a run that has no folder
_SELDOM = 300.0  # seconds between two points of a run that has no folder
LATE = ("accuracy_mean", "accuracy_std", "worst_10")
"""Measures whose mean over the last tenth of the rounds is told too."""


class Interrupted(Exception):
    """The user stopped the run; it can be resumed from `path` (None: it had no folder), and `how` says how."""

    def __init__(self, path: Path | None, round: int, how: str = "") -> None:
        super().__init__(f"stopped after round {round}; {how or 'it had no folder, so nothing is kept'}")
        self.path, self.round, self.how = path, round, how

    def __reduce__(self) -> tuple[Any, ...]:  # so that it comes back whole from another process
        return type(self), (self.path, self.round, self.how)


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    round: int
    rounds: int
    seconds: float
    note: str = ""
    accuracy: float | None = None
    """Mean accuracy of the last evaluation."""
    alone: Alone | None = None
    """Clients that train alone at the moment, before a round or for one."""


@dataclass
class Kept:
    """Where a run without a folder leaves a point to go on from, every five minutes and when it is stopped.

    `by` says who works at it, and once it was resumed who did before; `seconds` is how long those did.
    """

    path: Path
    by: list[str]
    seconds: float = 0.0

    def save(self, point: checkpoint.Checkpoint) -> bool:
        """Leave a point, if that is no trouble: without one the run comes to its end, and others need the disk too."""
        with suppress(EquipoiseError, OSError):
            files.make_folder(self.path)
            if large.size(point.tensors) <= _SHARE * shutil.disk_usage(self.path).free:
                checkpoint.save(self.path, point, keep=1)
                return True
        return False

    def done(self) -> None:
        """What came of the run is safe: the point is needed no more."""
        with suppress(EquipoiseError):
            files.remove_folder(self.path)


class Course:
    """The rounds of one run, with what is written between them."""

    pause = 10
    """Times as long as a checkpoint took, if that was long, before the next."""

    def __init__(
        self,
        experiment: Experiment,
        simulation: Simulation,
        folder: RunFolder | MemoryRun,
        progress: Callable[[Progress], None] | None,
        tracked: tracking.Tracked,
        on_the_way: Mapping[int, Callable[[Result], None]] | None = None,
        kept: Kept | None = None,
    ) -> None:
        self.experiment, self.simulation, self.folder, self.kept = experiment, simulation, folder, kept
        self.progress, self.tracked, self.began = progress, tracked, time.monotonic()
        self._place = folder.path if isinstance(folder, RunFolder) else kept.path if kept else None
        """Where its checkpoints are, if anywhere."""
        self._not_before = -math.inf if isinstance(folder, RunFolder) else self.began + _SELDOM
        self.on_the_way = on_the_way or {}
        """Who is told, after so many rounds, what the run would be if it ended there."""
        self.stopped: str | None = None
        self.quarantined: set[int] = set()
        """Since the last evaluation."""
        self.series: list[dict[str, Any]] = []
        """The summary of every evaluation so far."""
        self._told: set[str] = set()
        self._essence = essence(experiment) if self._place else ""
        self._restore()

    def _point(self) -> checkpoint.Checkpoint | None:
        """Where to go on from, if there is such a point."""
        if self._place is None:
            return None
        point = checkpoint.load_latest(self._place, self.folder.log)
        if point is not None and any(round <= point.round for round in self.on_the_way):
            return None  # somebody waits for what was before
        if point is not None and point.meta.get("config", self._essence) != self._essence:
            hint = "put back what it was; as it is now it is another run, for equipoise run and another --out"
            raise EquipoiseError(f"{self._place / 'config.toml'} was changed after the run began", hint)
        return point

    def _restore(self) -> None:
        if self.kept:
            files.clean(self.kept.path)
        point = self._point()
        self.folder.discard_after(point.round if point else -1)
        if point is not None:
            self.simulation.load(point.state)
            self.stopped, self.series = point.meta["stopped"], _numbers(point.meta["series"])
            self.quarantined = set(point.meta["quarantined"])
            for found in self.series:
                self.tracked.log(found)
            if isinstance(self.folder, MemoryRun):
                self.folder.unpack(point.state)
            if self.kept:
                self.kept.by[:0] = [who for who in point.meta["by"] if who not in self.kept.by]
                self.kept.seconds += point.meta["seconds"]

    def finish(self) -> Result:
        simulation, rounds = self.simulation, self.experiment.scenario.train.rounds
        if simulation.round == 0:
            s = self.experiment.scenario
            for text in cautions(self.experiment.method, s.attack, s.admission, s.federation.n_clients):
                self.folder.log(f"warning: {text}")
        self.folder.mark("running", simulation.round)
        with _interrupts() as interrupted, told(self._alone) if self.progress else nullcontext():
            while simulation.round < rounds and self.stopped is None:
                self._round()
                if interrupted():
                    saved = self._save()
                    self.folder.mark("interrupted", simulation.round)
                    how = self.folder.goes_on if isinstance(self.folder, RunFolder) else ""
                    how = "the same command goes on from there" if self.kept and saved else how
                    raise Interrupted(self._place if saved else None, simulation.round, how)
        if not self.series:  # no round at all: what was asked for is the initial model
            self._evaluate()
        return self._result()

    @phase("write")
    def _result(self) -> Result:
        simulation = self.simulation
        personal = simulation.personal() if self.folder.models else None
        own = None if personal is None else dict(zip(personal[0].tolist(), personal[1], strict=True))
        return self.folder.finish(self._summary(), simulation.server.w, own, simulation.server.layout)

    def _round(self) -> None:
        start, run = time.monotonic(), self.experiment.run
        record = self.simulation.step()
        with phase("write"):
            self.folder.append("rounds", _row(record))
        for text in self.simulation.remarks:
            if text not in self._told:
                self.folder.log(text)
                self._told.add(text)
        self.quarantined |= set(record.quarantined)
        self.stopped = record.stop
        done, rounds = self.simulation.round, self.experiment.scenario.train.rounds
        trained = time.monotonic()
        last = done == rounds or self.stopped is not None
        if last:
            self.simulation.finish()
        early = None if last else self.on_the_way.get(done)
        if last or early or (run.eval_every and done % run.eval_every == 0):
            self._evaluate()
        if early:
            early(self._result())
        self.folder.time(done, {"train": trained - start, "evaluate": time.monotonic() - trained})
        if self._due(done, last):
            self._save()
        if self.progress:
            accuracy = self.series[-1].get("accuracy_mean") if self.series else None
            self.progress(Progress(done, rounds, time.monotonic() - self.began, record.skipped, accuracy))

    def _alone(self, alone: Alone) -> None:
        assert self.progress is not None
        done, rounds = self.simulation.round, self.experiment.scenario.train.rounds
        self.progress(Progress(done, rounds, time.monotonic() - self.began, alone=alone))

    def _due(self, done: int, last: bool) -> bool:
        """Whether a checkpoint is; who keeps a point of a run in memory has no use for it once that has ended."""
        rested = time.monotonic() >= self._not_before
        if self.kept:
            return rested and not last
        return last or (rested and done % self.experiment.run.checkpoint_every == 0)

    @phase("evaluate")
    def _evaluate(self) -> None:
        simulation = self.simulation
        flags = np.zeros(simulation.n_clients, dtype=bool)
        flags[sorted(self.quarantined)] = True
        found: dict[str, Any] = {"round": simulation.round}
        for split in ("validation", "test") if self.experiment.run.splits == "all" else ("validation",):
            if not bool(simulation.scenario.federation.splits[split].size.any()):
                continue
            for model, evaluation in simulation.evaluate(split).items():
                malicious = simulation.malicious.numpy()
                where = {"round": simulation.round, "split": split, "model": model}
                columns = metrics.table(evaluation, malicious=malicious, quarantined=flags, **where)  # type: ignore[arg-type]
                with phase("write"):
                    self.folder.append("clients", columns)
                numbers = metrics.summarise(columns, split, model)
                main = split == "test" and (model == "personal" or not simulation.method.client.personalised)
                found.update(numbers if main else {f"{split}_{model}_{k}": v for k, v in numbers.items()})
        success = simulation.success()
        if success is not None:
            found["attack_success"] = success
        self.quarantined = set()
        self.series.append(found)
        self.tracked.log(found)

    @phase("write")
    def _save(self) -> bool:
        """Whether there is a point to go on from."""
        done, began = self.simulation.round, time.monotonic()
        self.folder.flush(done)
        if self._place is None:
            return False
        meta: dict[str, Any] = {"stopped": self.stopped, "quarantined": sorted(self.quarantined), "series": self.series}
        meta["config"], tensors = self._essence, self.simulation.point()
        if isinstance(self.folder, MemoryRun):
            tensors |= self.folder.packed()
        if self.kept:
            meta |= {"by": self.kept.by, "seconds": self.kept.seconds + began - self.began}
        point = checkpoint.Checkpoint(done, tensors, meta, self.folder.parts)
        saved = True
        if self.kept:
            saved = self.kept.save(point)
        else:
            checkpoint.save(self._place, point)
        now = time.monotonic()
        pause = self.pause * (now - began) if now - began > _LONG else 0.0
        self._not_before = now + max(pause, _SELDOM if self.kept else 0.0)
        return saved

    def _summary(self) -> dict[str, Any]:
        last, rounds = self.series[-1], [s["round"] for s in self.series]
        late = {}
        for name in LATE:
            if name in last:
                late[f"{name}_last_tenth"] = metrics.last_tenth(rounds, [s[name] for s in self.series])
        labels = dict(self.experiment.labels or {})
        return {**labels, "rounds": self.simulation.round, "stopped": self.stopped, **last, **late}


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: the first finishes the round, a second one stops at once."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def handle(number: int, frame: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _row(record: RoundRecord) -> dict[str, Any]:
    return {
        "round": record.round,
        "lr": record.lr,
        "drawn": len(record.drawn),
        "admitted": len(record.admitted),
        "quarantined": len(record.quarantined),
        "skipped": record.skipped,
        "conflicts": record.conflicts.get("model", 0),
        "info": {
            "drawn": list(record.drawn),
            "admitted": list(record.admitted),
            "quarantined": {str(i): reason for i, reason in sorted(record.quarantined.items())},
            "conflicts": record.conflicts,
            **{name: _plain(value) for name, value in record.info.items()},
        },
    }


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _numbers(series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON has no NaN: what came back as null was one."""
    return [{name: float("nan") if value is None else value for name, value in row.items()} for row in series]
