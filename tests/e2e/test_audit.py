"""Audits end to end: cells, measures, failure, resumption, sweep, and what the command line says."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise import metrics
from equipoise.audit import audit, gather, load_plan, read, run_audit
from equipoise.audit.data import MEASURES
from equipoise.audit.runner import folder
from equipoise.audit.sweep import load as load_grid
from equipoise.audit.sweep import run as run_grid
from equipoise.cli import app
from equipoise.data import find
from equipoise.errors import EquipoiseError
from equipoise.results import load_result

TEXT = """
[audit]
methods = ["fedavg", "local", { name = "fedprox", mu = 1.0 }]
attacks = ["none", { name = "sign-flip", fraction = 0.25, scale = 5.0 }]
seeds = [0, 1]
alone_epochs = 4
[data]
dataset = "digits"
clients = 8
partition = { kind = "dirichlet", alpha = 0.5, min_size = 20 }
[model]
kind = "linear"
[train]
rounds = 4
steps = 3
lr = 0.2
[run]
eval_every = 2
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audit") / "out"
    audit(TEXT, out)
    return out


def test_every_method_meets_every_attack_with_every_seed(done: Path) -> None:
    data = read(done)
    cells = {(m, a, s) for m in ("fedavg", "local", "fedprox") for a in ("none", "sign-flip") for s in (0, 1)}
    assert set(zip(data.cells["method"], data.cells["attack"], data.cells["seed"], strict=True)) == cells
    assert set(data.cells["status"]) == {"done"}
    assert set(MEASURES) <= set(data.cells)
    assert data.partition.shape == (8, 10)


def test_measures_equal_a_plain_recomputation_from_the_raw_tables(done: Path) -> None:
    data, plan = read(done), load_plan(done / "audit.toml")
    for cell in plan.cells:
        frame = pd.read_parquet(folder(done, cell) / "clients.parquet")
        last = frame[(frame["round"] == frame["round"].max()) & (frame["split"] == "test") & ~frame["malicious"]]
        own = last[last["model"] == ("personal" if cell.method == "local" else "global")]
        row = data.cells.filter(method=cell.method, attack=cell.attack, seed=cell.seed)
        accuracy = own["accuracy"].dropna()
        assert row["accuracy_mean"][0] == pytest.approx(accuracy.mean())
        assert row["accuracy_std"][0] == pytest.approx(accuracy.std(ddof=0))
        assert row["worst_10"][0] == pytest.approx(accuracy.sort_values().iloc[:1].mean())
        clients = data.clients.filter(method=cell.method, attack=cell.attack, seed=cell.seed, malicious=False)
        gaps = clients["gap"][~np.isnan(clients["gap"])]
        assert row["gap_variance"][0] == pytest.approx(np.var(gaps, ddof=1))
        rewards = pd.DataFrame({"a": clients["standalone"], "b": clients["accuracy"]}).dropna()
        assert row["pearson"][0] == pytest.approx(rewards["a"].corr(rewards["b"]))
        clean = data.clients.filter(method=cell.method, attack="none", seed=cell.seed).to_pandas()
        had = clean[clean["client"].isin(own["client"])]["accuracy"].dropna().mean()  # the same clients
        assert row["drop"][0] == pytest.approx(had - row["accuracy_mean"][0])
        if cell.method == "local":
            assert row["drop"][0] == 0.0  # who trains alone loses nothing to what others do


def test_two_processes_find_what_one_finds(done: Path, tmp_path: Path) -> None:
    half = ["audit.seeds=[1]"]  # starting the workers is slow enough
    audit(TEXT, tmp_path / "out", overrides=half, workers=2)
    for cell in load_plan(TEXT, half).cells:
        for name in ("summary.json", "model.safetensors", "clients.parquet"):
            assert (folder(done, cell) / name).read_bytes() == (folder(tmp_path / "out", cell) / name).read_bytes()


def test_a_cell_that_fails_loses_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.methods.fedprox import FedProx

    def broken(self: FedProx, *args: object) -> object:
        raise RuntimeError("this method is broken")

    monkeypatch.setattr(FedProx, "step", broken)
    data = audit(TEXT, tmp_path / "out")
    failed = data.cells.filter(status="failed")
    assert set(failed["method"]) == {"fedprox"} and len(failed) == 4
    assert all("this method is broken" in e for e in failed["error"])
    assert set(data.cells.filter(status="done")["method"]) == {"fedavg", "local"}


def test_killed_and_started_again_it_ends_the_same(done: Path, tmp_path: Path) -> None:
    plan, out = load_plan(TEXT), tmp_path / "out"
    for kill_at in (2, 5, 9):
        pid = os.fork()
        if pid == 0:

            def die(step: object, kill_at: int = kill_at) -> None:
                if step.done == kill_at:  # type: ignore[attr-defined]
                    os.kill(os.getpid(), signal.SIGKILL)

            try:
                run_audit(plan, out, report=die)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    whole, again = read(done), gather(plan, out, run_audit(plan, out))
    for table in ("cells", "clients", "curves"):
        a, b = getattr(whole, table), getattr(again, table)
        for name in a:
            if name != "seconds":
                assert np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f"), name


def test_another_audit_in_the_same_folder_is_refused(done: Path) -> None:
    with pytest.raises(EquipoiseError, match="another audit"):
        run_audit(load_plan(TEXT, ["train.rounds=5"]), done)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("audit.methods=[]", "audit.methods"),
        ('audit.methods=["fedavgg"]', "fedavgg"),
        ('audit.baseline="krum"', "audit.baseline"),
        ('audit.attacks=[{ name = "sign-flip" }]', "sign-flip"),
        ("audit.seed=[1]", "audit.seed"),
        ('method.name="fedavg"', "audit.methods"),
        ("audit.seeds=[1, 1]", "audit.seeds"),
        ('audit.methods=[{ name = "fedprox", mu = -1.0 }]', "mu"),
        ("run.seed=7", "run.seed is 7, and audit.seeds is [0, 1]"),
        ("data.test=0.0", "data.test is 0.0"),
        ("run.splits=validation", "run.splits is 'validation'"),
    ],
)
def test_a_bad_audit_is_told_what_is_wrong(change: str, names: str) -> None:
    with pytest.raises(EquipoiseError) as told:
        load_plan(TEXT, [change])
    assert names in told.value.message + told.value.hint
    assert told.value.hint


def test_without_seeds_of_its_own_an_audit_has_the_runs() -> None:
    text = TEXT.replace("seeds = [0, 1]\n", "")
    assert load_plan(text).seeds == (0,)
    assert {cell.config.run.seed for cell in load_plan(text, ["run.seed=7"]).cells} == {7}


def test_methods_of_one_name_are_told_apart_by_their_parameters() -> None:
    plan = load_plan(
        TEXT, ['audit.methods=["fedprox", { name = "fedprox", mu = 1.0 }, { name = "fedavg", label = "A" }]']
    )
    assert list(plan.methods) == ["fedprox", "fedprox(mu=1.0)", "A"]


def test_a_sweep_chooses_on_validation_data_and_tests_only_the_chosen(tmp_path: Path) -> None:
    text = TEXT.split("[audit]")[0] + TEXT[TEXT.index("[data]") :] + '[method]\nname = "fedprox"\nmu = [0.01, 50.0]\n'
    grid = load_grid(text, ["data.validation=0.2", "train.lr=[0.0001, 0.2]"])
    chosen = run_grid(grid, tmp_path / "out")
    assert chosen.settings == {"method.mu": 0.01, "train.lr": 0.2}
    assert len(chosen.scores) == 4
    for path in (tmp_path / "out" / "grid").iterdir():
        assert set(load_result(path).clients["split"]) == {"validation"}
    assert set(chosen.result.clients["split"]) == {"validation", "test"}
    record = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert record["chosen"] == {"method.mu": 0.01, "train.lr": 0.2}
    rows = load_result(tmp_path / "out" / "grid" / "000--s0").clients
    numbers = metrics.summarise({n: rows[n] for n in rows}, "validation", "global")
    scores = {tuple(s.values()): v for s, v in chosen.scores}
    assert scores[0.01, 0.0001] == pytest.approx(numbers["accuracy_mean"] - numbers["accuracy_std"])


def test_a_sweep_without_validation_data_or_without_lists_is_refused() -> None:
    text = TEXT[TEXT.index("[data]") :] + '[method]\nname = "fedprox"\n'
    with pytest.raises(EquipoiseError, match="no parameter has a list"):
        load_grid(text)
    with pytest.raises(EquipoiseError, match=r"data\.validation"):
        load_grid(text, ["method.mu=[0.1, 1.0]"])
    with pytest.raises(EquipoiseError, match=r"run\.seed is 7, and sweep\.seeds is \[1, 2\]"):
        load_grid(text, ["method.mu=[0.1, 1.0]", "data.validation=0.2", "sweep.seeds=[1, 2]", "run.seed=7"])


def test_a_sweep_takes_a_method_by_its_name_alone() -> None:
    text = 'method = "fedavg"\n' + TEXT[TEXT.index("[data]") :]
    grid = load_grid(text, ["train.lr=[0.1, 0.2]", "data.validation=0.2"])
    assert [grid.config(c, 0, "all").train.lr for c in grid.combinations()] == [0.1, 0.2]


def test_the_command_runs_reports_and_tells(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    args = ["audit", str(path), "--out", str(tmp_path / "out"), "--workers", "1"]
    told = CliRunner().invoke(app, [*args, "--set", 'audit.methods=["fedavg", "local"]', "--json"])
    assert told.exit_code == 0, told.output
    rows = json.loads(told.stdout)
    assert {(r["method"], r["attack"]) for r in rows} == {
        (m, a) for m in ("fedavg", "local") for a in ("none", "sign-flip")
    }
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
    again = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--format", "markdown"])
    assert again.exit_code == 0, again.output
    first, second = (tmp_path / name for name in ("first.html", "second.html"))
    for page in (first, second):
        told = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--no-times", "--out", str(page)])
        assert told.exit_code == 0, told.output
    assert first.read_bytes() == second.read_bytes()
    assert "wall time of the rounds" in (tmp_path / "out" / "report.html").read_text()
    assert "wall time of the rounds" not in first.read_text()


def test_an_attack_by_everyone_has_no_measures_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(TEXT)
    args = ["audit", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), "--workers", "1", "-q"]
    for change in ('methods=["fedavg"]', 'attacks=["none", { name = "sign-flip", fraction = 1.0 }]', "seeds=[0]"):
        args += ["--set", f"audit.{change}"]
    told = CliRunner().invoke(app, args)
    assert told.exit_code == 0, told.output
    assert "no measures under sign-flip: all clients are malicious" in told.stderr
    assert "no measures under none" not in told.stderr


@pytest.mark.parametrize("command", ["audit", "sweep"])
def test_missing_data_are_told_once_before_anything_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(find, "SYSTEM", ())
    monkeypatch.setattr(find, "cache", lambda: tmp_path / "cache")
    sweep = TEXT[TEXT.index("[data]") :] + '[method]\nname = "fedprox"\nmu = [0.1, 1.0]\n'
    (tmp_path / "small.toml").write_text(TEXT if command == "audit" else sweep)
    args = [str(tmp_path / "small.toml"), "--out", str(tmp_path / "out"), "--set", "data.dataset=mnist"]
    told = CliRunner().invoke(app, [command, *args, "--set", "data.validation=0.2", "--workers", "1"])
    assert told.exit_code == 2 and told.output.count("dataset mnist: missing files") == 1, told.output
    assert "hint: run `equipoise data get mnist`" in told.output and not (tmp_path / "out").exists()


def test_from_python_an_audit_is_run_read_reported_and_asked_by_name(done: Path, tmp_path: Path) -> None:
    data = eq.audit(TEXT, done)  # finished already: only read
    assert isinstance(data, eq.audit.AuditData) and eq.audit.audit is not eq.audit
    page = eq.report.write_report(data, tmp_path / "report.html")
    assert page.read_text().startswith("<!doctype html>")
    advice = eq.advise([eq.audit.read(done)], "accuracy")
    assert advice.method in ("fedavg", "local", "fedprox") and eq.advise is eq.audit.advise
