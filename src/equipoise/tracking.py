"""Runs as TensorBoard, MLflow or Weights & Biases show them, besides their own folder.

    equipoise run experiment.toml --track tensorboard       # pip install 'equipoise[tensorboard]'

Everything is written below the run's folder. Nothing asks a question, and nothing needs a network: Weights & Biases
stays offline (`wandb sync` sends it later) unless WANDB_API_KEY is set. A run that was stopped is told from its first
round again when it goes on, and takes the place of what was told before (Weights & Biases keeps both).
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

from equipoise import files
from equipoise.errors import EquipoiseError, nearest

_PROJECT = "equipoise"
_LONGEST = 500  # characters of a parameter that every version of MLflow takes


class Tracker(Protocol):
    """Where runs are told, one after the other."""

    def begin(self, name: str, params: Mapping[str, Any]) -> None:
        """A run begins. The name is empty for the run of the tracker's own folder."""

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """What an evaluation after that round found."""

    def end(self, measures: Mapping[str, float] | None) -> None:
        """The final measures; None if the run did not come to its end."""


class Tracked:
    """One run as a tracker is told of it: numbers only, and an end in any case. With no tracker nobody is told."""

    def __init__(self, tracker: Tracker | None, name: str, params: Mapping[str, Any]) -> None:
        self._tracker, self._name, self._params = tracker, name, flat(params)
        self._measures: dict[str, float] | None = None

    def __enter__(self) -> Tracked:
        if self._tracker:
            self._tracker.begin(self._name, self._params)
        return self

    def log(self, found: Mapping[str, Any]) -> None:
        """An evaluation, with its "round"."""
        if self._tracker:
            self._tracker.log(int(found["round"]), {k: v for k, v in numbers(found).items() if k != "round"})

    def done(self, measures: Mapping[str, Any]) -> None:
        self._measures = numbers(measures)

    def __exit__(self, *_: object) -> None:
        if self._tracker:
            self._tracker.end(self._measures)


def numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """What is a number, and was measured."""
    kept = {k: v for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {k: float(v) for k, v in kept.items() if v == v}


def flat(params: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Tables within tables as one: {"train": {"lr": 0.1}} is {"train.lr": 0.1}; what is no plain value is its text."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif value is not None:
            found[before + name] = value if isinstance(value, str | int | float) else str(value)
    return found


# -------------------------------------------------------------------------------------------------- the three


@dataclass
class TensorBoard:
    """Event files in `folder`/tensorboard, one folder below it for each named run."""

    folder: Path
    _writer: Any = field(default=None, init=False)
    module: ClassVar[str] = "torch.utils.tensorboard"
    calm: ClassVar[Mapping[str, str]] = {}

    def begin(self, name: str, params: Mapping[str, Any]) -> None:
        make = importlib.import_module(self.module).SummaryWriter
        # Purging makes the viewer forget what an earlier, stopped process wrote.
        self._writer = make(str(self.folder / "tensorboard" / name), purge_step=0)
        rows = "".join(f"| {key} | {value} |\n" for key, value in params.items())
        self._writer.add_text("params", f"| parameter | value |\n|---|---|\n{rows}", 0)

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, measures: Mapping[str, float] | None) -> None:
        for name, value in (measures or {}).items():
            self._writer.add_scalar(f"final/{name}", value, 0)
        self._writer.close()


@dataclass
class MLflow:
    """A store in `folder`/mlruns; `mlflow ui --backend-store-uri sqlite:///FOLDER/mlruns/mlflow.db` shows it.

    A database, because MLflow no longer takes plain folders (3.13 on).
    """

    folder: Path
    _run: str = field(default="", init=False)
    module: ClassVar[str] = "mlflow"
    calm: ClassVar[Mapping[str, str]] = {"MLFLOW_DISABLE_TELEMETRY": "true"}

    @cached_property
    def _client(self) -> Any:
        store = files.make_folder(self.folder / "mlruns").resolve() / "mlflow.db"
        return importlib.import_module(self.module).MlflowClient(tracking_uri=f"sqlite:///{store.as_posix()}")

    def _home(self) -> str:
        found = self._client.get_experiment_by_name(_PROJECT)
        if found is not None:
            return str(found.experiment_id)
        place = (self.folder / "mlruns" / "artifacts").resolve().as_uri()
        return str(self._client.create_experiment(_PROJECT, artifact_location=place))

    def begin(self, name: str, params: Mapping[str, Any]) -> None:
        home, name = self._home(), (name or self.folder.resolve().name).replace("'", "_")
        for old in self._client.search_runs([home], f"attributes.run_name = '{name}'"):
            self._client.delete_run(old.info.run_id)
        self._run = self._client.create_run(home, run_name=name).info.run_id
        kind = importlib.import_module("mlflow.entities").Param
        self._client.log_batch(self._run, params=[kind(k, str(v)[:_LONGEST]) for k, v in params.items()])

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        kind, now = importlib.import_module("mlflow.entities").Metric, int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[kind(k, v, now, round) for k, v in numbers.items()])

    def end(self, measures: Mapping[str, float] | None) -> None:
        self.log(0, {f"final/{name}": value for name, value in (measures or {}).items()})
        self._client.set_terminated(self._run, "FAILED" if measures is None else "FINISHED")


@dataclass
class WandB:
    """A run in `folder`/wandb: offline, unless WANDB_API_KEY is set and WANDB_MODE says nothing else."""

    folder: Path
    _run: Any = field(default=None, init=False)
    module: ClassVar[str] = "wandb"
    calm: ClassVar[Mapping[str, str]] = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}

    def begin(self, name: str, params: Mapping[str, Any]) -> None:
        self._run = importlib.import_module(self.module).init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=name or self.folder.resolve().name,
            config=dict(params),
            dir=str(files.make_folder(self.folder)),
            mode=os.environ.get("WANDB_MODE", "online") if os.environ.get("WANDB_API_KEY") else "offline",
        )

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=round)

    def end(self, measures: Mapping[str, float] | None) -> None:
        self._run.summary.update(dict(measures or {}))
        self._run.finish(exit_code=int(measures is None))


KINDS: Mapping[str, type[TensorBoard | MLflow | WandB]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def get(kind: str) -> type[TensorBoard | MLflow | WandB]:
    """A kind of tracker, whose package is there: `get("mlflow")(folder)`."""
    if kind not in KINDS:
        raise EquipoiseError(f"there is no tracker {kind!r}", nearest(kind, KINDS))
    found = KINDS[kind]
    for name, value in found.calm.items():
        os.environ.setdefault(name, value)
    try:
        importlib.import_module(found.module)
    except ImportError as error:
        raise EquipoiseError(f"track: {kind} is not installed", f"pip install 'equipoise[{kind}]'") from error
    return found
