"""FedTilt: the methods it contains, its limits in closed form, its centre under odd updates, and Table I's signs."""

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor, nn

from equipoise.core import At, ClientRule, Cohort, Method, State, WeightedMean
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.data.synthetic import fedtilt_toy
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.losses import cross_entropy
from equipoise.methods.ditto import ditto
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedprox import fedprox
from equipoise.methods.fedtilt import TiltedCentre, fedtilt
from tests.small import cohort, federation, relative, simulation

UNIFORM = WeightedMean("uniform")


def after(sim: Simulation, rounds: int = 4) -> Simulation:
    for _ in range(rounds):
        sim.step()
    return sim


def personal(sim: Simulation) -> Tensor:
    found = sim.personal()
    assert found is not None
    return found[1]


# ----------------------------------------------------------------------------------------- Propositions 1 to 3


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_without_tilts_it_is_ditto_with_the_plain_mean(mu: float) -> None:
    tilt, plain = after(simulation(fedtilt(0.0, 0.0, mu))), after(simulation(ditto(mu)))
    assert relative(tilt.server.w, plain.server.w) < 1e-12
    assert relative(personal(tilt), personal(plain)) < 1e-12


@pytest.mark.parametrize("mu", [0.0, 0.01, 3.0])
def test_without_tilts_the_global_model_is_that_of_fedavg_for_any_mu(mu: float) -> None:
    tilt, plain = after(simulation(fedtilt(0.0, 0.0, mu))), after(simulation(fedavg(server=UNIFORM)))
    assert relative(tilt.server.w, plain.server.w) < 1e-12


@dataclass(frozen=True)
class SendsPersonal(ClientRule):
    """FedTilt's client whose personal model starts at the received one and is what is sent."""

    inner: ClientRule

    def init(self, w: Tensor) -> State:
        return self.inner.init(w)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received, {"v": received}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return self.inner.step(w, state, at)

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return state["v"], state


def test_without_tilts_it_is_fedprox_when_personal_models_restart_and_are_sent() -> None:
    mu, tilt = 0.3, fedtilt(0.0, 0.0, 0.3)
    sent = after(simulation(Method("sent", SendsPersonal(tilt.client), tilt.server)))
    assert relative(sent.server.w, after(simulation(fedprox(mu, server=UNIFORM))).server.w) < 1e-12


def test_both_models_see_the_same_batches() -> None:
    sim = after(simulation(fedtilt(2.0, -1.0, mu=0.0), federation((25,))), 1)
    assert torch.allclose(personal(sim)[0], sim.server.w, rtol=1e-12)


def test_clients_never_drawn_keep_the_initial_model() -> None:
    sim = after(simulation(fedtilt(), participation=Participation(per_round=1)), 1)
    drawn = sim.simulator.store.ids().tolist()
    models = sim.simulator.personal(torch.arange(4), sim.server.w)
    same = [torch.equal(m, sim.simulator.w0) for m in models]
    assert [k for k in range(4) if not same[k]] == drawn


# ------------------------------------------------------------------------------------- quadratics, in closed form


def shares(counts: list[tuple[int, int]]) -> Federation:
    """Two classes and the input 1, so that a linear model is one point, and the loss of class c is its half squared
    distance to the unit vector c."""
    y = [torch.tensor([0] * a + [1] * b) for a, b in counts]
    parts = Split.of(list(torch.split(torch.arange(sum(map(len, y))), [len(t) for t in y])))
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * len(y))
    x = torch.ones((sum(map(len, y)), 1), dtype=torch.float64)
    return Federation(Dataset("q", x, torch.cat(y), 2), {"train": parts, "validation": nobody, "test": parts})


def settled(method: Method, counts: list[tuple[int, int]], lr: float = 0.2, rounds: int = 60) -> Simulation:
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    train = Train(batch=0, lr=lr, loss="squared")
    return after(simulation(method, shares(counts), model=model, train=train), rounds)


@pytest.mark.parametrize("mu", [0.0, 0.01, 0.5, 2.0])
def test_personal_models_lie_between_local_and_global_as_mu_says(mu: float) -> None:
    counts = [(9, 1), (2, 2), (1, 4)]
    local = torch.tensor([[a / (a + b), b / (a + b)] for a, b in counts], dtype=torch.float64)
    sim = settled(fedtilt(0.0, 0.0, mu), counts)
    assert torch.allclose(sim.server.w, local.mean(0), atol=1e-5)
    assert torch.allclose(personal(sim), (local + mu * local.mean(0)) / (1 + mu), atol=1e-5)


@pytest.mark.parametrize("tau", [-1.0, 0.0, 1.0, 20.0])
def test_the_class_tilt_solves_its_own_balance(tau: float) -> None:
    """At the minimum (a, 1 - a), class 0 has the weight a = 9 e^{tau (1-a)^2} / (9 e^{tau (1-a)^2} + e^{tau a^2}):
    0.9 without a tilt, towards 1/2 with a positive one, where both classes have the same loss."""
    want = optimize.brentq(lambda a: math.log(a / (1 - a)) - math.log(9) - tau * (1 - 2 * a), 1e-9, 1 - 1e-9)
    found = personal(settled(fedtilt(1.0, tau, mu=0.0), [(9, 1)], lr=0.15))[0]
    assert found.tolist() == pytest.approx([want, 1 - want], abs=2e-4)


def test_a_very_negative_class_tilt_leaves_only_the_class_with_the_smallest_loss() -> None:
    assert personal(settled(fedtilt(1.0, -50.0, mu=0.0), [(9, 1)], lr=0.15))[0].tolist() == pytest.approx(
        [1, 0], abs=1e-3
    )


# --------------------------------------------------------------------------------------------- the server's centre


def points(*rows: list[float], dtype: torch.dtype = torch.float64) -> Cohort:
    u = torch.tensor(rows, dtype=dtype)
    return Cohort(torch.arange(len(u)), torch.zeros(u.shape[1], dtype=dtype), u, torch.ones(len(u)), n_clients=len(u))


def centre(seen: Cohort, *args: Any, **options: Any) -> Tensor:
    return TiltedCentre(*args, **options)(seen, {}).direction


def test_the_untilted_centre_is_the_plain_mean_whatever_the_sizes() -> None:
    seen = cohort()
    outcome = TiltedCentre()(seen, {})
    assert torch.allclose(outcome.direction, seen.updates.mean(0), rtol=1e-12)
    assert torch.allclose(outcome.info["weights"], torch.full((6,), 1 / 6, dtype=torch.float64))


@pytest.mark.parametrize("dist", ["squared", "l2"])
def test_a_large_tilt_is_the_centre_of_the_smallest_ball_around_all(dist: Any) -> None:
    seen = points([-1.0, 0.0], [0.0, 0.0], [0.5, 0.1], [5.0, 0.0])
    assert centre(seen, 30.0, dist, steps=500).tolist() == pytest.approx([2.0, 0.0], abs=0.05)


@pytest.mark.parametrize("dist", ["squared", "l2"])
def test_a_large_negative_tilt_is_one_clients_model(dist: Any) -> None:
    seen = points([0.4, 0.1], [2.0, 2.0], [3.0, -2.0])
    found = centre(seen, -50.0, dist, steps=200)
    assert float((seen.updates - found).norm(dim=1).min()) < 1e-3


def test_the_furthest_client_is_nearer_the_more_positive_the_tilt() -> None:
    """Table I: q > 0 high, 0 medium, < 0 low evenness between clients."""
    seen = cohort(5, 8, seed=3)
    furthest = [float((seen.updates - centre(seen, q, steps=200)).norm(dim=1).max()) for q in (-0.3, 0.0, 0.3, 3.0)]
    assert furthest == sorted(furthest, reverse=True) and furthest[0] > 1.1 * furthest[-1]


@pytest.mark.parametrize("dist", ["squared", "l2"])
@pytest.mark.parametrize("q", [-3.0, -0.1, 0.1, 3.0, 300.0])
def test_every_step_lowers_the_objective(q: float, dist: Any) -> None:
    values = [TiltedCentre(q, dist, steps=s)(cohort(seed=5), {}).info["objective"] for s in range(1, 12)]
    assert all(b <= a for a, b in pairwise(values))


@pytest.mark.parametrize("dist", ["squared", "l2"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_normalised_distances_make_the_tilt_mean_the_same_at_any_scale(scale: float, dist: Any) -> None:
    seen = cohort(seed=1)
    once = centre(seen, -2.0, dist, normalise_dist=True)
    scaled = centre(seen.with_updates(scale * seen.updates), -2.0, dist, normalise_dist=True)
    assert relative(scaled, scale * once) < 1e-9
    assert relative(once, seen.updates.mean(0)) > 1e-3


@pytest.mark.parametrize("options", [{"q": -2.0, "normalise_dist": True}, {"dist": "l2", "steps": 50}])
def test_one_huge_update_hardly_moves_a_centre_that_ignores_what_is_far(options: dict[str, Any]) -> None:
    seen = cohort(8, 12, seed=2)
    bad = seen.updates.clone()
    bad[3] = 1e12
    moved = centre(seen.with_updates(bad), **options) - centre(seen, **options)
    assert float(moved.norm()) < float(seen.updates.norm(dim=1).mean())


def test_a_client_that_sends_nothing_does_not_hold_the_geometric_median_fast() -> None:
    seen = cohort(6, 12, seed=4)
    bad = seen.updates + 1.0
    bad[0] = 0.0
    found = centre(seen.with_updates(bad), dist="l2", steps=50)
    best = optimize.minimize(lambda p: np.linalg.norm(bad.numpy() - p, axis=1).sum(), bad.numpy().mean(0), tol=1e-10)
    assert relative(found, torch.from_numpy(best.x)) < 1e-2


@pytest.mark.parametrize("dist", ["squared", "l2"])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("q", [-1e6, -1.0, 0.0, 1.0, 1e6])
def test_odd_updates_give_a_finite_direction_and_weights_that_sum_to_one(q: float, normalise: bool, dist: Any) -> None:
    rule = TiltedCentre(q, dist, normalise)
    one = points([1.0, -2.0])
    odd = {
        "one client": one,
        "nothing": points([0.0, 0.0], [0.0, 0.0]),
        "all the same": points([1.0, 2.0], [1.0, 2.0], [1.0, 2.0]),
        "half nothing": points([0.0, 0.0], [0.0, 0.0], [1.0, 1.0]),
        "tiny": points([1e-200, 0.0], [0.0, 1e-200]),
        "huge": points([1e200, 0.0], [0.0, -1e200], [1.0, 1.0]),
        "huge and float32": points([3e38, 3e38], [-3e38, 1.0], [1.0, 1.0], dtype=torch.float32),
    }
    for name, seen in odd.items():
        outcome = rule(seen, {})
        assert torch.isfinite(outcome.direction).all(), name
        assert outcome.direction.dtype == seen.updates.dtype
        assert float(outcome.info["weights"].sum()) == pytest.approx(1.0), name
        low, high = seen.updates.amin(0).clamp(max=0), seen.updates.amax(0).clamp(min=0)
        assert ((outcome.direction >= low) & (outcome.direction <= high)).all(), name
    assert torch.allclose(rule(one, {}).direction, one.updates[0])
    assert torch.allclose(rule(odd["all the same"], {}).direction, odd["all the same"].updates[0])


def test_distances_of_close_models_do_not_cancel() -> None:
    """Far from 0 and 1e-8 apart: squares of norms would lose everything."""
    seen = points([1e4, 0.0], [1e4, 1e-8], [1e4, 2e-8])
    apart = points([0.0, 0.0], [0.0, 1.0], [0.0, 2.0])
    found = centre(seen, -1.0, "l2", normalise_dist=True, steps=200)
    want = centre(apart, -1.0, "l2", normalise_dist=True, steps=200)
    assert float(found[1]) * 1e8 == pytest.approx(float(want[1]), rel=1e-4)


# ----------------------------------------------------------------------------------- Table I on the toy problems


@cache
def toy(problem: int, lam: float, tau: float, q: float = 0.0, rounds: int = 10) -> tuple[Any, tuple[Tensor, ...]]:
    """Test results of both clients, and the training losses of each class under the first client's personal model."""
    fed, model = fedtilt_toy(problem), nn.Linear(2, 2)
    for p in model.parameters():
        nn.init.zeros_(p)
    train = Train(epochs=5, batch=0, lr=0.3)
    sim = after(simulation(fedtilt(lam, tau, mu=0.01, q=q), fed, model=model, train=train, run=Run()), rounds)
    mine = fed.splits["train"].of_client(0)
    params = sim.server.layout.tensors(personal(sim)[0])
    losses = cross_entropy(fed.data.x[mine] @ params["weight"].T + params["bias"], fed.data.y[mine])
    return sim.evaluate("test")["personal"], tuple(losses[fed.data.y[mine] == c] for c in (0, 1))


def class_gap(lam: float, tau: float) -> float:
    first, second = toy(2, lam, tau)[1]
    return abs(float(first.mean() - second.mean()))


def test_on_the_first_toy_problem_both_clients_are_served_alike() -> None:
    accuracy = toy(1, 1.0, 1.0)[0].accuracy
    assert accuracy.min() > 0.9 and abs(accuracy[0] - accuracy[1]) <= 0.05


def test_on_the_second_toy_problem_a_positive_class_tilt_evens_classes_out_and_a_negative_one_does_not() -> None:
    assert class_gap(0.0, 10.0) < 0.5 * class_gap(0.0, 0.0)
    assert class_gap(0.0, 0.0) < class_gap(0.0, -1.0)
    assert toy(2, 0.0, 100.0)[0].accuracy.min() > 0.9 and np.nanmin(toy(2, 0.0, 100.0)[0].per_class) > 0.9


def test_on_the_third_toy_problem_a_negative_sample_tilt_serves_the_many_and_a_positive_one_the_outliers() -> None:
    noisy = {lam: toy(3, lam, 0.0)[1][0] for lam in (-1.0, 0.0, 1.0)}
    typical = [float(noisy[lam].median()) for lam in (-1.0, 0.0, 1.0)]
    worst = [float(noisy[lam].max()) for lam in (-1.0, 0.0, 1.0)]
    assert typical == sorted(typical) and worst == sorted(worst, reverse=True)
    assert toy(3, -1.0, 1.0)[0].accuracy.mean() > toy(3, 10.0, 1.0)[0].accuracy.mean()


# ------------------------------------------------------------------------------------------------------- refusal


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mu": -1.0}, "fedtilt: mu is -1.0"),
        ({"mu": math.inf}, "fedtilt: mu is inf"),
        ({"lam": math.nan}, "fedtilt: lam is nan"),
        ({"tau": math.inf}, "fedtilt: tau is inf"),
        ({"q": math.nan}, "fedtilt: q is nan"),
        ({"dist": "l1"}, "fedtilt: dist is 'l1'"),
        ({"steps": 0}, "fedtilt: steps is 0"),
        ({"eta3": 1.0}, "fedtilt: eta3 is 1.0"),
        ({"q": 1.0, "server": UNIFORM}, "fedtilt: server is WeightedMean, and q"),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(EquipoiseError, match=words):
        fedtilt(**options)


def test_another_server_takes_the_place_of_the_centre() -> None:
    assert fedtilt(server=UNIFORM).server is UNIFORM


def test_only_the_geometric_median_claims_to_be_robust() -> None:
    claims = {(q, dist): TiltedCentre(q, dist).robust for q in (-1.0, 0.0, 1.0) for dist in ("squared", "l2")}  # type: ignore[arg-type]
    assert [key for key, robust in claims.items() if robust] == [(0.0, "l2")]


def test_a_regression_is_refused_in_words() -> None:
    fed = federation()
    real = replace(fed, data=replace(fed.data, y=fed.data.y.double(), classes=0))
    with pytest.raises(EquipoiseError, match="class-tilted: labels are float64"):
        simulation(fedtilt(), real, outputs=1, train=Train(loss="squared")).step()
