"""What the personalised methods have in common: who uses which model when, odd and absent clients, any executor."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.aggregators.coordinate_median import CoordinateMedian as Median
from equipoise.core import Method, WeightedMean
from equipoise.data.federation import Federation
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.methods.apfl import apfl
from equipoise.methods.ewc import ewc
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedprox import fedprox
from equipoise.methods.fedtilt import fedtilt
from equipoise.methods.finetuning import finetuning
from equipoise.methods.l2sgd import l2sgd
from equipoise.methods.mapper import mapper
from equipoise.methods.mocha import mocha
from equipoise.methods.perfedavg import perfedavg
from equipoise.methods.skl import skl
from tests.small import federation, simulation

MAKE: dict[str, Callable[[], Method]] = {
    "finetuning": lambda: finetuning(2),
    "ewc": lambda: ewc(epochs=2),
    "ewc by batch": lambda: ewc(epochs=2, fisher="batch"),
    "skl": lambda: skl(epochs=2),
    "perfedavg": lambda: perfedavg(0.05),
    "perfedavg fo": lambda: perfedavg(0.05, variant="fo"),
    "apfl": apfl,
    "apfl adaptive": lambda: apfl(adaptive=True),
    "mapper": mapper,
    "l2sgd": lambda: l2sgd(p=0.3),
    "l2sgd local": lambda: l2sgd(variant="local"),
    "mocha": lambda: mocha(every=2),
}
AFTERWARDS = ("finetuning", "ewc", "ewc by batch", "skl", "perfedavg", "perfedavg fo")


def run(
    method: Method, rounds: int = 3, executor: str = "vmap", fed: Federation | None = None, per_round: int | None = None
) -> Simulation:
    sim = simulation(
        method,
        fed,
        model="mlp",
        hidden=(5,),
        run=Run(dtype="float64", executor=executor),  # type: ignore[arg-type]
        train=Train(rounds=rounds, batch=5, lr=0.1),
        participation=Participation(per_round=per_round),
    )
    for _ in range(rounds):
        sim.step()
    return sim


def own(sim: Simulation) -> Tensor:
    """[N, d]: the models that clients use, those that were never drawn included."""
    return sim.simulator.personal(torch.arange(sim.n_clients), sim.server.w)


@pytest.mark.parametrize("name", MAKE)
def test_the_last_training_is_the_same_for_clients_as_rows_and_one_by_one(name: str) -> None:
    ends = []
    for executor in ("vmap", "loop"):
        sim = run(MAKE[name](), executor=executor)
        sim.finish()
        ends.append(sim.dump())
    assert ends[0].keys() == ends[1].keys()
    for key, value in ends[0].items():
        assert torch.allclose(value.double(), ends[1][key].double(), rtol=1e-8, atol=1e-10), key


@pytest.mark.parametrize("name", MAKE)
def test_clients_with_no_sample_and_with_one_end_with_models_that_are_finite(name: str) -> None:
    sim = run(MAKE[name](), fed=federation((0, 1, 9, 5)))
    sim.finish()
    assert bool(torch.isfinite(own(sim)).all()) and bool(torch.isfinite(sim.server.w).all())


@pytest.mark.parametrize("name", MAKE)
def test_nobody_has_data_and_nothing_breaks(name: str) -> None:
    sim = run(MAKE[name](), fed=federation((0, 0, 0)), rounds=2)
    sim.finish()
    assert bool(torch.isfinite(own(sim)).all())


@pytest.mark.parametrize("name", AFTERWARDS)
def test_until_the_last_round_clients_use_the_global_model_and_then_their_own(name: str) -> None:
    sim = run(MAKE[name]())
    everyone = sim.server.w.expand(sim.n_clients, -1)
    assert torch.equal(own(sim), everyone)
    sim.finish()
    assert bool((own(sim) != everyone).any(1).all())


@pytest.mark.parametrize("name", ["finetuning", "ewc", "ewc by batch", "skl"])
def test_what_comes_after_the_last_round_leaves_the_global_model_to_the_bit(name: str) -> None:
    sim, plain = run(MAKE[name]()), run(fedavg())
    sim.finish()
    assert torch.equal(sim.server.w, plain.server.w)


@pytest.mark.parametrize("name", AFTERWARDS)
def test_clients_that_were_never_drawn_adapt_the_final_model_too(name: str) -> None:
    sim = run(MAKE[name](), rounds=1, per_round=1)
    sim.finish()
    assert bool((own(sim) != sim.server.w).any(1).all())


@pytest.mark.parametrize("name", MAKE)
def test_personal_models_fit_their_clients_better_than_the_global_one(name: str) -> None:
    """Clients that disagree about every label: no global model can serve them."""
    fed = federation((20, 20, 20))
    y = fed.data.y.clone()
    for k in range(3):
        at = fed.splits["train"].of_client(k)
        y[at] = (y[at] + k) % 3
    fed.data.y.copy_(y)
    sim = run(MAKE[name](), rounds=8, fed=fed)
    sim.finish()
    found = sim.evaluate("train")
    assert torch.as_tensor(found["personal"].loss).mean() < torch.as_tensor(found["global"].loss).mean()


@pytest.mark.parametrize("name", ["ewc", "apfl adaptive", "mapper", "l2sgd", "mocha"])
def test_a_run_that_is_saved_and_restored_goes_on_to_the_same_bits(name: str) -> None:
    whole, half, rest = run(MAKE[name](), rounds=4), run(MAKE[name](), rounds=2), run(MAKE[name](), rounds=0)
    rest.load(half.dump())
    for _ in range(2):
        rest.step()
    for sim in (whole, rest):
        sim.finish()
    assert torch.equal(own(whole), own(rest))


@pytest.mark.parametrize("recipe", [finetuning, ewc, skl, perfedavg, apfl, mapper, l2sgd], ids=lambda r: r.__name__)
def test_any_server_rule_can_be_given(recipe: Callable[..., Method]) -> None:
    assert recipe(server=Median()).server == Median()


@pytest.mark.parametrize("recipe", [finetuning, ewc, skl], ids=lambda r: r.__name__)
def test_the_base_method_gives_client_server_and_objective_unless_a_server_is_given(
    recipe: Callable[..., Method],
) -> None:
    base = fedtilt()
    method = recipe(base=base)
    assert method.server == base.server and method.client.objective == base.client.objective
    last = method.client.finish()
    assert last is not None and last.objective == base.client.objective
    assert recipe(base=fedprox(), server=Median()).server == Median()


def test_l2sgd_with_few_clients_a_round_does_not_run_away() -> None:
    """The mean of those drawn is within their models; sums of their steps would feed on themselves."""
    sim = run(l2sgd(5.0, 0.3), rounds=60, per_round=1, fed=federation((9, 12, 7, 10, 8, 11)))
    assert float(sim.server.w.norm()) < 5 * float(own(sim).norm(dim=1).max())
    assert float(own(sim).norm(dim=1).max()) < 20 * float(sim.simulator.w0.norm())


def test_a_client_that_l2sgd_draws_late_starts_from_the_initial_model() -> None:
    sim = run(l2sgd(1.0), rounds=1, per_round=1)
    (drawn,) = sim.simulator.store.ids().tolist()
    others = [k for k in range(sim.n_clients) if k != drawn]
    assert torch.equal(own(sim)[others], sim.simulator.w0.expand(len(others), -1))


def test_until_its_first_round_a_client_of_mapper_uses_the_central_model() -> None:
    sim = run(mapper(), rounds=1, per_round=1)
    (drawn,) = sim.simulator.store.ids().tolist()
    others = [k for k in range(sim.n_clients) if k != drawn]
    assert torch.equal(own(sim)[others], sim.server.w.expand(len(others), -1))


def test_the_papers_that_take_the_plain_mean_have_it_by_default() -> None:
    for plain in (apfl(), perfedavg(), l2sgd()):
        assert plain.server == WeightedMean("uniform")
    for by_size in (finetuning(), ewc(), skl(), mapper()):
        assert by_size.server == WeightedMean("size")
