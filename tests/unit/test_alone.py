"""Training alone until the curve of losses is flat: spikes are not its end, and the lowest is what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.at import Schedule, Stop
from equipoise.core import Method
from equipoise.engine import clients
from equipoise.engine.clients import Done, Executor
from equipoise.engine.replay import Replay
from equipoise.engine.settings import Run
from equipoise.engine.waiting import Alone, told
from equipoise.experiment import Progress
from equipoise.methods.eagle import eagle
from equipoise.standalone import collaborative_fairness, standalone
from equipoise.streams import Stream
from tests.small import federation, simulation

STOP = Stop(tolerance=0.1, window=3, cap=30)


def reached(curves: list[list[float]], monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Of clients whose losses follow these curves window by window, the first before training: the window whose model
    each of them keeps, and how many each trained for. A model is the number of its window."""
    spent = [0] * len(curves)

    def run(self: Executor, rule: Any, work: Any, *_: Any) -> Done:
        for i in work.ids.tolist():
            spent[i] += 1
        return Done(work.received, work.received + 1, {}, None)

    def risk(self: Executor, ids: Tensor, rows: Tensor, split: str = "train") -> Tensor:
        return torch.tensor([float(curves[i][int(row[0])]) for i, row in zip(ids.tolist(), rows, strict=True)])

    sim = simulation(fed=federation([4] * len(curves)))
    monkeypatch.setattr(clients.Executor, "run", run)
    monkeypatch.setattr(clients.Executor, "risk", risk)
    found = sim.simulator.executor().fit_alone(
        torch.arange(len(curves)), torch.zeros(1), Schedule(epochs=1, batch=2), 0.1, STOP, Stream(0)
    )
    return [int(row[0]) for row in found], spent


@pytest.mark.parametrize(
    ("curve", "kept", "spent"),
    [
        ([8, 4, 2, 1.99, 0], 3, 3),  # flat: the last one, though it is hardly lower
        ([8, 4, 4, 0], 2, 2),
        ([8, 4, 4.1, 0], 1, 2),  # flat, though it is hardly higher: the one before
        ([8, 4, 6, 2, 1.99, 0], 4, 4),  # a spike is not the end
        ([8, 4, 6, 5, 7, 3, 2.9, 0], 6, 6),  # nor is a rough stretch
        ([8, 4, 6, 3.9, 3.8, 0], 4, 4),  # down again to hardly lower than before: not flat yet
        ([8, 4, 6, 5.9, 0], 1, 3),  # flat, but higher: what was before is kept
        ([8, 9, 2, 3, 1.5, 2, 1.45, 1.4, 0], 7, 7),
        ([8, 9, 9, 0], 0, 2),  # never better than at the start
        ([8, 4, float("nan"), 0], 2, 2),  # diverged, and seen to be
        ([8, float("inf"), 0], 1, 1),
        ([2.0 * 0.5**i for i in range(12)], 10, 10),  # the epochs are used up
        ([8.0, *[4.0, 6.0] * 6], 9, 10),  # up and down for ever: the last of the lowest
    ],
)
def test_one_client(curve: list[float], kept: int, spent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reached([curve], monkeypatch) == ([kept], [spent])


def test_clients_stop_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = [[8.0, 7.9, 0.0], [8.0, 4.0, 6.0, 2.0, 2.0, 0.0], [8.0, 4.0, 5.0, 5.1, 0.0]]
    assert reached(curves, monkeypatch) == ([1, 4, 1], [1, 4, 3])


@pytest.mark.parametrize("batch", [3, None])
def test_played_back_it_comes_to_the_same(batch: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU. Clients stop one by one, and a recording is used until half of them have."""
    made: list[Replay] = []

    class Kept(Replay):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(clients, "Replay", Kept)
    s = simulation(fed=federation([5, 9, 8, 7, 6])).simulator
    plain = s.executor()
    models = [
        how.fit_alone(torch.arange(5), s.w0, Schedule(batch=batch), 0.5, Stop(0.2, 2, 12), Stream(3))
        for how in (plain, Executor(replace(plain.world, alone=True)))
    ]
    assert torch.allclose(*models, rtol=0, atol=1e-12) and not torch.allclose(models[0], s.w0.expand(5, -1))
    (replay,) = made
    assert replay.clients == {5, 3, 2, 1} and replay.batch == (batch or 9)
    assert not replay.reasons and replay._made


def test_who_waits_is_told_after_every_window_until_all_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Alone] = []
    with told(heard.append):
        reached([[8, 4, 3.9, 0], [8, 4, 2, 1, 0.99, 0]], monkeypatch)
    reached([[8, 4, 3.9, 0]], monkeypatch)  # and nobody waits any more
    assert [(a.done, a.busy) for a in heard] == [(3, 2), (6, 1), (9, 1), (12, 0)]
    assert str(heard[1]) == "training alone, epoch 6/30, 1 of 2 left"
    assert str(replace(heard[1], ids=[7])) == "training alone, epoch 6/30, client 7"


def test_rounds_alone_are_told_and_rounds_together_are_not() -> None:
    scenario, run = simulation(fed=federation([4, 6])).scenario, Run()
    heard: list[Alone] = []
    with told(heard.append):
        standalone(scenario, run, 3)
        assert [(a.unit, a.done, a.most, len(a.ids)) for a in heard] == [("round", i, 3, 2) for i in (1, 2, 3)]
        assert str(heard[2]) == "training alone, round 3/3, 2 clients"
        heard.clear()
        collaborative_fairness(scenario, run, Method())
    assert [a.done for a in heard] == list(range(1, scenario.train.rounds + 1))  # of standalone in it, once


def test_a_run_tells_its_own_listener_and_without_one_whoever_listens_around_it() -> None:
    around: list[Alone] = []
    shown: list[Progress] = []
    fed, method = federation([4, 6]), eagle(1.0, tolerance=0.1, window=3, cap=6)
    with told(around.append):
        eq.run(fed, method, model="linear", rounds=1, progress=shown.append)
        assert not around and shown[0].round == 0 and shown[0].alone
        assert (shown[-1].round, shown[-1].alone) == (1, None)
        eq.run(fed, method, model="linear", rounds=1)
    assert around[0].done == 3
