"""Rounds that are begun before the last one is taken over: nobody may see that, whatever comes in between."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import registry
from equipoise.attacks import SendNaN, SignFlip
from equipoise.core import Method, ServerRule, State, WeightedMean
from equipoise.engine import simulator
from equipoise.engine.clients import Trained
from equipoise.engine.exchange import Plan
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Train
from equipoise.engine.simulator import Simulator
from equipoise.methods import ditto, fedavg
from equipoise.threat import Attack
from tests.small import federation, simulation

METHODS = registry.methods()
pytestmark = pytest.mark.usefixtures("one_epoch_alone")


def made(method: Method, attack: Attack | None = None, begins: bool = True, rounds: int = 6, **more: Any) -> Simulation:
    fed = replace(federation((7, 25, 9, 12, 8)), root=torch.arange(12))
    settings = {"participation": Participation(per_round=3), "train": Train(rounds=rounds, batch=5, lr=0.1), **more}
    sim = simulation(method, fed, attack=attack, **settings)
    assert not sim.simulator.begins  # on a CPU nothing would be gained
    sim.simulator.begins = begins
    return sim


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds of plans that clients were trained for."""
    own, rounds = Simulator._trained, list[int]()

    def train(self: Simulator, plan: Plan) -> Trained:
        rounds.append(plan.round)
        return own(self, plan)

    monkeypatch.setattr(Simulator, "_trained", train)
    return rounds


def same(a: Simulation, b: Simulation) -> None:
    one, other = a.dump(), b.dump()
    assert one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def steps(sims: tuple[Simulation, Simulation], many: int) -> None:
    for _ in range(many):
        one, other = (sim.step() for sim in sims)
        assert str(one) == str(other)  # as text: what is no number is not equal to itself
        same(*sims)


def pair(*args: Any, **more: Any) -> tuple[Simulation, Simulation]:
    return made(*args, **more), made(*args, **more, begins=False)


@pytest.mark.parametrize("attack", [None, SignFlip(fraction=0.25), SendNaN(clients=(1,))], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_comes_to_the_same_round_after_round(name: str, attack: Attack | None) -> None:
    steps(pair(METHODS[name].make(), attack, participation=Participation(per_round=3, dropout=0.2)), 6)


def test_each_round_is_trained_once_and_none_behind_the_last(trained: list[int]) -> None:
    sim = made(fedavg(), rounds=4)
    sim.step()
    assert trained == [0, 1]
    for _ in range(3):
        sim.step()
    assert trained == [0, 1, 2, 3]


def test_clients_whose_state_is_new_are_waited_for(trained: list[int]) -> None:
    sim = made(ditto(lam=1.0), rounds=20)
    for at in range(20):
        known = sim.simulator.store.ids().tolist()
        drawn = sim.server.participants.draw(at, sim.server.excluded).tolist()
        assert (trained.count(at) == 1) == (at > 0 and set(drawn) <= set(known))
        sim.step()
    assert sorted(trained) == list(range(20))


def test_where_clients_are_sent_deltas_or_words_or_are_large_nothing_is_begun(
    trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rffl", "eagle"):
        sim = made(METHODS[name].make(), participation=Participation())
        for _ in range(2):
            sim.step()
        assert trained == [0, 1] and sim.simulator._begun is None
        trained.clear()
    monkeypatch.setattr(simulator, "_BEGUN", 0)
    made(fedavg()).step()
    assert trained == [0]


def changed(sim: Simulation) -> None:
    sim.server.w = sim.server.w + 1


def written(sim: Simulation) -> None:
    sim.server.w += 1


def restored(sim: Simulation) -> None:
    before = {n: t.clone() for n, t in sim.dump().items()}
    sim.step()
    sim.load(before)


def excluded(sim: Simulation) -> None:
    sim.server.excluded[int(sim.server._next[1][0])] = True
    sim.server._next = -1, sim.server._next[1]


@pytest.mark.parametrize("between", [changed, written, restored, excluded])
def test_what_comes_in_between_makes_it_begin_again(between: Callable[[Simulation], None], trained: list[int]) -> None:
    both = pair(fedavg())
    steps(both, 2)
    for sim in both:
        between(sim)
    trained.clear()
    both[0].step()
    assert trained[:2] == [2, 3]  # once more, and the next
    both[1].step()
    steps(both, 2)


def test_what_was_begun_with_a_state_that_changes_is_thrown_away(trained: list[int]) -> None:
    sim = made(METHODS["rffl"].make(), participation=Participation())
    plan = sim.server.plan()
    replies = sim.simulator(plan)
    sim.simulator.anticipate(plan)
    sim.simulator.deliver(plan, replies.ids, 0.5 * replies.updates)
    again = sim.simulator(plan)
    assert trained == [0, 0, 0] and not torch.equal(again.updates, replies.updates)


def test_what_fails_early_fails_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, own = made(fedavg()), Simulator.train

    def train(self: Simulator, plan: Plan, *args: Any, **more: Any) -> Any:
        if plan.round == 1:
            raise ValueError("no")
        return own(self, plan, *args, **more)

    monkeypatch.setattr(Simulator, "train", train)
    assert sim.step().skipped == ""
    with pytest.raises(ValueError, match="no"):
        sim.step()


def test_a_rule_that_says_something_to_clients_is_not_silent() -> None:
    class Talkative(WeightedMean):
        early = True

        def plan(self, ids: Tensor, state: State) -> dict[str, Tensor]:
            return {"hint": ids.double()}

    assert Talkative.plan is not ServerRule.plan
    sim = made(Method("talkative", server=Talkative()))
    sim.step()
    assert sim.server._likely is None and sim.simulator._begun is None
