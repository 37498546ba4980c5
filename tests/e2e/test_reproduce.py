"""`equipoise reproduce`: listing, running, showing, and what it says to mistakes."""

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from equipoise.cli import app
from equipoise.engine.run import Simulation
from tests.unit.test_reproduce import folder_with


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return folder_with(tmp_path / "mine")


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *words, "--experiments", "mine"])


def test_tables_are_listed_run_and_shown(mine: Path) -> None:
    assert "nobody/one" in asked().output
    made = asked("nobody/one", "--rows", "fedprox", "--columns", "iid", "--workers", "1", "--quiet")
    assert made.exit_code == 0 and "0.900" in made.output
    assert "not measured: FedProx is better" in made.output
    page = Path("runs/reproduce/nobody.md").read_text()
    again = asked("nobody", "--show")
    assert again.exit_code == 0 and Path("runs/reproduce/nobody.md").read_text() == page
    assert "1 of 4" in asked("--show").output and Path("runs/reproduce/README.md").is_file()


def test_what_lies_with_the_tables_is_shown_until_something_is_measured(mine: Path) -> None:
    asked("nobody/one", "--rows", "fedprox", "--columns", "iid", "--workers", "1", "--quiet", "--out", "mine")
    before = sorted(mine.rglob("*"))
    shown = asked("nobody/one", "--show")
    assert shown.exit_code == 0 and shown.output.count("–") < asked("nobody/one", "--show", "--out", "x").output.count(
        "–"
    )
    assert "1 of 4" in asked("--show").output
    assert sorted(mine.rglob("*")) == before and not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "told", "hint"),
    [
        (["--rows", "fedporx"], "--rows is 'fedporx'", "did you mean 'fedprox'?"),
        (["--columns", "iid,odd"], "--columns is 'odd'", "known: iid, skewed"),
        (["--seeds", "5..2"], "--seeds is '5..2'", "such as 0..4"),
        (["--seeds", "-1"], "--seeds is '-1'", "such as 0..4"),
        (["--scale", "0"], "--scale is 0.0", "at most 1"),
        (["--also", "x"], "--also is x", "at most 1"),
        (["--also", "0.3", "--scale", "0.2"], "--also is 0.3", "below --scale, 0.2"),
        (["--set", "run.device=gpu"], "run.device is 'gpu'", "cpu"),
        (["--minutes", "-1"], "--minutes is -1.0", "0 or more"),
        (["--set", "train.lr=1"], "--set train.lr=1", "change a copy"),
        (["--set", "run.precision"], "--set run.precision", "section.key=value"),
    ],
)
def test_mistakes_are_told_before_anything_runs(mine: Path, words: list[str], told: str, hint: str) -> None:
    made = asked("nobody/one", *words)
    assert made.exit_code == 2 and told in made.output
    assert hint in made.output and not Path("runs").exists()


def test_a_folder_without_tables_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = asked()
    assert made.exit_code == 2 and "no published tables in mine" in made.output


def test_one_page_is_for_one_paper(mine: Path) -> None:
    (mine / "us").mkdir()
    (mine / "us" / "two.toml").write_text((mine / "nobody" / "one.toml").read_text())
    made = asked("nobody", "us", "--show", "--page", "one.md")
    assert made.exit_code == 2 and "2 papers" in made.output and not Path("one.md").exists()


def test_runs_for_which_there_was_no_time_are_counted(mine: Path) -> None:
    made = asked("nobody/one", "--rows", "fedprox", "--columns", "iid", "--minutes", "0", "--workers", "1")
    assert made.exit_code == 0 and "not started, the time is up: 2 runs" in made.output


def test_ctrl_c_in_the_middle_of_a_run_loses_nothing(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("nobody/one", "--rows", "fedprox", "--columns", "iid", "--workers", "1", "--quiet")
    step, rounds = Simulation.step, list[int]()

    def stopped(self: Simulation) -> object:
        rounds.append(self.round)
        if len(rounds) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Simulation, "step", stopped)
    made = asked(*words)
    assert made.exit_code == 130 and "the same command goes on" in made.output
    assert asked(*words).exit_code == 0
    taken = rounds.copy()
    whole = asked(*words, "--out", "whole")
    assert whole.exit_code == 0 and rounds[len(taken) :] == taken  # none was taken twice
    told = [
        json.loads(Path(out, "nobody/measured/one.json").read_text())["entries"] for out in ("runs/reproduce", "whole")
    ]
    assert told[0][0]["numbers"] == told[1][0]["numbers"]
    assert not any(Path("runs/reproduce/unfinished").iterdir())
