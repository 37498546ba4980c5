"""Every method over real messages, one client at a time, ends with the simulator's bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise import registry
from equipoise.aggregators.fltrust import FLTrust
from equipoise.aggregators.krum import Krum
from equipoise.core import Method, State
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run
from tests.messages import Deployed
from tests.small import federation, simulation

METHODS = registry.methods()
PLAIN = Run(executor="loop", replay="off", device="cpu")


def equal(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def heard(far: Deployed) -> list[list[int]]:
    """Who was written to, exchange by exchange, from here on."""
    post, asked = far.exchange.post, list[list[int]]()

    def listening(letters: Any) -> Any:
        asked.append(sorted(letters))
        return post(letters)

    far.exchange.post = listening
    return asked


def side_by_side(method: Method, rounds: int = 3, run: Run = PLAIN, **more: Any) -> tuple[Simulation, Deployed]:
    sim = simulation(method, run=run, **more)
    far = Deployed(sim.scenario, method, run)
    asked = heard(far)
    for done in range(1, rounds + 1):
        near, away = sim.step(), far.step()
        assert (near.drawn, near.admitted, near.skipped) == (away.drawn, away.admitted, away.skipped)
        assert away.quarantined == {}
        # One exchange a round, except for line searches.
        assert len(asked) == done or "probe" in method.server.needs
    sim.finish()
    far.finish()
    return sim, far


def compare(sim: Simulation, far: Deployed) -> None:
    assert torch.equal(sim.server.w, far.server.w)
    assert equal(sim.server.state, far.server.state)
    for k in sim.simulator.store.ids().tolist():
        assert equal({n: t[0] for n, t in sim.simulator.store.get(torch.tensor([k])).items()}, far.state(k)), k
    for whose, found in sim.evaluate("test").items():
        told = far.deployment.evaluate("test")[whose]
        for name in ("n", "correct", "class_n", "class_correct"):
            assert (getattr(found, name) == getattr(told, name)).all(), name
        torch.testing.assert_close(torch.tensor(found.loss), torch.tensor(told.loss), equal_nan=True)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_with_the_simulators_bits(name: str) -> None:
    compare(*side_by_side(METHODS[name].make()))


STATEFUL = ("ditto", "rffl", "eagle", "fedtilt", "finetuning")


@pytest.mark.parametrize("name", ["fedavg", "fedmdfg", *STATEFUL])
def test_with_some_drawn_some_without_data_and_dropout_in_the_model(name: str) -> None:
    few = Participation(per_round=2)
    fed = federation((7, 25, 0, 12, 3))
    more = {"fed": fed, "participation": few, "model": "mlp", "hidden": (4,), "dropout": (0.3,)}
    compare(*side_by_side(METHODS[name].make(), **more))


@pytest.mark.parametrize("rule", [Krum(f=1), FLTrust()], ids=["krum", "fltrust"])
def test_robust_rules_and_the_servers_own_data(rule: Any) -> None:
    fed = replace(federation((7, 25, 9, 12)), root=torch.arange(5))
    compare(*side_by_side(Method("robust", server=rule), fed=fed))


@pytest.mark.parametrize("name", STATEFUL)
def test_nodes_that_start_anew_before_every_message_go_on_from_their_disk(name: str, tmp_path: Path) -> None:
    steady, far = side_by_side(METHODS[name].make())
    shaky = Deployed(steady.scenario, steady.method, PLAIN, tmp_path)
    for _ in range(3):
        shaky.step()
        for k in shaky.nodes:
            shaky.restart_node(k)
    shaky.finish()
    assert torch.equal(shaky.server.w, far.server.w)
    assert all(equal(shaky.state(k), far.state(k)) for k in far.nodes)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_server_that_asks_for_a_round_again_gets_the_same_answers(name: str, tmp_path: Path) -> None:
    steady, far = side_by_side(METHODS[name].make())
    shaky = Deployed(steady.scenario, steady.method, PLAIN, tmp_path)
    for round in range(3):
        saved = shaky.deployment.dump()
        shaky.step()
        if round == 1:  # killed after the clients had answered, before anything was saved
            shaky.start_server()
            shaky.deployment.load(saved)
            shaky.restart_node(2)
            shaky.step()
    shaky.finish()
    assert torch.equal(shaky.server.w, far.server.w)
    assert all(equal(shaky.state(k), far.state(k)) for k in far.nodes)


def test_an_evaluation_comes_along_with_the_next_training() -> None:
    method = METHODS["ditto"].make()
    sim = simulation(method, run=PLAIN)
    far = Deployed(sim.scenario, method, PLAIN)
    sim.step()
    far.step()
    after = sim.evaluate("validation")
    far.deployment.evaluate_later()
    far.step()
    for whose, found in after.items():
        assert (far.exchange.evaluation(f"validation/{whose}", 4).correct == found.correct).all()


@pytest.mark.parametrize("name", ["ditto", "rffl", "fedtilt"])
def test_a_training_asked_for_again_brings_the_same_evaluation(name: str, tmp_path: Path) -> None:
    method = METHODS[name].make()
    far = Deployed(simulation(method, run=PLAIN).scenario, method, PLAIN, tmp_path)
    far.step()
    far.deployment.evaluate_later()
    saved = far.deployment.dump()
    far.step()
    first = far.exchange.evaluations
    far.start_server()
    far.deployment.load(saved)
    far.restart_node(1)
    far.step()
    for k, told in first.items():
        assert all(equal(told[what], far.exchange.evaluations[k][what]) for what in told), k
