"""Recorded steps as graphs, on a pretended GPU: clients of unequal steps, cohorts that lack some, resumed runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import contract, registry
from equipoise.core import At, ClientRule, Method, State
from equipoise.engine import graphs
from equipoise.engine.batches import Batches
from equipoise.engine.fill import Fill
from equipoise.engine.replay import Captured
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.engine.stage import running_out
from tests.contract.test_replay import compare
from tests.small import federation, simulation

METHODS = registry.methods()
SIZES = (6, 5, 1, 4, 7, 3, 5, 6)


class Graph:
    """Does its work again; what it keeps stays where it was, as in a graph's own memory."""

    def __init__(self, work: Callable[[], None], owner: Captured) -> None:
        self.work, self.owner, self.known = work, owner, list(owner.known)

    def replay(self) -> None:
        self.work()
        for i, (place, new) in enumerate(zip(self.known, self.owner.known, strict=True)):
            if isinstance(new, Tensor) and new is not place:
                one = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in place.stride())
                place[one].copy_(new[one])
            else:
                self.known[i] = new
        self.owner.known = self.known


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    found: list[Graph] = []

    def captured(work: Any, before: Callable[[], object], trials: int = 2) -> Graph:
        owner: Captured = getattr(work, "func", work).__self__
        with torch.no_grad():
            for _ in range(trials):
                before()
                work()
            before()
        found.append(Graph(work, owner))
        return found[-1]

    monkeypatch.setattr(graphs, "captured", captured)
    return found


def after(method: Method, replay: str, rounds: int, **more: Any) -> Simulation:
    run = Run(dtype="float64", executor="vmap", replay=replay, device="cpu")  # type: ignore[arg-type]
    sim = simulation(method, run=run, **more)
    if sim.simulator.replay is not None:
        sim.simulator.replay.capture = True
    for _ in range(rounds):
        sim.step()
    return sim


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("name", METHODS)
def test_every_method(made: list[Graph], name: str, dropout: float) -> None:
    fed, part = contract.sample_federation(SIZES), Participation(dropout=dropout)
    sims = [after(METHODS[name].make(), replay, 3, fed=fed, participation=part) for replay in ("off", "on")]
    compare(*sims)
    assert len(made) >= 2 and sims[1].simulator.replay is not None and sims[1].simulator.replay.reasons == {}


@pytest.mark.parametrize("epochs", [1, 3, 9])
def test_several_steps_in_one_launch(made: list[Graph], epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full batches, and some that are not, and clients that run out of steps; strides come with the second round."""
    monkeypatch.setattr(graphs, "OFTEN", 2)
    launched: list[int] = []
    own = Captured._launch
    monkeypatch.setattr(Captured, "_launch", lambda self, n: launched.append(len(self.strides)) or own(self, n))
    for sizes in ((16, 16, 16, 16), (16, 9, 3, 12)):
        fed, train = contract.sample_federation(sizes), Train(epochs=epochs, batch=4, lr=0.05)
        sims = [after(METHODS["ditto"].make(), replay, 4, fed=fed, train=train) for replay in ("off", "on")]
        compare(*sims)
    assert max(launched) == (3 if 4 * epochs >= 16 else 2)


def test_without_room_for_several_steps_they_are_launched_one_by_one(
    made: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, tried = graphs.captured, []

    def captured(work: Any, before: Callable[[], object], trials: int = 2) -> Any:
        if trials == 0:
            tried.append(work)
            raise torch.cuda.OutOfMemoryError("no room")
        return inner(work, before, trials)

    monkeypatch.setattr(graphs, "captured", captured)
    monkeypatch.setattr(graphs, "OFTEN", 2)
    fed, train = contract.sample_federation((16, 16, 16, 16)), Train(epochs=3, batch=4, lr=0.05)
    compare(*(after(METHODS["ditto"].make(), replay, 4, fed=fed, train=train) for replay in ("off", "on")))
    assert len(tried) == 1


@dataclass(frozen=True)
class Odd(ClientRule):
    """State of several kinds: one that moves on, one that stays, whole numbers, and the model before."""

    def init(self, w: Tensor) -> State:
        k = len(w)
        return {
            "before": w.clone(),
            "fixed": w[:, :2].clone(),
            "count": torch.zeros(k, dtype=torch.int64),
            "cube": w.new_zeros(k, 2, 3),
        }

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        grad = at.grad(w)
        moved = {
            "before": w,
            "count": state["count"] + at.mask.sum(1),
            "cube": state["cube"] + grad[:, :6].view(-1, 2, 3),
        }
        return at.descend(w, grad + 0.1 * (w - state["before"])), {**state, **moved}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_state_of_any_kind(made: list[Graph], dropout: float) -> None:
    part, fed = Participation(dropout=dropout), federation((9, 25, 3, 12, 0, 14, 20, 8))
    sims = [after(Method("odd", Odd()), replay, 4, fed=fed, participation=part) for replay in ("off", "on")]
    compare(*sims)
    assert made


class Inverts(ClientRule):
    """Its step has no answer for a batch without samples."""

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        x = at.x.flatten(2) * at.mask[..., None]
        gram = x.mT @ x + 1e-3 * at.mask.any(1).to(w)[:, None, None] * torch.eye(x.shape[-1], dtype=w.dtype)
        return at.descend(w, at.grad(w) * torch.linalg.inv(gram).diagonal(dim1=1, dim2=2).mean(1, keepdim=True)), state


def test_stand_ins_see_what_a_client_might_see_and_a_resumed_run_is_the_same(made: list[Graph]) -> None:
    """Also where the first recording of the resumed run is made of a cohort that is filled up."""
    fed, part = federation([16] * 8), Participation(dropout=0.3)
    more: dict[str, Any] = {"fed": fed, "participation": part, "train": Train(batch=16, lr=0.1)}
    whole, first, second = (after(Method("own", Inverts()), "on", n, **more) for n in (6, 3, 0))
    second.load(first.dump())
    for _ in range(3):
        second.step()
    assert whole.remarks == [] and torch.equal(whole.server.w, second.server.w)


def test_a_rule_that_cannot_be_recorded_is_not_filled_up() -> None:
    rows: list[int] = []

    class Asks(ClientRule):
        def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
            grad = at.grad(w)
            rows.append(len(w))
            return at.descend(w, grad if bool(grad.sum() > 0) else 2 * grad), state

    sim = after(Method("asks", Asks()), "on", 1, fed=federation([8] * 8), participation=Participation(dropout=0.3))
    seen = set()
    for _ in range(5):  # the attempt to record it was in the first round
        rows.clear()
        record = sim.step()
        assert set(rows) == {len(record.admitted)}
        seen.add(len(record.admitted))
    assert len(seen) > 1


def test_filled_up() -> None:
    mask = torch.ones(2, 1, 3, 2, dtype=torch.bool)
    batches = Batches(torch.arange(12).view(2, 1, 3, 2), mask, (1, 2, 2), (2, 2, 2), torch.full((2, 3), 2))
    fill = Fill(batches, 5, 4)
    assert fill.steps == (1, 2, 2, 0, 0) and not fill.idle
    given = fill.each({"index": batches.index, "mask": mask, "key": batches.index[..., 0]})
    assert given["index"].shape == given["mask"].shape == (2, 1, 5, 4) and given["key"].shape == (2, 1, 5)
    assert torch.equal(given["index"][:, :, 3, :2], batches.index[:, :, 1]) and not given["mask"][..., 2:].any()
    rows = fill.fixed({"w": torch.arange(3.0)[:, None], "lr": torch.tensor(0.1)})
    assert rows["w"].flatten().tolist() == [0, 1, 2, 1, 1] and rows["lr"].dim() == 0
    same = Fill(batches, 3, 2)
    assert same.idle and same.each(given) is given and same.fixed(rows) is rows


def test_who_runs_out_of_steps_and_when() -> None:
    found = running_out((3, 0, 5, 3, 5), torch.device("cpu"))
    assert {n: at.tolist() for n, at in found.items()} == {0: [1], 3: [0, 3]} and list(found) == [0, 3]
    assert running_out((2, 2), torch.device("cpu")) == {}


def test_a_loaded_run_shares_nothing_with_the_one_it_came_from() -> None:
    first, second = (simulation(METHODS["rffl"].make(), federation([8] * 6)) for _ in range(2))
    first.step()
    second.load(first.dump())
    assert second.server.excluded is not first.server.excluded
