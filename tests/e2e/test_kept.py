"""A run without a folder that is stopped goes on from what was kept of it, and ends as one that never was."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from equipoise import config, course, experiment
from equipoise.engine import checkpoint
from equipoise.errors import EquipoiseError
from equipoise.experiment import Kept
from equipoise.results import Result
from tests.e2e.test_resume import TEXT


@pytest.fixture(scope="module", params=["local", "ditto", "rffl"])
def job(request: pytest.FixtureRequest) -> experiment.Experiment:
    return experiment.build(config.load(TEXT.format(rounds=9), [f"method.name={request.param}"]))


def same(a: Result, b: Result) -> None:
    assert a.summary() == b.summary() and a.config == b.config
    assert all(str(x.columns) == str(y.columns) for x, y in ((a.rounds, b.rounds), (a.clients, b.clients)))
    for name in a.clients.columns:
        assert a.clients[name].tolist() == b.clients[name].tolist() or name in ("loss", "balanced_accuracy")
    assert [str(row) for row in a.rounds["info"]] == [str(row) for row in b.rounds["info"]]
    assert a.model is not None and b.model is not None and torch.equal(a.model, b.model)


def press_after(*rounds: int) -> Callable[[experiment.Progress], None]:
    def press(progress: experiment.Progress) -> None:
        if progress.round in rounds:
            os.kill(os.getpid(), signal.SIGINT)

    return press


def test_ctrl_c_keeps_a_point_and_the_same_call_goes_on_from_it(job: experiment.Experiment, tmp_path: Path) -> None:
    kept, rounds = Kept(tmp_path / "kept", ["first"]), list[int]()
    for stop in (4, 7):
        with pytest.raises(experiment.Interrupted, match=rf"after round {stop}; the same command goes on from there"):
            experiment.execute(job, None, press_after(stop), kept=kept)
    again = Kept(tmp_path / "kept", ["second"])
    result = experiment.execute(job, None, lambda p: rounds.append(p.round), kept=again)
    assert rounds == [8, 9]
    same(result, experiment.execute(job))
    assert again.by == ["first", "second"] and again.seconds > 0
    assert (tmp_path / "kept").exists()  # until whoever asked for the result has it
    again.done()
    assert not (tmp_path / "kept").exists()
    again.done()


def test_what_was_told_on_the_way_is_not_told_again(job: experiment.Experiment, tmp_path: Path) -> None:
    early: dict[int, list[Result]] = {3: [], 6: []}
    with pytest.raises(experiment.Interrupted):
        experiment.execute(job, None, press_after(5), on_the_way={3: early[3].append}, kept=Kept(tmp_path / "kept", []))
    rounds = list[int]()
    kept = Kept(tmp_path / "kept", [])
    experiment.execute(job, None, lambda p: rounds.append(p.round), on_the_way={6: early[6].append}, kept=kept)
    assert {round: len(told) for round, told in early.items()} == {3: 1, 6: 1} and rounds == [6, 7, 8, 9]
    never = list[Result]()
    experiment.execute(job, on_the_way={6: never.append})
    same(early[6][0], never[0])


@pytest.mark.parametrize("asked", [3, 5])
def test_who_asks_for_what_was_before_the_point_gets_it(job: experiment.Experiment, tmp_path: Path, asked: int) -> None:
    with pytest.raises(experiment.Interrupted):
        experiment.execute(job, None, press_after(5), kept=Kept(tmp_path / "kept", []))
    told = list[Result]()
    experiment.execute(job, on_the_way={asked: told.append}, kept=Kept(tmp_path / "kept", []))
    assert len(told) == 1 and len(told[0].rounds) == asked


def test_what_was_being_written_when_somebody_pulled_the_plug_is_cleared_away(
    job: experiment.Experiment, tmp_path: Path
) -> None:
    left = tmp_path / "kept" / "checkpoint" / ".r000004.safetensors.here-1-1.partial"
    left.parent.mkdir(parents=True)
    left.touch()
    experiment.execute(job, kept=Kept(tmp_path / "kept", []))
    assert not left.exists()


def test_a_disk_that_is_full_ends_no_run_that_needs_none(
    job: experiment.Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise EquipoiseError("cannot write: no space left", "free some")

    monkeypatch.setattr(course.checkpoint, "save", full)
    monkeypatch.setattr(course, "_SELDOM", 0.0)
    same(experiment.execute(job, kept=Kept(tmp_path / "kept", [])), experiment.execute(job))


def test_a_point_that_would_take_much_of_the_disk_is_not_left(
    job: experiment.Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(experiment.Interrupted, match="nothing is kept"):
        experiment.execute(job, None, press_after(5), kept=Kept(tmp_path / "kept", []))
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_kept_point_is_of_one_experiment(job: experiment.Experiment, tmp_path: Path) -> None:
    with pytest.raises(experiment.Interrupted):
        experiment.execute(job, None, press_after(5), kept=Kept(tmp_path / "kept", []))
    other = experiment.build(config.load(TEXT.format(rounds=9), ["train.lr=0.2"]))
    with pytest.raises(EquipoiseError, match="was changed"):
        experiment.execute(other, kept=Kept(tmp_path / "kept", []))


def test_what_was_not_stopped_keeps_nothing(job: experiment.Experiment, tmp_path: Path) -> None:
    experiment.execute(job, kept=Kept(tmp_path / "kept", []))
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_a_folder_is_kept_there(job: experiment.Experiment, tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match="kept"):
        experiment.execute(job, tmp_path / "run", kept=Kept(tmp_path / "kept", []))


# --------------------------------------------------------------------------------------------------------- how often


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[int]]:
    """After which rounds a run of a second a round saves, if that takes so many seconds."""
    clock, rounds = SimpleNamespace(now=0.0), list[int]()

    def during(seconds: float) -> list[int]:
        def save(folder: Any, point: checkpoint.Checkpoint, keep: int = 2) -> None:
            rounds.append(point.round)
            clock.now += seconds

        monkeypatch.setattr(course.checkpoint, "save", save)
        monkeypatch.setattr(course.time, "monotonic", lambda: clock.now)
        return rounds

    during.clock = clock  # type: ignore[attr-defined]
    return during


def went(saved: Any, seconds: float, out: Path | None, kept: Kept | None = None, rounds: int = 40) -> list[int]:
    told = saved(seconds)
    made = experiment.build(config.load(TEXT.format(rounds=rounds), ["run.eval_every=0"]))

    def tick(progress: experiment.Progress) -> None:
        saved.clock.now += 1.0

    experiment.execute(made, out, tick, kept=kept)
    return told  # type: ignore[no-any-return]


def test_short_checkpoints_come_when_they_are_due(saved: Any, tmp_path: Path) -> None:
    assert went(saved, 0.9, tmp_path / "run", rounds=10) == [2, 4, 6, 8, 10]


def test_after_a_long_one_ten_times_as_long_goes_by(saved: Any, tmp_path: Path) -> None:
    assert went(saved, 1.5, tmp_path / "run") == [2, 18, 34, 40]


def test_a_run_in_memory_is_kept_every_five_minutes_and_not_at_its_end(saved: Any, tmp_path: Path) -> None:
    told = went(saved, 0.1, None, Kept(tmp_path / "kept", []), rounds=700)
    assert told == [301, 601]
