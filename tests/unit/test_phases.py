"""Where the time goes: every second counts once, watching changes no number, and nobody pays who does not watch."""

import threading
from typing import Any

import pytest
import torch

from equipoise.attacks import GaussianOutliers, LabelNoise, SignFlip
from equipoise.engine import phases
from equipoise.engine.phases import PHASES, covered, device_share, phase, watch
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Run
from equipoise.experiment import run
from equipoise.methods import fedavg
from equipoise.threat import Attack
from tests.small import federation, simulation


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still until somebody sets it."""
    now = [0.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
    return now


def spend(clock: list[float], seconds: float) -> None:
    clock[0] += seconds


def test_a_phase_inside_another_counts_for_itself_alone(clock: list[float]) -> None:
    with watch() as seconds:
        with phase("train"):
            spend(clock, 1)
            with phase("gather"):
                spend(clock, 10)
                with phase("attack"):
                    spend(clock, 100)
            with phase("gather"):
                spend(clock, 1000)
        spend(clock, 10000)
    assert seconds == {"train": 1, "gather": 1010, "attack": 100}


def test_a_phase_inside_itself_counts_once(clock: list[float]) -> None:
    with watch() as seconds, phase("train"):
        spend(clock, 1)
        with phase("train"):
            spend(clock, 10)
    assert seconds == {"train": 11}


def test_a_whole_function_can_be_a_phase_again_and_again(clock: list[float]) -> None:
    @phase("write")
    def work(more: int) -> int:
        spend(clock, 1)
        return more + 1

    assert work(1) == 2  # nobody watches
    with watch() as seconds:
        assert [work(more=1), work(2)] == [2, 3]
    assert seconds == {"write": 2}


def test_a_watch_inside_another_takes_over(clock: list[float]) -> None:
    with watch() as outer:
        with phase("train"), watch() as inner, phase("gather"):
            spend(clock, 1)
        with phase("write"):
            spend(clock, 2)
    assert (inner, outer) == ({"gather": 1}, {"train": 1, "write": 2})


def test_an_error_passes_through_and_what_follows_is_counted_right(clock: list[float]) -> None:
    error = StopIteration("mine")

    @phase("train")
    def fails() -> None:
        with phase("gather"):
            spend(clock, 1)
            raise error

    with watch() as seconds:
        with pytest.raises(StopIteration) as caught:
            fails()
        with phase("write"):
            spend(clock, 2)
    assert caught.value is error
    assert seconds == {"train": 0, "gather": 1, "write": 2}


def test_an_error_passes_through_where_nobody_watches() -> None:
    with pytest.raises(KeyError, match="mine"), phase("train"):
        raise KeyError("mine")
    with pytest.raises(RuntimeError, match="mine"), watch():
        raise RuntimeError("mine")
    with watch() as seconds:
        pass
    assert seconds == {}


def test_without_a_watch_nobody_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[None] = []
    monkeypatch.setattr(phases, "_settle", lambda: waited.append(None))
    with phase("train"):
        pass
    assert waited == []
    with watch(), phase("train"):
        pass
    assert len(waited) == 2


def test_other_threads_are_not_watched(clock: list[float]) -> None:
    def work() -> None:
        with phase("gather"):
            spend(clock, 1)

    with watch() as seconds, phase("train"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seconds == {"train": 1}


def after(attack: Attack, **how: Any) -> Simulation:
    sim = simulation(fedavg(), attack=attack, run=Run(device="cpu", **how))
    for _ in range(3):
        sim.step()
    return sim


@pytest.mark.parametrize("attack", [SignFlip(fraction=0.5), GaussianOutliers(fraction=0.5), LabelNoise(fraction=0.5)])
@pytest.mark.parametrize(
    "how", [{"executor": "vmap", "replay": "on"}, {"executor": "loop", "workers": 2}], ids=["vmap", "loop"]
)
def test_watching_changes_no_number(attack: Attack, how: dict[str, Any]) -> None:
    plain = after(attack, **how)
    with watch() as seconds:
        watched = after(attack, **how)
    assert set(seconds) == set(PHASES) - {"write"}
    assert all(s >= 0 for s in seconds.values())
    first, second = plain.dump(), watched.dump()
    assert first.keys() == second.keys() and all(torch.equal(t, second[n]) for n, t in first.items())


def test_every_phase_of_a_whole_run_is_there(tmp_path: Any) -> None:
    with watch() as seconds:
        run(federation(), fedavg(), model="linear", attack=SignFlip(fraction=0.5), rounds=2, out=tmp_path / "run")
    assert set(seconds) == set(PHASES)
    assert all(s > 0 for s in seconds.values())


def test_without_a_gpu_there_is_no_share_of_its_time_and_no_round_is_run() -> None:
    sim = simulation()
    assert device_share(sim) is None and sim.round == 0


def test_spans_that_overlap_are_covered_once() -> None:
    assert covered([]) == 0
    assert covered([(5, 6), (0, 2), (1, 3), (1, 2), (3, 4)]) == 5
