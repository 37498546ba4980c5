"""How far jobs are can be read while they last, wherever they run, and nothing rests on it."""

import io
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from equipoise import course, files, reproduce
from equipoise.audit import going
from equipoise.audit.engines import Local
from equipoise.audit.going import Going, during, lines, progress, read, watched
from equipoise.audit.runner import Step, execute_all
from equipoise.audit.sweep import load, run
from equipoise.cli import steps as cli
from equipoise.engine.waiting import Alone, tell
from equipoise.errors import EquipoiseError
from equipoise.reproduce.runner import Wanted
from tests.unit.test_reproduce import folder_with

SWEEP = """
[data]
dataset = "digits"
clients = 4
validation = 0.2
[model]
kind = "linear"
[train]
rounds = 2
lr = [0.01, 0.1]
[method]
name = "fedavg"
"""


def at(round: int, rounds: int = 50) -> course.Progress:
    return course.Progress(round, rounds, 1.0)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(going, "_SELDOM", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with lines(tmp_path) as path:
        yield path


def test_a_job_is_told_of_from_its_beginning_to_its_end(tmp_path: Path, folder: Path) -> None:
    seen = []

    def job() -> None:
        seen.extend(read(tmp_path))
        progress(at(7))
        seen.extend(read(tmp_path))

    during(folder, "a b/c", job)
    assert [(g.name, g.round, g.rounds) for g in seen] == [("a b/c", 0, 0), ("a b/c", 7, 50)]
    assert seen[0].began == seen[1].began and read(tmp_path) == [] and list(folder.iterdir()) == []


def test_a_job_whose_clients_train_alone_says_so(tmp_path: Path, folder: Path) -> None:
    seen: list[Going] = []

    def job() -> None:
        tell(300, 2000, torch.arange(10), 7)
        seen.extend(read(tmp_path))
        progress(replace(at(0), alone=Alone(100, 500, [3])))  # of a run that comes after it
        seen.extend(read(tmp_path))
        progress(at(7))
        seen.extend(read(tmp_path))

    during(folder, "a", job)
    first = "training alone, epoch 300/2000, 7 of 10 left"
    then = "training alone, epoch 100/500, client 3"
    assert [(g.round, g.rounds, g.stage) for g in seen] == [(300, 2000, first), (100, 500, then), (7, 50, "")]


def test_a_job_that_fails_leaves_no_line_and_no_job_has_none(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        during(folder, "a", partial(divmod, 1, 0))  # type: ignore[arg-type]
    progress(at(3))  # of a run that is nobody's job
    assert read(tmp_path) == []


def test_a_line_is_not_written_all_the_time(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(going, "_SELDOM", 60.0)
    seen: list[Going] = []

    def job() -> None:
        progress(at(7))
        seen.extend(read(tmp_path))

    during(folder, "a", job)
    assert [g.round for g in seen] == [0]


def test_where_nothing_can_be_written_jobs_are_done_all_the_same(tmp_path: Path) -> None:
    (tmp_path / ".going").write_text("a file is in the place of the folder")
    made = []

    def job() -> None:
        progress(at(3))
        made.append(read(tmp_path))

    with lines(tmp_path) as folder:
        during(folder, "a", job)
    assert made == [[]]


def test_what_is_no_line_is_passed_over_and_what_was_left_is_removed(tmp_path: Path) -> None:
    old = tmp_path / ".going"
    old.mkdir()
    good = {"name": "killed", "began": 1.0, "round": 3, "rounds": 4}
    (old / "0.json").write_text(json.dumps(good))
    (old / "1.json").write_text('{"name": "half')
    (old / "2.json").write_text('{"other": 1}')
    (old / "3.json").write_bytes(b"\xff\xfe")
    (old / "4.partial").write_text("{")
    assert read(tmp_path) == [Going(**good)]  # type: ignore[arg-type]
    (old / "notes.txt").write_text("somebody's")
    with lines(tmp_path):
        assert read(tmp_path) == []
    assert [path.name for path in old.iterdir()] == ["notes.txt"]


def test_a_folder_that_goes_while_it_is_read_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Path, pattern: str) -> Iterator[Path]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "glob", gone)
    assert read(tmp_path) == []


def _slow(flag: Path) -> None:
    progress(at(20))
    while not flag.exists():
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_are_read_while_they_run_here_and_in_other_processes(tmp_path: Path, workers: int) -> None:
    flag, found, steps = tmp_path / "flag", set(), list[Step]()

    def tell(jobs: Sequence[Going]) -> None:
        found.update(job.name for job in jobs)
        if len(found) >= workers:
            flag.touch()

    jobs = {name: partial(_slow, flag) for name in ("one", "two")}
    with watched(tmp_path, tell, every=0.01):
        assert execute_all(jobs, Local(workers), steps.append, tmp_path) == {}
    assert found >= ({"one", "two"} if workers == 2 else {"one"})
    assert [step.done for step in steps] == [1, 2] and not (tmp_path / ".going").exists()


def test_runs_report_to_their_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(going, "progress", lambda at: told.append((at.round, at.rounds)))
    run(load(SWEEP), tmp_path)
    assert told == [(1, 2), (2, 2)] * 3


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    with files.Lock(tmp_path), pytest.raises(EquipoiseError, match="being written by another run"):
        run(load(SWEEP), tmp_path)


def test_runs_of_published_tables_report_to_their_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(going, "progress", lambda at: told.append((at.round, at.rounds)))
    table = reproduce.load("nobody/one", folder_with(tmp_path / "e"))
    wanted = Wanted(rows=["fedavg"], columns=["iid"])
    assert reproduce.run([table], tmp_path / "out", wanted) == {}
    assert told == [(1, 1)] * 2 + [(1, 2), (2, 2)]  # two trials of one round, and the run


def test_what_began_before_is_not_told_and_in_the_end_nothing_is(tmp_path: Path, folder: Path) -> None:
    told: list[list[str]] = []
    old = {"name": "killed", "began": time.time() - 60, "round": 3, "rounds": 4}
    (folder / "0.json").write_text(json.dumps(old))

    def tell(jobs: Sequence[Going]) -> None:
        told.append([job.name for job in jobs])
        raise BrokenPipeError  # which keeps nobody from being told again

    with watched(tmp_path, tell, every=0.01):
        during(folder, "new", lambda: time.sleep(0.1))
    assert ["new"] in told and told[-1] == [] and "killed" not in {name for names in told for name in names}


def test_long_runs_are_told_of_at_tenths_in_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, now = cli._Tenths(), time.time()
    for round in (0, 1, 4, 5, 6, 49, 50):
        tell([Going("long", now - 180, round, 50), Going("short", now - 5, round, 50), Going("alone", now - 90)])
    assert capsys.readouterr().err.splitlines() == [
        "going on: long, round 0/50, 3 min so far",
        "going on: alone, 2 min so far",
        "going on: long, round 5/50, 3 min so far",
        "going on: long, round 49/50, 3 min so far",
    ]


def test_rounds_after_training_alone_are_told_as_well_and_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines, now = cli._Tenths(), time.time()
    for done, stage in ((1800, "alone"), (1801, "alone"), (100, ""), (1900, "alone again"), (300, "")):
        lines([Going("a", now - 90, done, 2000, stage)])
    told = ["alone", "round 100/2000", "round 300/2000"]
    assert capsys.readouterr().err.splitlines() == [f"going on: a, {where}, 2 min so far" for where in told]


def test_on_a_terminal_every_run_that_is_going_on_has_a_bar() -> None:
    page = Console(file=io.StringIO(), force_terminal=True, width=60)
    with Progress(MofNCompleteColumn(), TextColumn("{task.fields[what]}", markup=False), console=page) as screen:
        bars = cli._Bars(screen)
        bars.step(Step(1, 3, "first"))
        bars.going([Going("second [0]", 0.0, 12, 50), Going("third", 0.0)])
        shown = [(task.completed, task.total, task.fields["what"]) for task in screen.tasks]
        assert shown == [(1, 3, "first"), (12, 50, "second [0]"), (0, None, "third")]
        bars.going([Going("third", 0.0, 300, 2000, "training alone")])
        assert screen.tasks[-1].fields["what"] == "third  training alone"
        bars.going([Going("third", 0.0, 2, 5)])
        bars.step(Step(2, 3, "second", "failed: why"))
        shown = [(task.completed, task.total, task.fields["what"]) for task in screen.tasks]
        assert shown == [(2, 3, "failed: why"), (2, 5, "third")]


@pytest.mark.parametrize("terminal", [True, False])
def test_watching_ends_with_what_is_watched(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.sys.stderr, "isatty", lambda: terminal)
    with cli.steps(False, tmp_path) as report:
        report(Step(1, 1, "one"))
        assert "going" in {thread.name for thread in threading.enumerate()}
    assert "going" not in {thread.name for thread in threading.enumerate()} and "one" in capsys.readouterr().err
    with cli.steps(True, tmp_path) as report:
        report(Step(1, 1, "one"))
    assert capsys.readouterr().err == ""
