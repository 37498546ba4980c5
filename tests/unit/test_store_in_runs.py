"""Where the clients' state is kept changes no number of a run, and a run can be told where."""

import pytest
import torch

from equipoise import registry
from equipoise.config import dump, load
from equipoise.core import Method
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.methods import ditto
from tests.small import federation, simulation
from tests.unit.test_store import kept

SIZES = (7, 25, 1, 12, 9, 14, 5)
DITTO = {
    "joint": lambda: ditto(lam=0.5),
    "validation": lambda: ditto(choose="validation"),
    "finetune": lambda: ditto(solver="finetune", finetune_epochs=1),
    "over rffl": lambda: ditto(base=registry.methods()["rffl"].make()),
}
STATEFUL = [n for n, e in registry.methods().items() if e.make().client.init(torch.zeros(1, 3))]
KEPT = [("host", False), ("disk", True), ("mixed", True)]


def made(method: Method, place: str = "device") -> Simulation:
    return simulation(
        method,
        federation(SIZES),
        train=Train(steps=2, batch=5, lr=0.1),
        participation=Participation(per_round=4),
        run=Run(personal="auto" if place == "mixed" else place, executor="vmap"),  # type: ignore[arg-type]
    )


def done(sim: Simulation, rounds: int) -> dict[str, object]:
    """The rest of a run of so many rounds, and everything that came out."""
    while sim.round < rounds:
        sim.step()
    sim.finish()
    found = {n: t.tolist() for n, t in sim.dump().items()}
    served = {n: (e.loss.tolist(), e.correct.tolist()) for n, e in sim.evaluate("test").items()}
    ids, models = sim.personal() or (torch.empty(0), torch.empty(0))
    return {**found, **served, "ids": ids.tolist(), "models": models.tolist()}


@pytest.fixture(scope="module")
def truth() -> dict[str, dict[str, object]]:
    """On the device, in one block."""
    return {name: done(made(make()), 3) for name, make in DITTO.items()}


@pytest.mark.parametrize(("place", "slow"), KEPT)
@pytest.mark.parametrize("name", DITTO)
def test_ditto_gives_the_same_bits_wherever_its_models_are(
    truth: dict[str, dict[str, object]], name: str, place: str, slow: bool
) -> None:
    with kept(place, slow, block=300):
        sim = made(DITTO[name](), place)
        assert done(sim, 3) == truth[name]
        found = sim.simulator.store.places()["v"]
        assert len(found) > 2 and set(found) == ({place} if place != "mixed" else {"device", "host", "disk"})


@pytest.mark.parametrize(("place", "slow"), KEPT)
@pytest.mark.parametrize("name", DITTO)
def test_a_run_may_be_resumed_from_one_place_in_another(
    truth: dict[str, dict[str, object]], name: str, place: str, slow: bool
) -> None:
    with kept(place, slow, block=300):
        before = made(DITTO[name](), place)
        before.step()
        saved = before.dump()
        for where in ("device", place):
            resumed = made(DITTO[name](), where)
            resumed.load(saved)
            assert done(resumed, 3) == truth[name]


@pytest.mark.usefixtures("one_epoch_alone")
@pytest.mark.parametrize("name", STATEFUL)
def test_every_method_with_state_gives_the_same_bits_from_a_file(name: str) -> None:
    make = registry.methods()[name].make
    near = done(made(make()), 2)
    with kept("disk", slow=True, block=200):
        assert done(made(make(), "disk"), 2) == near


def test_a_config_can_ask_for_a_place() -> None:
    parts = '[data]\ndataset = "digits"\nclients = 4\n[model]\nkind = "mlp"\n[method]\nname = "ditto"\n'
    text = parts + '[run]\npersonal = "{}"\n'
    assert load(text.format("disk")).run.personal == "disk"
    assert 'personal = "disk"' in dump(load(text.format("disk")))
    with pytest.raises(EquipoiseError, match="personal"):
        load(text.format("moon"))


def test_a_record_made_from_python_does_not_say_where() -> None:
    """Numbers do not depend on it; and folders from before there was a choice can still be resumed."""
    assert repr(Run(personal="disk")) == repr(Run()) and "personal" not in repr(Run())
