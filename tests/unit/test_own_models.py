"""`run.own_models = "honest"`: malicious clients do what they send, and nothing that only they would use."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise import registry
from equipoise.attacks import LabelNoise, RandomUpdate, SignFlip
from equipoise.core import At, Method, State
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.methods import apfl, ditto, fedavg
from equipoise.methods.ditto import Ditto
from equipoise.threat import Attack
from tests.small import federation, relative, simulation

METHODS = registry.methods()
pytestmark = pytest.mark.usefixtures("one_epoch_alone")
ROUNDS = 5


def ran(method: Method, attack: Attack | None, own_models: Any, executor: Any = "loop", **more: Any) -> Simulation:
    run = Run(dtype="float64", executor=executor, own_models=own_models, **more)
    fed = federation((7, 25, 9, 12, 8, 6))
    train, some = Train(rounds=ROUNDS, batch=5, lr=0.1), Participation(per_round=4, dropout=0.2)
    sim = simulation(method, fed, model="mlp", hidden=[4], attack=attack, train=train, participation=some, run=run)
    for _ in range(ROUNDS):
        sim.step()
    sim.finish()
    return sim


ATTACKS = [SignFlip(fraction=0.5), LabelNoise(fraction=0.5), RandomUpdate(fraction=0.5), SignFlip(clients=range(6))]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_the_global_model_and_honest_clients_are_the_same_to_the_last_bit(name: str, attack: Attack) -> None:
    every, some = (ran(METHODS[name].make(), attack, who) for who in ("all", "honest"))
    assert torch.equal(every.server.w, some.server.w)
    honest = ~every.malicious.numpy()
    for model, found in some.evaluate("test").items():
        before = every.evaluate("test")[model]
        np.testing.assert_array_equal(found.loss[honest], before.loss[honest])
        np.testing.assert_array_equal(found.correct[honest], before.correct[honest])


@pytest.mark.parametrize("replay", ["on", "off"])
@pytest.mark.parametrize("make", [lambda: ditto(), lambda: apfl(), lambda: ditto(base=METHODS["term"].make())])
def test_rows_at_once_come_to_the_same(make: Any, replay: Any) -> None:
    every, some = (ran(make(), ATTACKS[0], who, "vmap", replay=replay) for who in ("all", "honest"))
    assert relative(some.server.w, every.server.w) < 1e-12
    honest = ~every.malicious.numpy()
    one, other = (sim.evaluate("test")["personal"].loss[honest] for sim in (every, some))
    np.testing.assert_allclose(one, other, rtol=1e-9)
    assert not some.remarks


@pytest.mark.parametrize("make", [lambda: ditto(), lambda: ditto(solver="finetune"), lambda: apfl()])
def test_malicious_clients_keep_nothing_and_use_what_they_began_with(make: Any) -> None:
    every, some = (ran(make(), ATTACKS[0], who) for who in ("all", "honest"))
    bad = set(torch.nonzero(some.malicious).flatten().tolist())
    assert bad & set(every.simulator.store.ids().tolist())
    assert not bad & set(some.simulator.store.ids().tolist())
    fresh = ran(make(), None, "all").simulator
    fresh.store = type(fresh.store)(6)
    ids = torch.tensor(sorted(bad))
    assert torch.equal(some.simulator.personal(ids, some.server.w), fresh.personal(ids, some.server.w))


def test_who_sends_what_follows_from_their_own_model_keeps_it() -> None:
    every, some = (ran(METHODS["l2sgd"].make(), ATTACKS[0], who) for who in ("all", "honest"))
    assert torch.equal(every.simulator.store.ids(), some.simulator.store.ids())


def test_a_base_with_a_state_is_kept() -> None:
    method = ditto(base=METHODS["rffl"].make())
    every, some = (ran(method, ATTACKS[0], who) for who in ("all", "honest"))
    assert torch.equal(every.server.w, some.server.w)
    assert torch.equal(every.simulator.store.ids(), some.simulator.store.ids())


def test_without_an_attack_nobody_is_spared() -> None:
    every, some = (ran(ditto(), None, who) for who in ("all", "honest"))
    one, other = every.dump(), some.dump()
    assert one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_a_run_goes_on_from_its_dump() -> None:
    whole = ran(ditto(), ATTACKS[0], "honest")
    again = ran(ditto(), ATTACKS[0], "honest")
    again.load(whole.dump())
    for sim in (whole, again):
        sim.step()
    one, other = whole.dump(), again.dump()
    assert one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_methods_without_models_of_their_own_are_as_they_were() -> None:
    sim = ran(fedavg(), ATTACKS[0], "honest")
    assert not bool(sim.simulator.spared.any())


class Noisy(Ditto):
    """A Ditto of one's own, which sends something else."""

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, state = super().step(w, state, at)
        return w * 0.9, state


class Quiet(Ditto):
    """Another, which only chooses otherwise."""

    def personal(self, w: Tensor, state: State) -> Tensor:
        return w


@pytest.mark.parametrize(
    ("rule", "spares"), [(Noisy(), False), (Quiet(), True), (Ditto(base=Noisy()), False), (Ditto(base=Ditto()), True)]
)
def test_what_is_inherited_does_not_speak_for_a_class_that_sends_something_else(rule: Ditto, spares: bool) -> None:
    every, some = (ran(Method("own", rule), ATTACKS[0], who) for who in ("all", "honest"))
    assert torch.equal(every.server.w, some.server.w)
    assert bool(some.simulator.spared.any()) == spares
