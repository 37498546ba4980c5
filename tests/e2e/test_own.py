"""Parts of one's own, on every command that may meet them; each command is a process of its own, and knows nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import files, registry
from equipoise.cli import app

DOC = '"""In one line.\n\nNobody, 2026.\n\n    a = b\n\nDepartures: none.\n"""\nfrom dataclasses import dataclass\n'
PARTS = {
    "lazy.py": DOC
    + """from equipoise.core import SGD, Method, ServerRule, WeightedMean

def lazy(server: ServerRule = WeightedMean()) -> Method:
    return Method("lazy", SGD(), server)
""",
    "half.py": DOC
    + """from equipoise.core import Aggregator

@dataclass(frozen=True)
class Half(Aggregator):
    by: float = 2.0

    def combine(self, cohort):
        return cohort.updates.mean(0) / self.by
""",
    "same.py": DOC
    + """from equipoise.core import Filter

@dataclass(frozen=True)
class Same(Filter):
    def __call__(self, cohort):
        return cohort, {}
""",
    "mute.py": DOC
    + """from equipoise.threat import Attack

@dataclass(frozen=True, kw_only=True)
class Mute(Attack):
    left: float = 0.0

    def corrupt(self, seen):
        return self.left * seen.own
""",
}
MODEL = """import math
from torch import nn

def tiny(shape, classes, *, width: int = 4, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width, bias), nn.ReLU(), nn.Linear(width, classes))
"""
OWN = [word for name in [*PARTS, "tiny.py"] for word in ("--own", name)]
RUN = """
[data]
dataset = "digits"
clients = 6
validation = 0.2
[model]
kind = "tiny"
width = 5
[train]
rounds = 2
steps = 2
lr = 0.1
"""
METHOD = '{ name = "lazy", server = { name = "half", by = 3.0 }, filters = [{ name = "same" }] }'
CONFIG = f'method = {METHOD}\nattack = {{ name = "mute", fraction = 0.5 }}\n{RUN}'
AUDIT = f"""
[audit]
methods = ["fedavg", {METHOD}]
attacks = ["none", {{ name = "mute", fraction = 0.5 }}]
alone_epochs = 2
{RUN}
"""
TABLE = f"""
title = "Ours"
source = "nobody"
measures = ["accuracy_mean"]
{RUN.replace("[", "[run.")}
[columns.all]
title = "all"
[rows.lazy]
title = "lazy"
set.method = {METHOD}
"""


def equipoise(*args: str) -> Any:
    registry._OWN.clear()
    return CliRunner().invoke(app, list(args))


def done(*args: str) -> Any:
    told = equipoise(*args)
    assert told.exit_code == 0, told.output
    return told


@pytest.fixture(autouse=True)
def _in_a_folder_with_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {**PARTS, "tiny.py": MODEL, "run.toml": CONFIG, "audit.toml": AUDIT}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "tables" / "us").mkdir(parents=True)
    (tmp_path / "tables" / "us" / "ours.toml").write_text(TABLE)


@pytest.mark.parametrize("name", PARTS)
def test_every_kind_of_part_is_checked(name: str) -> None:
    assert f"{name.removesuffix('.py')} keeps the contract" in done("check", name).stdout


@pytest.mark.parametrize(
    ("name", "good", "bad", "told"),
    [
        ("half.py", "cohort.updates.mean(0)", "cohort.updates.mul_(2).mean(0)", "updates was changed in place"),
        ("mute.py", "self.left * seen.own", "seen.own.mul_(self.left)", "own was changed in place"),
        ("mute.py", "frozen=True, kw_only=True", "kw_only=True", "cannot inherit non-frozen"),
        ("same.py", "return cohort, {}", "cohort.updates.zero_(); return cohort, {}", "updates was changed in place"),
        ("same.py", "@dataclass(frozen=True)\n", "", "Same is not a dataclass"),
        ("mute.py", "Departures: none.", "", "the docstring has no departures"),
    ],
)
def test_a_part_that_breaks_a_promise_is_told_which(name: str, good: str, bad: str, told: str) -> None:
    Path(name).write_text(PARTS[name].replace(good, bad))
    found = equipoise("check", name)
    assert found.exit_code == 2, found.output
    assert told in found.output


def test_a_run_takes_parts_of_ones_own_and_is_resumed_with_them() -> None:
    summary = json.loads(done("run", "run.toml", "--out", "mine", "-q", "--json", *OWN).stdout)
    assert (summary["method"], summary["attack"]) == ("lazy", "mute")
    refused = equipoise("resume", "mine")
    assert refused.exit_code == 2 and "which is not known" in refused.stderr
    done("resume", "mine", "-q", *OWN)
    done("report", "mine", "--out", "page.html", *OWN)
    assert "lazy" in done("compare", "mine").stdout


def test_an_audit_is_run_in_processes_reported_and_asked_with_them() -> None:
    rows = json.loads(done("audit", "audit.toml", "--workers", "2", "-q", "--json", *OWN).stdout)
    assert {(row["method"], row["attack"], row["runs"]) for row in rows} == {
        (method, attack, 1) for method in ("fedavg", "lazy") for attack in ("none", "mute")
    }
    for command in (["report", "runs/audit", "--format", "csv"], ["advise", "runs/audit", "--json"]):
        refused = equipoise(*command)
        assert refused.exit_code == 2 and "which is not known" in refused.stderr
        done(*command, *OWN)


def test_a_sweep_takes_them() -> None:
    told = done("sweep", "run.toml", "--set", "train.lr=[0.1, 0.2]", "--workers", "1", "-q", "--json", *OWN)
    assert set(json.loads(told.stdout)["chosen"]) == {"train.lr"}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_table_of_ones_own_takes_them(workers: str) -> None:
    told = done("reproduce", "us/ours", "--experiments", "tables", "--out", "kept", "--workers", workers, "-q", *OWN)
    assert "lazy" in told.stdout and "failed" not in told.stderr
    assert (
        done("reproduce", "us/ours", "--experiments", "tables", "--out", "kept", "--show", *OWN).stdout == told.stdout
    )
    assert equipoise("reproduce", "us/ours", "--experiments", "tables", "--out", "kept", "--show").exit_code == 2


# ---------------------------------------------------------------------------------- files that change under results


def edit(name: str, old: str, new: str) -> None:
    text = Path(name).read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new))


def refused(*args: str) -> str:
    told = equipoise(*args)
    assert told.exit_code == 2, told.output
    return str(told.stderr)


def mtimes(folder: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*") if path.is_file()}


def stopped(out: str) -> None:
    """The run, killed after its first round."""
    from equipoise import config, experiment

    registry._OWN.clear()
    for name in (*PARTS, "tiny.py"):
        registry.load_file(Path(name))

    def stop(progress: experiment.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.execute(experiment.build(config.load(Path("run.toml"), ["run.checkpoint_every=1"])), Path(out), stop)


def test_a_run_is_not_resumed_with_another_trace_of_who_is_there() -> None:
    rows = [f"{client},0,{99 if client else 5}" for client in range(6)]
    Path("there.csv").write_text("\n".join(["client,from,to", *rows]))
    done("run", "run.toml", "--out", "traced", "-q", "--set", 'participation.trace="there.csv"', *OWN)
    edit("there.csv", "0,0,5", "0,0,6")
    told = refused("resume", "traced", *OWN)
    assert "the file of participation.trace is not the one that traced was made with: sha256 " in told


@pytest.mark.parametrize(
    ("name", "old", "new", "part"),
    [
        ("lazy.py", "SGD(), server", "SGD(),  server", "method lazy"),
        ("half.py", "by: float = 2.0", "by: float = 2.5", "server rule half"),
        ("same.py", "return cohort, {}", "return cohort, {'a': 1}", "filter same"),
        ("mute.py", "self.left * seen.own", "self.left / 2 * seen.own", "attack mute"),
        ("tiny.py", "nn.ReLU()", "nn.Tanh()", "model tiny"),
    ],
)
def test_a_run_is_not_resumed_with_another_file(name: str, old: str, new: str, part: str) -> None:
    stopped("mine")
    shutil.copytree("mine", "whole")
    done("resume", "whole", "-q", *OWN)
    edit(name, old, new)
    for command in (["resume", "mine"], ["resume", "whole"], ["report", "whole", "--out", "page.html"]):
        told = refused(*command, *OWN)
        assert f"the file of {part} is not the one that {command[1]} was made with: sha256 " in told
        assert "hint: put the file back as it was, or run anew: with another --out" in told
    noted = files.read_json(Path("mine/environment.json"))
    before, now = noted["own"][part], files.sha256(Path(name))
    assert f"sha256 {before[:12]}... then, {now[:12]}... now" in told
    Path(name).write_text({**PARTS, "tiny.py": MODEL}[name])
    done("resume", "mine", "-q", *OWN)
    assert Path("mine/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_a_run_from_before_files_were_noted_is_resumed() -> None:
    stopped("mine")
    noted = files.read_json(Path("mine/environment.json"))
    del noted["own"]
    files.write_json(Path("mine/environment.json"), noted)
    edit("half.py", "float = 2.0", "float = 2.5")
    done("resume", "mine", "-q", *OWN)


def test_a_file_that_a_run_does_not_use_may_change() -> None:
    Path("run.toml").write_text(CONFIG.replace(', filters = [{ name = "same" }]', ""))
    stopped("mine")
    edit("same.py", "return cohort, {}", "return cohort, {'a': 1}")
    done("resume", "mine", "-q", *OWN)


def test_an_audit_is_neither_gone_on_with_nor_told_of_with_another_file() -> None:
    Path("audit.toml").write_text(AUDIT.replace('kind = "tiny"\nwidth = 5', 'kind = "linear"'))
    ask = ["audit", "audit.toml", "--workers", "1", "-q", "--json", *OWN]
    rows = json.loads(done(*ask).stdout)
    shutil.rmtree("runs/audit/cells/lazy--mute--s0")  # as if it had been stopped before this one
    edit("half.py", "/ self.by", "/ self.by / 2")
    before = mtimes("runs/audit/cells")
    for command in (ask, ["report", "runs/audit", *OWN], ["advise", "runs/audit", *OWN]):
        told = refused(*command)
        assert "the file of server rule half is not the one that runs/audit/cells/lazy--none--s0 was made with" in told
        assert "after removing this folder" in told
    assert mtimes("runs/audit/cells") == before and not Path("runs/audit/cells/lazy--mute--s0").exists()
    shutil.rmtree("runs/audit/cells/lazy--none--s0")
    again = json.loads(done(*ask).stdout)
    after = mtimes("runs/audit/cells")
    same = [path for path in before if "fedavg" in path.parts[3] and path.name == "model.safetensors"]
    assert same and all(after[path] == before[path] for path in same)  # what does not use the file is not run again
    assert again[0] == rows[0] and again != rows


def test_the_report_of_an_audit_says_which_files_were_used() -> None:
    done("audit", "audit.toml", "--workers", "1", "-q", *OWN)
    page = Path("runs/audit/report.html").read_text()
    assert all(files.sha256(Path(name)) in page for name in [*PARTS, "tiny.py"])


def test_a_sweep_does_not_go_on_with_another_file() -> None:
    ask = ["sweep", "run.toml", "--set", "train.lr=[0.1, 0.2]", "--workers", "1", "-q", "--out", "swept", *OWN]
    done(*ask)
    for path in ("swept/grid/001--s0", "swept/best"):
        shutil.rmtree(path)
    edit("lazy.py", "SGD(), server", "SGD(),  server")
    assert "the file of method lazy is not the one that swept/grid/000--s0 was made with" in refused(*ask)
    assert not Path("swept/grid/001--s0").exists()


def test_a_table_is_measured_anew_with_another_file_and_keeps_both() -> None:
    text = TABLE.replace("measures", "seeds = [0]\nmeasures") + '[rows.plain]\ntitle = "plain"\nset.method = "fedavg"\n'
    Path("tables/us/ours.toml").write_text(text.replace('kind = "tiny"\nwidth = 5', 'kind = "linear"'))
    ask = ["reproduce", "us/ours", "--experiments", "tables", "--out", "kept", "--workers", "1", *OWN]

    def measured() -> dict[str, int]:
        """How many entries each row has."""
        found = [e["row"] for e in files.read_json(Path("kept/us/measured/ours.json"))["entries"]]
        return {row: found.count(row) for row in ("lazy", "plain")}

    first = done(*ask)
    assert measured() == {"lazy": 1, "plain": 1} and "us/ours plain all seed 0" in first.stderr
    edit("half.py", "/ self.by", "/ self.by / 2")
    assert done(*ask, "--show").stdout != first.stdout
    second = done(*ask)
    assert measured() == {"lazy": 2, "plain": 1} and "us/ours plain all seed 0" not in second.stderr
    Path("half.py").write_text(PARTS["half.py"])
    third = done(*ask)
    assert third.stdout == first.stdout and measured() == {"lazy": 2, "plain": 1}
    assert "us/ours lazy all seed 0" not in third.stderr


def test_a_file_that_holds_no_part_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("x = 1\n")
    for command in (["run", "run.toml"], ["audit", "audit.toml"], ["advise", "runs/audit"], ["reproduce", "us/ours"]):
        refused = equipoise(*command, "--own", "none.py")
        assert refused.exit_code == 2
        assert "no method or server rule or filter or attack or model called 'none'" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_a_model_is_told_by_what_it_takes_and_has_no_contract() -> None:
    refused = equipoise("check", "tiny.py")
    assert refused.exit_code == 2 and "a model has no contract" in refused.stderr and "--dry-run" in refused.stderr


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        ("width: int = 4", "width: int = 4, more: int", "model.more is missing"),
        ("width: int = 4", "depth: int = 4", "model.width: unknown key"),
        ("width: int = 4", 'width: str = "4"', "model.width is 5"),
        ("return nn.Sequential(", "return (", "model tiny is a tuple"),
        ("    return", "    shape[7]\n    return", "model tiny: IndexError: tuple index out of range"),
        ("nn.ReLU()", "nn.BatchNorm1d(width)", "batch"),
        ("tiny(shape, classes", "tiny(size, classes", "a function that takes (shape, classes, ...)"),
        ("tiny", "small", "def tiny(shape, classes, ...) -> nn.Module"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_the_first_round(good: str, bad: str, told: str) -> None:
    Path("tiny.py").write_text(MODEL.replace(good, bad))
    refused = equipoise("run", "run.toml", "--out", "mine", *OWN)
    assert refused.exit_code == 2 and told in refused.stderr, refused.output
    assert not Path("mine").exists()


def test_a_model_may_have_a_methods_name_and_no_models() -> None:
    for name, code in {"fedavg": 0, "mlp": 2}.items():
        Path(f"{name}.py").write_text(MODEL.replace("tiny", name))
        Path("run.toml").write_text(CONFIG.replace("tiny", name))
        told = equipoise("run", "run.toml", "--dry-run", "-q", *OWN, "--own", f"{name}.py")
        assert told.exit_code == code, told.output
        assert code == 0 or "model 'mlp' is already there" in told.stderr


def test_initial_weights_are_the_runs_seeds_and_python_takes_the_model_by_name() -> None:
    import torch

    import equipoise as eq

    registry._OWN.clear()
    registry.load_file(Path("tiny.py"))
    federation = eq.partition(eq.load("digits"), "iid", clients=4)

    def start(seed: int) -> torch.Tensor:
        before = torch.get_rng_state()
        done = eq.run(federation, model={"kind": "tiny", "width": 3}, rounds=1, lr=1e-9, seed=seed, out=f"run-{seed}")
        assert torch.equal(torch.get_rng_state(), before) and done.path is not None
        assert files.read_json(done.path / "environment.json")["own"] == {"model tiny": files.sha256(Path("tiny.py"))}
        return files.read_tensors(done.path / "model.safetensors")[0]["1.weight"]

    assert start(0).shape == (3, 64) and not torch.equal(start(0), start(1))
