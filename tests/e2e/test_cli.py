"""The command line, mostly in one process: messages, exit codes, streams."""

import itertools
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise import reference, registry
from equipoise.cli import app
from equipoise.cli.parts import show
from equipoise.cli.terminal import guarded, progress
from equipoise.config import dump, load
from equipoise.engine.waiting import Alone
from equipoise.experiment import Progress

EXAMPLE = """
[data]
dataset = "digits"
clients = 10
partition = { kind = "pathological", classes = 2 }
[model]
kind = "mlp"
hidden = [8]
[train]
rounds = 2
epochs = 1
batch = 50
lr = 0.05
lr_decay = 0.999
[participation]
per_round = 4
[method]
name = "fedprox"
mu = 0.1
[attack]
name = "label-noise"
fraction = 0.2
[run]
seed = 0
eval_every = 1
executor = "loop"
"""
CLEAN = EXAMPLE.replace('[attack]\nname = "label-noise"\nfraction = 0.2\n', "")
MINE = '''"""Mine."""
from equipoise.core import SGD, Method


def mine(strength: float = 1.0) -> Method:
    return Method("mine", SGD())
'''


def equipoise(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example.toml").write_text(EXAMPLE)
    (tmp_path / "clean.toml").write_text(CLEAN)
    yield
    registry._OWN.clear()


def test_a_traceback_is_shown_only_when_asked_for() -> None:
    assert "Traceback" in equipoise("run", "example.toml", "--set", "method.mu=-1", "-v").stderr
    assert "Traceback" not in equipoise("run", "example.toml", "--set", "method.mu=-1").stderr


# ---------------------------------------------------------------------------------------------------- starting up


def test_help_imports_no_torch() -> None:
    code = "import sys; from equipoise.cli import app; app(['--help'], standalone_mode=False)"
    code += "; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.endswith("False\n"), result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["resume"],
        ["compare"],
        ["list"],
        ["show"],
        ["doctor"],
        *(["data", c] for c in ("list", "get", "where", "verify")),
    ],
)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    result = equipoise(*command, "--help")
    assert result.exit_code == 0
    assert f"equipoise {' '.join(command)}" in result.stdout.split("Example", 1)[1]


@pytest.mark.parametrize(
    "args", [["run"], ["nope"], ["run", "a", "b"], ["list", "nothing"], ["run", "a", "--seed", "x"]]
)
def test_wrong_usage_exits_with_2(args: list[str]) -> None:
    result = equipoise(*args)
    assert result.exit_code == 2
    assert result.stdout == ""


# ---------------------------------------------------------------------------------------------------- running


def test_a_dry_run_prints_the_resolved_config_and_writes_nothing(tmp_path: Path) -> None:
    result = equipoise("run", "clean.toml", "--dry-run", "--seed", "5", "--set", "method.mu=0.3", "--device", "cpu")
    assert result.exit_code == 0, result.output
    config = load(result.stdout)
    assert (config.run.seed, config.data.seed, config.run.device) == (5, 5, "cpu")
    assert config.method.params["mu"] == 0.3
    assert dump(config) == result.stdout
    assert not (tmp_path / "runs").exists()
    as_json = equipoise("run", "clean.toml", "--dry-run", "--json")
    assert json.loads(as_json.stdout)["run"]["seed"] == 0


def test_a_run_leaves_a_folder_and_prints_its_summary(tmp_path: Path) -> None:
    result = equipoise("run", "clean.toml")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[0] == "accuracy_mean"
    assert "round 2/2" in result.stderr
    assert "runs/fedprox-digits-clean-s0" in result.stderr
    assert load(tmp_path / "runs/fedprox-digits-clean-s0/config.toml") == load(tmp_path / "clean.toml")


def test_a_second_run_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        assert equipoise("run", "clean.toml", "-q", "--set", "train.rounds=0").exit_code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "fedprox-digits-clean-s0",
        "fedprox-digits-clean-s0-2",
    ]


def test_json_is_one_object_on_stdout_and_quiet_leaves_stderr_empty() -> None:
    result = equipoise("run", "example.toml", "--json", "-q", "--out", "here")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["method"] == "fedprox"
    assert result.stderr == ""
    assert json.loads(Path("here/summary.json").read_text()) == json.loads(result.stdout)


def test_a_profile_tells_where_the_time_went_and_changes_no_result() -> None:
    result = equipoise("run", "example.toml", "--profile", "-q", "--out", "watched")
    assert result.exit_code == 0, result.output
    summary, table = result.stdout.split("\n\n")
    header, *rows = table.splitlines()
    assert header.split() == ["phase", "seconds", "share", "ms", "a", "round"]
    phases = ["draw", "gather", "train", "attack", "admission", "server rule", "evaluate", "write", "other", "all"]
    assert [row.split("  ")[0] for row in rows] == phases
    assert rows[-1].split()[2] == "100.0%"
    assert equipoise("run", "example.toml", "-q", "--out", "plain").stdout == summary + "\n"
    assert Path("watched/summary.json").read_bytes() == Path("plain/summary.json").read_bytes()


def test_a_profile_is_part_of_the_one_json_value() -> None:
    found = json.loads(equipoise("run", "example.toml", "--profile", "--json", "-q", "--out", "here").stdout)
    profile = found.pop("profile")
    assert found == json.loads(Path("here/summary.json").read_text())
    assert (profile["rounds"], profile["device_busy"]) == (2, None)
    assert sum(profile["seconds"].values()) == pytest.approx(profile["total"])
    again = json.loads(equipoise("run", "example.toml", "--profile", "--json", "-q", "--out", "here").stdout)
    assert again["profile"]["rounds"] == 0  # it was finished, and only read


def test_data_of_ones_own_come_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name in "abcde":
        np.savez(tmp_path / "own" / f"{name}.npz", x=np.eye(10, dtype=np.float32), y=np.arange(10) % 2)
    text = "[data]\ndataset = 'folder:own'\n" + CLEAN[CLEAN.index("[model]") :]
    (tmp_path / "own.toml").write_text(text)
    result = equipoise("run", "own.toml", "-q")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "runs/fedprox-own-clean-s0").is_dir()
    refused = equipoise("run", "own.toml", "--set", "participation.per_round=6", "--dry-run")
    assert refused.exit_code == 2
    assert "the federation has 5 clients" in refused.stderr


def test_an_attack_on_a_rule_that_is_not_robust_is_warned_of() -> None:
    told = equipoise("run", "example.toml", "--dry-run").stderr
    assert "warning: nothing in" in told and "defends against LabelNoise: WeightedMean does not" in told
    assert equipoise("run", "example.toml", "--dry-run", "--method", "local").stderr == ""
    assert equipoise("run", "clean.toml", "--dry-run").stderr == ""


def test_an_attack_by_nobody_is_warned_of() -> None:
    told = equipoise("run", "example.toml", "--dry-run", "--set", "attack.fraction=0.04").stderr
    assert told == "warning: LabelNoise has no attacker: fraction = 0.04 of 10 clients rounds to none\n"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("attack.fraction=1.0", "all clients are malicious, and measures are of benign ones"),
        ("data.test=0.0", "nobody was tested: there are no test samples (data.test)"),
        ("run.splits=validation", 'or run.splits is "validation"'),
    ],
)
def test_a_table_without_measures_is_shown_with_the_reason(change: str, told: str) -> None:
    made = equipoise("run", "example.toml", "-q", "--set", change, "--out", "r")
    assert made.exit_code == 0 and made.stdout.split() == ["measure", "value"]
    assert "no measures: " in made.stderr and told in made.stderr
    assert told in equipoise("compare", "r").stderr


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("years of work")
    result = equipoise("run", "clean.toml", "--out", "full")
    assert result.exit_code == 2
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    result = equipoise("run", "clean.toml", "--set", "train.loss=hinge")
    assert result.exit_code == 2
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    result = equipoise("run", "clean.toml")
    assert result.exit_code == 2
    assert "--out" in result.stderr


def test_runs_are_compared_one_row_each() -> None:
    for seed in ("1", "2"):
        assert equipoise("run", "clean.toml", "-q", "--seed", seed, "--out", f"s{seed}").exit_code == 0
    result = equipoise("compare", "s1", "s2")
    header, *rows = result.stdout.splitlines()
    assert header.split()[:4] == ["run", "method", "attack", "seed"]
    assert [row.split()[3] for row in rows] == ["1", "2"]
    assert [row["seed"] for row in json.loads(equipoise("compare", "s1", "s2", "--json").stdout)] == [1, 2]
    assert "loss_mean" in equipoise("compare", "s1", "--all").stdout
    assert equipoise("compare", "nowhere").exit_code == 2


def test_a_method_of_ones_own_is_run_from_its_file_and_only_from_there(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    result = equipoise("run", "clean.toml", "--method", "mine.py", "--set", "method.strength=2", "--out", "own", "-q")
    assert result.exit_code == 0, result.output
    assert tomllib.loads(Path("own/config.toml").read_text())["method"] == {"name": "mine", "strength": 2.0}
    registry._OWN.clear()
    refused = equipoise("resume", "own")
    assert refused.exit_code == 2
    assert "--own FILE.py" in refused.stderr
    assert equipoise("resume", "own", "--method", "mine.py", "-q").exit_code == 0
    assert equipoise("resume", "own", "--method", "fedavg").exit_code == 2


def test_a_config_cannot_name_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    result = equipoise("run", "clean.toml", "--set", 'method.name="./mine.py"', "--dry-run")
    assert result.exit_code == 2
    assert "it ran" not in result.output


def test_ctrl_c_exits_with_130_and_the_resumed_run_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    (tmp_path / "clean.toml").write_text(CLEAN.replace("rounds = 2", "rounds = 40").replace("every = 1", "every = 0"))
    main = "from equipoise.cli import main; main()"
    command = [sys.executable, "-c", main, "run", "clean.toml", "--out", "stopped", "-v"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        before = list(itertools.takewhile(lambda line: not line.startswith("round 1/"), process.stderr))
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(60) == 130, before
    assert "equipoise resume stopped" in told
    assert json.loads(Path("stopped/status.json").read_text())["state"] == "interrupted"
    assert equipoise("resume", "stopped", "-q").exit_code == 0
    assert equipoise("run", "clean.toml", "--out", "whole", "-q").exit_code == 0
    assert Path("stopped/summary.json").read_bytes() == Path("whole/summary.json").read_bytes()


def test_a_failure_that_is_nobodys_input_exits_with_1() -> None:
    @guarded
    def broken(verbose: bool = False) -> None:
        raise ZeroDivisionError("oh")

    with pytest.raises(BaseException, match="1") as caught:
        broken()
    assert getattr(caught.value, "exit_code", None) == 1


# ---------------------------------------------------------------------------------------------------- progress


def test_elsewhere_than_on_a_terminal_progress_is_a_line_per_5_percent(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=False, verbose=False) as report:
        assert report is not None
        for i in range(1, 1001):
            report(Progress(i, 1000, 1.0, "", 0.5 if i > 500 else None))
    out, err = capsys.readouterr()
    assert out == ""
    assert 20 <= len(err.splitlines()) <= 22
    assert err.splitlines()[-1] == "round 1000/1000  1.0 s  accuracy 0.5000"


def test_quiet_progress_is_none_and_verbose_has_every_round(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=True, verbose=False) as report:
        assert report is None
    with progress(quiet=False, verbose=True) as report:
        assert report is not None
        for i in range(1, 51):
            report(Progress(i, 50, 1.0))
    assert len(capsys.readouterr().err.splitlines()) == 50


@pytest.mark.parametrize("verbose", [True, False])
def test_what_comes_before_the_rounds_is_told_now_and_then(capsys: pytest.CaptureFixture[str], verbose: bool) -> None:
    with progress(quiet=False, verbose=verbose) as report:
        assert report is not None
        for i in range(100):
            report(Progress(0, 2, 1.0, alone=Alone(i, 500, [3])))
        report(Progress(1, 2, 2.0))
    lines = ["training alone, epoch 0/500, client 3  1.0 s", "round 1/2  2.0 s"]
    assert capsys.readouterr().err.splitlines() == lines


def test_on_a_terminal_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress(quiet=False, verbose=False) as report:
        assert report is not None
        report(Progress(1, 2, 1.0, "[data] is no markup", 0.25))
    out, err = capsys.readouterr()
    assert out == ""
    assert "1/2" in err


# ---------------------------------------------------------------------------------------------------- telling of parts


def test_list_prints_what_the_registry_has() -> None:
    for kind in ("methods", "attacks", "models", "partitions", "datasets", "rules"):
        names = [line.split()[0] for line in equipoise("list", kind).stdout.splitlines()[1:]]
        assert names == list(registry.entries(kind))
    everything = json.loads(equipoise("list", "--json").stdout)
    assert {"kind": "methods", "name": "fedprox"}.items() <= everything[
        [e["name"] for e in everything].index("fedprox")
    ].items()


def test_show_tells_paper_equation_parameters_and_departures() -> None:
    text = equipoise("show", "fedprox").stdout
    for found in ("MLSys 2020", "mu (w_k - w)", "mu: a number; default 0.1", "Departures"):
        assert found in text
    facts = json.loads(equipoise("show", "fedprox", "--json").stdout)
    mu = facts[0]["parameters"][0]
    assert mu.pop("meaning") and mu == {"name": "mu", "type": "a number", "required": False, "default": 0.1}
    assert all(f"{key.name}: {key.told()}" in text for key in reference.settings(registry.get("methods", "fedprox")))


def test_show_knows_every_part_and_hints_at_the_nearest_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in registry.KINDS:
        for name in registry.entries(kind):
            show(name)  # what the command calls: reading all options anew for every part takes seconds
            assert f"{name} ({registry.SINGULAR[kind]})\n" in capsys.readouterr().out
    result = equipoise("show", "fedprx")
    assert result.exit_code == 2
    assert "did you mean 'fedprox'?" in result.stderr


def test_data_commands_tell_what_is_there(tmp_path: Path) -> None:
    assert Path(equipoise("data", "where", "digits").stdout.strip()).is_dir()
    assert equipoise("data", "verify", "digits").exit_code == 0
    assert "digits" in [info["name"] for info in json.loads(equipoise("data", "list", "--json").stdout)]
    missing = equipoise("data", "where", "mnist", "--folder", str(tmp_path))
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert equipoise("data", "verify", "mnist", "--folder", str(tmp_path)).exit_code == 1
    assert equipoise("data", "where", "mnits").exit_code == 2


def test_doctor_finds_nothing_wrong_here_and_says_what_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    result = equipoise("doctor", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert all(fact["ok"] for fact in facts.values())
    assert {"torch", "device", "threads", "memory", "disk", "write", "data"} <= facts.keys()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # then it is the user who decides
    assert "what is freed is given back" in equipoise("doctor").output
    assert equipoise("doctor", "--folder", str(tmp_path / "nowhere")).exit_code == 1
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "nowhere"))
    broken = equipoise("doctor", "--json")
    assert broken.exit_code == 1
    assert not json.loads(broken.stdout)["data"]["ok"]


def test_python_dash_m_is_the_command_line_without_an_installation(tmp_path: Path) -> None:
    """With workers, which are started anew and must find the package as well."""
    (tmp_path / "audit.toml").write_text(CLEAN.split("[method]")[0] + '[audit]\nmethods = ["fedavg", "local"]\n')
    source = str(Path(reference.__file__).parents[1])
    command = [sys.executable, "-m", "equipoise", "audit", "audit.toml", "--out", "out", "--workers", "2"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert {"fedavg", "local"} <= set(done.stdout.split())
