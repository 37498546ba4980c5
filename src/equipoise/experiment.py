"""From a config, or from objects, to a finished run: what happens around the rounds.

After every `eval_every` rounds each client is evaluated; after every `checkpoint_every` rounds the run can be resumed
from there. A resumed run repeats the rounds since its last checkpoint with the same random numbers, so it ends with
the same bytes as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import platform
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import config as configs
from equipoise import metrics, models, tracking
from equipoise.core import Method, Stop
from equipoise.data import load, partition
from equipoise.data.federation import Federation
from equipoise.data.own import from_folder
from equipoise.data.synthetic import SYNTHETIC
from equipoise.engine import checkpoint
from equipoise.engine.cautions import cautions
from equipoise.engine.phases import phase
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.server import RoundRecord
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.errors import EquipoiseError, nearest
from equipoise.results import MemoryRun, Result, RunFolder, load_result
from equipoise.streams import Stream
from equipoise.threat import Attack


class Interrupted(Exception):
    """The user stopped the run; it can be resumed from `path` (None: it had no folder)."""

    def __init__(self, path: Path | None, round: int) -> None:
        where = f"resume with: equipoise resume {path}" if path else "it had no folder, so nothing is kept"
        super().__init__(f"stopped after round {round}; {where}")
        self.path, self.round = path, round

    def __reduce__(self) -> tuple[Any, ...]:  # so that it comes back whole from another process
        return type(self), (self.path, self.round)


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    round: int
    rounds: int
    seconds: float
    note: str = ""
    accuracy: float | None = None
    """Mean accuracy of the last evaluation."""


@dataclass(frozen=True)
class Experiment:
    """One run, with nothing left to decide."""

    scenario: Scenario
    method: Method
    run: Run
    config: str = ""
    """The resolved config it was made from, if it was."""
    labels: Mapping[str, Any] | None = None
    """What to call it in tables: method, attack, dataset, seed."""


# ------------------------------------------------------------------------------------------ putting together


def build(config: configs.Config, federation: Federation | None = None) -> Experiment:
    """Load the data (unless it is given), split it, make the model: what can fail before the first round fails here."""
    federation = federation or make_federation(config.data, config.run.seed)
    stream = Stream(config.run.seed).child("init")
    shape = tuple(federation.data.x.shape[1:])
    params = dict(config.model.params)
    module = models.build(config.model.name, shape, federation.data.classes, stream, **params)
    method, attack = config.make_method(), config.make_attack()
    scenario = Scenario(federation, module, config.train, config.participation, config.admission, attack)
    labels = {
        "method": config.method.name,
        "attack": config.attack.name if config.attack else "none",
        "dataset": config.data.dataset,
        "seed": config.run.seed,
    }
    return Experiment(scenario, method, config.run, configs.dump(config), labels)


def make_federation(data: configs.Data, seed: int) -> Federation:
    """The federation that a [data] section describes."""
    chosen = seed if data.seed is None else data.seed
    if data.dataset.startswith("folder:"):
        path = Path(data.dataset.removeprefix("folder:"))
        return from_folder(path, test=data.test, validation=data.validation, seed=chosen)
    if data.dataset in SYNTHETIC:
        return SYNTHETIC[data.dataset](seed=chosen, **data.options)
    kind = dict(data.partition)
    dataset = load(data.dataset, download=data.download, **data.options)
    return partition(
        dataset,
        kind.pop("kind"),
        clients=data.clients,
        test=data.test,
        validation=data.validation,
        test_set=data.test_set,
        root=data.root,
        seed=chosen,
        **kind,
    )


def run(
    federation: Federation,
    method: Method | None = None,
    *,
    model: str | Mapping[str, Any] | nn.Module = "mlp",
    attack: Attack | None = None,
    admission: Admission | None = None,
    out: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    track: tracking.Tracker | None = None,
    **settings: Any,
) -> Result:
    """Run a method on a federation. `settings` are those of [train], [participation] and [run], by name.

        result = run(federation, fedprox(mu=0.1), model="mlp", rounds=20, lr=0.1, per_round=5, seed=1)

    `model` is a kind ("mlp"), a kind with parameters ({"kind": "mlp", "hidden": [64]}) or any nn.Module, whose weights
    are then the initial model.
    """
    made = {kind: _take(kind, settings) for kind in (Train, Participation, Run)}
    if settings:
        name = next(iter(settings))
        known = [f for kind in made for f in kind.__dataclass_fields__]
        raise EquipoiseError(f"run: there is no setting {name!r}", nearest(name, known))
    method, chosen = method or Method(), made[Run]
    if not isinstance(model, nn.Module):
        spec = {"kind": model} if isinstance(model, str) else dict(model)
        shape = tuple(federation.data.x.shape[1:])
        stream = Stream(chosen.seed).child("init")
        model = models.build(spec.pop("kind"), shape, federation.data.classes, stream, **spec)
    scenario = Scenario(federation, model, made[Train], made[Participation], admission or Admission(), attack)
    labels = {
        "method": method.name,
        "attack": "none" if attack is None else type(attack).__name__,
        "dataset": federation.data.name,
        "seed": chosen.seed,
    }
    experiment = Experiment(scenario, method, chosen, labels=labels)
    return execute(experiment, Path(out) if out else None, progress, track=track)


def _take(kind: Callable[..., Any], settings: dict[str, Any]) -> Any:
    names = [n for n in settings if n in kind.__dataclass_fields__]  # type: ignore[attr-defined]
    return kind(**{n: settings.pop(n) for n in names})


# ------------------------------------------------------------------------------------------ running


def execute(
    experiment: Experiment,
    out: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    *,
    reached: Callable[[Stop], Tensor] | None = None,
    track: tracking.Tracker | None = None,
    models: bool = True,
) -> Result:
    """Run it to the end, from the last checkpoint in `out` if there is one; a finished run is only read.

    `reached` gives the models that clients reach alone, where somebody keeps them; else they are trained if need be.
    Without `models`, a run without a folder gives back only its tables: hundreds of personal models may fill a memory.
    """
    simulation = Simulation(experiment.scenario, experiment.method, experiment.run)
    simulation.simulator.reached = reached
    record = recorded(experiment, out)
    folder = RunFolder.create(out, record, environment(simulation)) if out else MemoryRun(record, models)
    try:
        if isinstance(folder, RunFolder) and folder.finished:
            return load_result(folder.path)
        with tracking.Tracked(track, "", _params(experiment)) as tracked:
            result = Course(experiment, simulation, folder, progress, tracked).finish()
            tracked.done(result.summary())
            return result
    finally:
        folder.close()


def resume(
    out: Path, progress: Callable[[Progress], None] | None = None, track: tracking.Tracker | None = None
) -> Result:
    """Go on with the run in a folder."""
    text = RunFolder.open(out).config.decode()
    if text.startswith(_IN_PYTHON):
        hint = "run the same script again with the same out=: it goes on from the last checkpoint"
        raise EquipoiseError(f"{out} was made from Python, so its parts are not in a config", hint)
    return execute(build(configs.load(text)), out, progress, track=track)


class Course:
    """The rounds of one run, with what is written between them."""

    def __init__(
        self,
        experiment: Experiment,
        simulation: Simulation,
        folder: RunFolder | MemoryRun,
        progress: Callable[[Progress], None] | None,
        tracked: tracking.Tracked,
    ) -> None:
        self.experiment, self.simulation, self.folder = experiment, simulation, folder
        self.progress, self.tracked, self.began = progress, tracked, time.monotonic()
        self.stopped: str | None = None
        self.quarantined: set[int] = set()
        """Since the last evaluation."""
        self.series: list[dict[str, Any]] = []
        """The summary of every evaluation so far."""
        self._restore()

    def _restore(self) -> None:
        point = (
            checkpoint.load_latest(self.folder.path, self.folder.log) if isinstance(self.folder, RunFolder) else None
        )
        if point is not None:
            self.simulation.load(dict(point.tensors))
            self.stopped, self.series = point.meta["stopped"], _numbers(point.meta["series"])
            self.quarantined = set(point.meta["quarantined"])
            for found in self.series:
                self.tracked.log(found)
        self.folder.discard_after(self.simulation.round if point else -1)

    def finish(self) -> Result:
        simulation, rounds = self.simulation, self.experiment.scenario.train.rounds
        if simulation.round == 0:
            s = self.experiment.scenario
            for text in cautions(self.experiment.method, s.attack, s.admission):
                self.folder.log(f"warning: {text}")
        self.folder.mark("running", simulation.round)
        with _interrupts() as interrupted:
            while simulation.round < rounds and self.stopped is None:
                self._round()
                if interrupted():
                    self._save()
                    self.folder.mark("interrupted", simulation.round)
                    raise Interrupted(getattr(self.folder, "path", None), simulation.round)
        if not self.series:  # no round at all: what was asked for is the initial model
            self._evaluate()
        with phase("write"):
            personal = simulation.personal() if self.folder.models else None
            own = None if personal is None else dict(zip(personal[0].tolist(), personal[1], strict=True))
            return self.folder.finish(self._summary(), simulation.server.w, own, simulation.server.layout)

    def _round(self) -> None:
        start, run = time.monotonic(), self.experiment.run
        record = self.simulation.step()
        with phase("write"):
            self.folder.append("rounds", _row(record))
        self.quarantined |= set(record.quarantined)
        self.stopped = record.stop
        done, rounds = self.simulation.round, self.experiment.scenario.train.rounds
        trained = time.monotonic()
        last = done == rounds or self.stopped is not None
        if last:
            self.simulation.finish()
        if last or (run.eval_every and done % run.eval_every == 0):
            self._evaluate()
        self.folder.time(done, {"train": trained - start, "evaluate": time.monotonic() - trained})
        if last or done % run.checkpoint_every == 0:
            self._save()
        if self.progress:
            accuracy = self.series[-1].get("accuracy_mean") if self.series else None
            self.progress(Progress(done, rounds, time.monotonic() - self.began, record.skipped, accuracy))

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
    def _save(self) -> None:
        done = self.simulation.round
        self.folder.flush(done)
        if isinstance(self.folder, RunFolder):
            meta = {"stopped": self.stopped, "quarantined": sorted(self.quarantined), "series": self.series}
            point = checkpoint.Checkpoint(done, self.simulation.dump(), meta, self.folder.parts)
            checkpoint.save(self.folder.path, point)

    def _summary(self) -> dict[str, Any]:
        last, rounds = self.series[-1], [s["round"] for s in self.series]
        late = {}
        for name in ("accuracy_mean", "accuracy_std", "worst_10"):
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


# ------------------------------------------------------------------------------------------ the record


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


def _params(experiment: Experiment) -> dict[str, Any]:
    """What a tracker is told of a run: its config or, without one, its labels and settings."""
    if experiment.config:
        return tomllib.loads(experiment.config)
    s = experiment.scenario
    settings: tuple[Any, ...] = (s.train, s.participation, s.admission, experiment.run)
    return {**(experiment.labels or {}), **{type(part).__name__.lower(): asdict(part) for part in settings}}


_IN_PYTHON = "# made from Python"


def recorded(experiment: Experiment, out: Path | None = None) -> bytes:
    """What tells this run from others.

    The config that is in the folder stands if it says the same: it may be older than a setting, whose default it means,
    or have another of those on which no result depends.
    """
    if not experiment.config:
        return _described(experiment).encode()
    with suppress(EquipoiseError):  # no run there, or not one that can be read: whoever opens the folder says so
        held = RunFolder.open(out).config if out else b""
        if _essence(held.decode(errors="replace")) == _essence(experiment.config):
            return held
    return experiment.config.encode()


def _essence(config: str) -> str:
    """A config without what changes no result."""
    return configs.dump(configs.load(config, ['run.personal="auto"', "run.workers=1"]))


def _described(experiment: Experiment) -> str:
    """A record of a run that was put together in Python: enough to tell it from another, not to rebuild it."""
    s = experiment.scenario
    weights = b"".join(p.detach().cpu().contiguous().numpy().tobytes() for p in s.model.parameters())
    parts = {
        "method": experiment.method,
        "model": f"{type(s.model).__name__}, initial weights {hashlib.sha256(weights).hexdigest()[:16]}",
        "federation": f"{s.federation.data.name}, {s.federation.n_clients} clients, {s.federation.partition}",
        "train": s.train,
        "participation": s.participation,
        "admission": s.admission,
        "attack": s.attack,
        "run": replace(experiment.run, workers=1),
    }
    return _IN_PYTHON + "\n" + "".join(f"# {name}: {value}\n" for name, value in parts.items())


def environment(simulation: Simulation) -> dict[str, Any]:
    """What the numbers may depend on besides the config."""
    packages = ("equipoise", "torch", "numpy", "pyarrow", "safetensors")
    device = simulation.server.w.device
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in packages},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "executor": "vmap" if simulation.vectorised else "loop",
        "executor_reason": simulation.executor_reason,
        "precision": simulation.settings.precision,
        "threads": torch.get_num_threads(),
    }
