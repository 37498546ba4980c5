"""FedMGDA+ against a literal transcription whose QP is solved by trying every set of active bounds."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.core import Cohort, Outcome, WeightedMean
from equipoise.errors import EquipoiseError
from equipoise.methods.fedmgda import FedMGDA, fedmgda
from equipoise.solvers import min_norm
from tests.small import cohort, federation, relative, simulation

SEEDS = st.integers(0, 10**6)


def literal_weights(x: np.ndarray, centre: np.ndarray, eps: float) -> np.ndarray:
    """Every weight is at its lower bound, at its upper bound or free; of all feasible ways the shortest."""
    n, gram = len(x), x @ x.T
    low, high = np.maximum(centre - eps, 0), np.minimum(centre + eps, 1)
    best, shortest = centre, np.inf
    for where in product((0, 1, 2), repeat=n):
        free = [i for i in range(n) if where[i] == 2]
        w = np.array([low[i] if where[i] == 0 else high[i] for i in range(n)])
        w[free] = 0.0
        if free:
            a = np.block([[gram[np.ix_(free, free)], -np.ones((len(free), 1))], [np.ones((1, len(free))), 0.0]])
            b = np.r_[-(gram @ w)[free], 1 - w.sum()]
            w[free] = np.linalg.lstsq(a, b, rcond=None)[0][:-1]
        feasible = abs(w.sum() - 1) < 1e-9 and (w >= low - 1e-10).all() and (w <= high + 1e-10).all()
        if feasible and w @ gram @ w < shortest:
            best, shortest = w, w @ gram @ w
    return best


def literal(c: Cohort, eps: float, server_lr: float, centre: np.ndarray) -> np.ndarray:
    x = np.array([u / np.linalg.norm(u) for u in c.updates.numpy()])
    lam = literal_weights(x, centre, eps)
    return server_lr * sum(lam[k] * x[k] for k in range(len(x)))


def run(c: Cohort, **options: Any) -> Outcome:
    return FedMGDA(**options)(c, {})


@settings(max_examples=50)
@given(
    SEEDS, st.integers(1, 5), st.sampled_from([0.0, 0.05, 0.1, 0.2, 1.0]), st.booleans(), st.sampled_from([1.0, 0.03])
)
def test_it_is_its_equations(seed: int, m: int, eps: float, alike: bool, server_lr: float) -> None:
    c = cohort(m, 12, seed=seed)
    rows = c.updates + (c.updates.mean(0) if alike else 0)
    c = replace(c, updates=rows * torch.logspace(-3, 2, m, dtype=torch.float64)[:, None])
    expected = literal(c, eps, server_lr, np.full(m, 1 / m))
    found = run(c, eps=eps, server_lr=server_lr).direction.numpy()
    assert np.abs(found - expected).max() <= 1e-9 * server_lr


@pytest.mark.parametrize("weights", ["size", "capped"])
def test_sizes_move_the_centre(weights: str) -> None:
    c = replace(cohort(4, 12, seed=3), sizes=torch.tensor([1, 2, 3, 10]))
    n = np.array([1, 2, 3, 10.0] if weights == "size" else [1, 2, 2, 2.0])
    expected = literal(c, 0.05, 1.0, n / n.sum())
    assert run(c, eps=0.05, weights=weights).direction.numpy() == pytest.approx(expected, abs=1e-9)


def test_eps_zero_is_the_mean_of_the_directions() -> None:
    c = cohort(7, 30)
    expected = (c.updates / c.updates.norm(dim=1, keepdim=True)).mean(0)
    assert relative(run(c, eps=0.0).direction, expected) < 1e-12


def test_eps_one_is_mgda_and_opposes_nobody() -> None:
    for seed in range(8):
        c = cohort(6, 40, seed=seed)
        x = c.updates / c.updates.norm(dim=1, keepdim=True)
        d = run(c, eps=1.0).direction
        assert relative(d, min_norm((x @ x.T)[None])[0] @ x) < 1e-9
        assert (x @ d >= float(d @ d) - 1e-9).all()


def test_weights_stay_within_eps_of_the_plain_mean_and_a_bound_can_hold() -> None:
    c = cohort(10, 30, seed=2)
    c.updates[0] = -c.updates[1:].mean(0)
    for eps in (0.01, 0.05, 0.1):
        weights = run(c, eps=eps).info["weights"]
        assert float(weights.sum()) == pytest.approx(1) and ((weights - 0.1).abs() <= eps + 1e-12).all()
        assert float((weights - 0.1).abs().max()) == pytest.approx(eps)


def test_the_length_of_an_update_does_not_matter() -> None:
    c = cohort(5, 30)
    longer = replace(c, updates=c.updates * torch.tensor([1.0, 1e3, 1e-3, 7.0, 1e9], dtype=torch.float64)[:, None])
    assert relative(run(longer).direction, run(c).direction) < 1e-9


def test_one_client_gives_its_direction() -> None:
    c = cohort(1, 12)
    assert relative(run(c, server_lr=0.5).direction, 0.5 * c.updates[0] / c.updates[0].norm()) < 1e-12


def test_zero_updates_are_left_out_and_all_zero_leaves_the_model_alone() -> None:
    c = cohort(5, 30)
    c.updates[2] = 0
    others = torch.tensor([0, 1, 3, 4])
    without = Cohort(others, c.start, c.updates[others], c.sizes[others])
    assert relative(run(c).direction, run(without).direction) < 1e-12 and float(run(c).info["weights"][2]) == 0
    nothing = run(replace(c, updates=torch.zeros_like(c.updates)))
    assert not nothing.direction.any() and nothing.info["reason"] == "no update"


def test_a_mixture_that_is_zero_leaves_the_model_alone_and_says_why() -> None:
    c = cohort(2, 12)
    outcome = run(replace(c, updates=torch.stack([c.updates[0], -3 * c.updates[0]])))
    assert not outcome.direction.any() and "stationary" in outcome.info["reason"]


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_extreme_float32_updates_give_a_step_of_the_same_length(size: float) -> None:
    c = cohort(6, 30, dtype=torch.float32)
    d = run(replace(c, updates=size * c.updates)).direction
    assert relative(d.double(), run(c).direction.double()) < 1e-5


def test_bad_options_are_named() -> None:
    bad = ({"eps": -0.1}, {"eps": 1.1}, {"eps": float("nan")}, {"server_lr": 0.0}, {"server_lr": float("inf")})
    for options in (*bad, {"weights": "typo"}):
        with pytest.raises(EquipoiseError, match=f"fedmgda: {next(iter(options))} is"):
            fedmgda(**options)  # type: ignore[arg-type]


def test_it_trains_and_is_another_method_than_fedavg() -> None:
    fed = federation((9, 12, 15, 9, 8, 10))
    sim, plain = simulation(fedmgda(server_lr=0.2), fed), simulation(None, fed)
    before = sim.evaluate("train")["global"].loss.mean()
    for _ in range(10):
        assert not sim.step().skipped
        plain.step()
    assert sim.evaluate("train")["global"].loss.mean() < before
    assert not torch.equal(sim.server.w, plain.server.w) and plain.method.server == WeightedMean()
