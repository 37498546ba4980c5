"""What trackers are told of runs and audits, that it stays on this machine, and what is said when one is missing."""

import math
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import config, experiment, tracking
from equipoise.audit import record
from equipoise.audit.data import MEASURES
from equipoise.cli import app
from equipoise.errors import EquipoiseError
from tests.audits import make_audit

TEXT = """
[data]
dataset = "digits"
clients = 4
[model]
kind = "linear"
[train]
rounds = 6
steps = 1
[method]
name = "fedprox"
mu = 0.5
[run]
eval_every = 2
checkpoint_every = 2
"""


class Told:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.params: list[Mapping[str, Any]] = []
        self.logs: list[list[tuple[int, Mapping[str, float]]]] = []
        self.ends: list[Mapping[str, float] | None] = []

    def begin(self, name: str, params: Mapping[str, Any]) -> None:
        self.names.append(name)
        self.params.append(params)
        self.logs.append([])

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        self.logs[-1].append((round, numbers))

    def end(self, measures: Mapping[str, float] | None) -> None:
        self.ends.append(measures)


@pytest.fixture
def job() -> experiment.Experiment:
    return experiment.build(config.load(TEXT))


# ------------------------------------------------------------------------------------------------- what is told


def test_a_run_tells_its_config_each_evaluation_when_it_happens_and_its_summary(job: experiment.Experiment) -> None:
    told = Told()
    seen: list[int] = []
    result = experiment.execute(job, None, lambda p: seen.append(len(told.logs[-1])), track=told)
    assert told.params[0]["train.rounds"] == 6 and told.params[0]["method.mu"] == 0.5
    assert [r for r, _ in told.logs[0]] == [2, 4, 6] and seen == [0, 1, 1, 2, 2, 3]
    summary = result.summary()
    assert told.logs[0][-1][1]["accuracy_mean"] == summary["accuracy_mean"]
    assert told.ends == [tracking.numbers(summary)] and "round" not in told.logs[0][0][1]


def test_a_tracker_changes_nothing_about_the_run(job: experiment.Experiment, tmp_path: Path) -> None:
    for name, track in (("with", Told()), ("without", None)):
        experiment.execute(job, tmp_path / name, track=track)
    for file in ("summary.json", "model.safetensors", "clients.parquet", "config.toml"):
        assert (tmp_path / "with" / file).read_bytes() == (tmp_path / "without" / file).read_bytes()


def test_a_run_that_is_stopped_is_told_so_and_told_whole_when_it_goes_on(
    job: experiment.Experiment, tmp_path: Path
) -> None:
    def press(progress: experiment.Progress) -> None:
        if progress.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    told = Told()
    with pytest.raises(experiment.Interrupted):
        experiment.execute(job, tmp_path / "run", press, track=told)
    experiment.resume(tmp_path / "run", track=told)
    whole = Told()
    experiment.execute(job, track=whole)
    assert told.ends == [None, whole.ends[0]]
    assert told.logs == [whole.logs[0][:1], whole.logs[0]]


def test_a_finished_run_is_not_told_again(job: experiment.Experiment, tmp_path: Path) -> None:
    experiment.execute(job, tmp_path / "run")
    told = Told()
    experiment.execute(job, tmp_path / "run", track=told)
    assert told.names == []


def test_an_audit_tells_a_run_for_each_cell() -> None:
    data, told = make_audit(seeds=2, rounds=3, failed=[("ditto", "none", 1)]), Told()
    record(data, told)
    assert len(told.names) == len(set(told.names)) == 12 and "rffl--sign_flip--s1" in told.names
    for name, params, logs, end in zip(told.names, told.params, told.logs, told.ends, strict=True):
        cell = data.cells.filter(**{k: params[k] for k in ("method", "attack", "seed")})
        if name == "ditto--none--s1":
            assert logs == [] and end is None
            continue
        assert end == {m: cell[m][0] for m in MEASURES if not math.isnan(cell[m][0])}
        assert [r for r, _ in logs] == [1, 2, 3] and set(logs[0][1]) == {"accuracy_mean", "accuracy_std", "worst_10"}
        assert params.get("of_method.lam") == (1.0 if "ditto" in name else None) and params["dataset"] == "made up"


def test_only_measured_numbers_are_told() -> None:
    assert tracking.numbers({"a": 1, "b": math.nan, "c": "x", "d": None, "e": True, "f": 0.5}) == {"a": 1.0, "f": 0.5}
    assert tracking.flat({"a": {"b": {"c": 1}, "d": None}, "e": [1]}) == {"a.b.c": 1, "e": "[1]"}


# ------------------------------------------------------------------------------------------------- the three


class Calls(list[tuple[str, Any]]):
    """Calls of a made-up package, in order."""

    def of(self, name: str) -> list[Any]:
        return [given for called, given in self if called == name]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Made-up packages in place of the three trackers'."""
    seen = Calls()

    def remember(name: str, answer: Any = None) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            seen.append((name, (args, more)))
            return answer

        return call

    def module(name: str, **attributes: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, made)

    methods = ("add_text", "add_scalar", "flush", "close")
    writer = SimpleNamespace(**{name: remember(name) for name in methods})
    module("torch.utils.tensorboard", SummaryWriter=remember("SummaryWriter", writer))
    old = SimpleNamespace(info=SimpleNamespace(run_id="old"))
    new = SimpleNamespace(info=SimpleNamespace(run_id="new"))
    client = SimpleNamespace(
        get_experiment_by_name=remember("get_experiment_by_name"),
        create_experiment=remember("create_experiment", "7"),
        search_runs=remember("search_runs", [old]),
        delete_run=remember("delete_run"),
        create_run=remember("create_run", new),
        log_batch=remember("log_batch"),
        set_terminated=remember("set_terminated"),
    )
    module("mlflow", MlflowClient=remember("MlflowClient", client))
    module("mlflow.entities", Param=lambda *a: a, Metric=lambda *a: a)
    summary = SimpleNamespace(update=remember("update"))
    run = SimpleNamespace(log=remember("log"), finish=remember("finish"), summary=summary)
    module("wandb", init=remember("init", run))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_SILENT", "WANDB_ERROR_REPORTING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    return seen


def track(kind: str, folder: Path, measures: Mapping[str, float] | None, name: str = "") -> None:
    tracker = tracking.get(kind)(folder)
    tracker.begin(name, {"train.lr": 0.1})
    tracker.log(10, {"accuracy_mean": 0.5})
    tracker.end(measures)


def test_tensorboard_writes_below_the_run_and_forgets_an_earlier_process(calls: Calls, tmp_path: Path) -> None:
    track("tensorboard", tmp_path, {"worst_10": 0.25})
    track("tensorboard", tmp_path, None, "cell")
    (first, more), (second, _) = calls.of("SummaryWriter")
    assert first == (str(tmp_path / "tensorboard"),) and second == (str(tmp_path / "tensorboard" / "cell"),)
    assert more == {"purge_step": 0}
    assert "| train.lr | 0.1 |" in calls.of("add_text")[0][0][1]
    scalars = [args for args, _ in calls.of("add_scalar")]
    assert scalars == [("accuracy_mean", 0.5, 10), ("final/worst_10", 0.25, 0), ("accuracy_mean", 0.5, 10)]
    assert len(calls.of("close")) == 2


def test_mlflow_writes_a_database_below_the_run_and_replaces_a_run_of_the_same_name(
    calls: Calls, tmp_path: Path
) -> None:
    folder = tmp_path / "it's mine"
    track("mlflow", folder, {"worst_10": 0.25})
    ((_, where),) = calls.of("MlflowClient")
    assert where == {"tracking_uri": f"sqlite:///{folder}/mlruns/mlflow.db"}
    assert calls.of("create_run") == [(("7",), {"run_name": "it_s mine"})]
    assert calls.of("search_runs")[0][0] == (["7"], "attributes.run_name = 'it_s mine'")
    assert calls.of("delete_run") == [(("old",), {})]
    batches = [(args, more) for args, more in calls.of("log_batch")]
    assert batches[0] == (("new",), {"params": [("train.lr", "0.1")]})
    metrics = [(m[0], m[1], m[3]) for _, more in batches[1:] for m in more["metrics"]]
    assert metrics == [("accuracy_mean", 0.5, 10), ("final/worst_10", 0.25, 0)]
    assert calls.of("set_terminated") == [(("new", "FINISHED"), {})]
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    track("mlflow", folder, None)
    assert calls.of("set_terminated")[-1] == (("new", "FAILED"), {})


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_MODE": "online"}, "offline"),
        ({"WANDB_API_KEY": "k"}, "online"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "offline"),
    ],
)
def test_wandb_stays_offline_without_a_key(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], mode: str
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    track("wandb", tmp_path / "mine", {"worst_10": 0.25})
    ((_, asked),) = calls.of("init")
    assert asked["mode"] == mode and asked["dir"] == str(tmp_path / "mine") and asked["name"] == "mine"
    assert asked["config"] == {"train.lr": 0.1} and os.environ["WANDB_SILENT"] == "true"
    assert calls.of("log") == [(({"accuracy_mean": 0.5},), {"step": 10})]
    assert calls.of("update") == [(({"worst_10": 0.25},), {})] and calls.of("finish") == [((), {"exit_code": 0})]


@pytest.mark.parametrize(
    ("kind", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
@pytest.mark.parametrize("command", ["run", "audit"])
def test_a_missing_package_is_told_before_anything_is_made(
    command: str, kind: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    text = TEXT if command == "run" else TEXT.replace('[method]\nname = "fedprox"\nmu = 0.5\n', "")
    (tmp_path / "a.toml").write_text(text if command == "run" else '[audit]\nmethods = ["fedavg"]\n' + text)
    args = [command, str(tmp_path / "a.toml"), "--track", kind, "--out", str(tmp_path / "out")]
    told = CliRunner().invoke(app, args)
    assert told.exit_code == 2 and f"pip install 'equipoise[{kind}]'" in told.output, told.output
    assert not (tmp_path / "out").exists()


def test_an_unknown_tracker_is_answered_with_the_nearest() -> None:
    with pytest.raises(EquipoiseError, match="tensorbord") as told:
        tracking.get("tensorbord")
    assert "tensorboard" in told.value.hint


def test_the_command_tracks_a_run_and_an_audit(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TEXT)
    args = ["run", str(tmp_path / "run.toml"), "--track", "wandb", "--out", str(tmp_path / "run"), "-q"]
    told = CliRunner().invoke(app, args)
    assert told.exit_code == 0, told.output
    assert [more["step"] for _, more in calls.of("log")] == [2, 4, 6] and len(calls.of("finish")) == 1
    text = TEXT.replace('[method]\nname = "fedprox"\nmu = 0.5\n', "")
    (tmp_path / "audit.toml").write_text('[audit]\nmethods = ["fedavg", "local"]\nalone_epochs = 1\n' + text)
    args = ["audit", str(tmp_path / "audit.toml"), "--track", "mlflow", "--out", str(tmp_path / "audit"), "-q"]
    told = CliRunner().invoke(app, [*args, "--workers", "1"])
    assert told.exit_code == 0, told.output
    assert [more["run_name"] for _, more in calls.of("create_run")] == ["fedavg--none--s0", "local--none--s0"]


@pytest.mark.filterwarnings("ignore")
def test_real_tensorboard_reads_back_what_was_told(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    track("tensorboard", tmp_path, None)  # stopped
    track("tensorboard", tmp_path, {"worst_10": 0.25})
    found = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"accuracy_mean", "final/worst_10"}
    assert [(e.step, e.value) for e in found.Scalars("accuracy_mean")] == [(10, 0.5)]
