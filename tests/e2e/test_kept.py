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
    assert not (tmp_path / "kept").exists()


def test_what_was_told_on_the_way_is_told_once_more_only_if_it_comes_again(
    job: experiment.Experiment, tmp_path: Path
) -> None:
    early: dict[int, list[Result]] = {3: [], 6: []}
    ways = {round: told.append for round, told in early.items()}
    with pytest.raises(experiment.Interrupted):
        experiment.execute(job, None, press_after(5), on_the_way=ways, kept=Kept(tmp_path / "kept", []))
    experiment.execute(job, on_the_way=ways, kept=Kept(tmp_path / "kept", []))
    assert {round: len(told) for round, told in early.items()} == {3: 1, 6: 1}
    never: dict[int, list[Result]] = {6: []}
    experiment.execute(job, on_the_way={6: never[6].append})
    same(early[6][0], never[6][0])


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
        def save(folder: Any, point: checkpoint.Checkpoint) -> None:
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
    assert told == [302, 602]
