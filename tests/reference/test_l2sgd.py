"""L2SGD against a slow, literal transcription in numpy: the paper's coin, its step sizes, and the limits of lam."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.at import Schedule
from equipoise.errors import EquipoiseError
from equipoise.methods.l2sgd import L2SGD, l2sgd
from equipoise.methods.local import local
from equipoise.streams import Stream
from tests.reference._regression import BATCH, LR, ROUNDS, START, ByHand, Vector, models, problem, simulate


def steps_of(round: int, p: float) -> int:
    """How many local steps come before the coin falls on aggregation, thrown by inverting its distribution."""
    chance = float(Stream(0).child("schedule", round).uniform(torch.zeros(1, dtype=torch.int64)))
    j, below = 0, p
    while below <= chance:
        j, below = j + 1, below + p * (1 - p) ** (j + 1)
    return j


def coin(hand: ByHand, lam: float, p: float) -> tuple[Vector, Vector]:
    """Algorithm 1 with its own step sizes, for the alpha with which a local step has the size lr."""
    n = len(hand.clients)
    x, mean = [START.copy() for _ in hand.clients], START
    for t in range(ROUNDS):
        alpha = hand.lr(t) * n * (1 - p)
        plan = [hand.steps(k, t, Schedule(1, steps_of(t, p), BATCH)) for k in hand.clients]
        for s in range(steps_of(t, p)):
            x = [x[k] - alpha / (n * (1 - p)) * hand.gradient(x[k], plan[k][s][0]) for k in hand.clients]
        mean = hand.mean(x, by_size=False)
        share = alpha * lam / (n * p)
        assert share <= 1
        x = [(1 - share) * x[k] + share * mean for k in hand.clients]
    return mean, np.stack(x)


def within(hand: ByHand, lam: float) -> tuple[Vector, Vector]:
    """Ditto's experiments: the given epochs, the pull towards the last mean in each of their steps."""
    x, mean = [START.copy() for _ in hand.clients], START
    for t in range(ROUNDS):
        for k in hand.clients:
            for (b,) in hand.steps(k, t):
                x[k] = x[k] - hand.lr(t) * (hand.gradient(x[k], b) + lam * (x[k] - mean))
        mean = hand.mean(x, by_size=False)
    return mean, np.stack(x)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), share=st.floats(0, 1), p=st.floats(0.1, 0.9))
def test_the_coin_is_the_papers_algorithm(seed: int, share: float, p: float) -> None:
    hand, lam = ByHand(problem(seed)), share * p / (LR * (1 - p))
    w, own = coin(hand, lam, p)
    found, personal = models(simulate(l2sgd(lam, p), hand.fed))
    assert found == pytest.approx(w, rel=1e-9)
    assert personal == pytest.approx(own, rel=1e-9)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), lam=st.floats(0, 5))
def test_the_local_variant_is_its_equation(seed: int, lam: float) -> None:
    hand = ByHand(problem(seed))
    w, own = within(hand, lam)
    found, personal = models(simulate(l2sgd(lam, variant="local"), hand.fed))
    assert found == pytest.approx(w, rel=1e-9)
    assert personal == pytest.approx(own, rel=1e-9)


def test_without_a_pull_the_local_variant_is_local_training_to_the_bit() -> None:
    pulled = simulate(l2sgd(0.0, variant="local"), problem(1))
    assert np.array_equal(models(pulled)[1], models(simulate(local(), problem(1)))[1])


def test_without_a_pull_the_coin_only_decides_how_long_clients_train_alone() -> None:
    hand = ByHand(problem(2))
    own = models(simulate(l2sgd(0.0, 0.3), hand.fed))[1]
    for k in hand.clients:
        x = START
        for t in range(ROUNDS):
            for (b,) in hand.steps(k, t, Schedule(1, steps_of(t, 0.3), BATCH)):
                x = x - hand.lr(t) * hand.gradient(x, b)
        assert own[k] == pytest.approx(x, rel=1e-9)


def test_an_endless_pull_makes_all_models_their_mean() -> None:
    sim = simulate(l2sgd(1e9), problem(3))
    assert models(sim)[1] == pytest.approx(np.stack([sim.server.w.numpy()] * 4), rel=1e-12)
    before = sim.simulator.store.get(torch.arange(4))["own"]  # after the local steps of the last round
    assert sim.server.w.numpy() == pytest.approx(before.numpy().mean(0), rel=1e-12)


def test_the_mean_of_models_is_the_global_model_before_and_after_the_pull() -> None:
    sim = simulate(l2sgd(2.0, 0.3), problem(4))
    assert models(sim)[1].mean(0) == pytest.approx(sim.server.w.numpy(), rel=1e-12)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
def test_the_numbers_of_steps_are_geometric(p: float) -> None:
    rule, given_ = L2SGD(1.0, p), Schedule(7, None, 3)
    steps = np.array([rule.schedule(given_, t, Stream(5).child(t)).steps for t in range(4000)])
    assert steps.min() == 0
    assert steps.mean() == pytest.approx((1 - p) / p, rel=0.1)
    assert (steps == 0).mean() == pytest.approx(p, rel=0.15)
    assert rule.schedule(given_, 0, Stream(5)).batch == 3
    assert L2SGD(1.0, p, "local").schedule(given_, 0, Stream(5)) == given_


def test_the_pull_brings_full_gradient_runs_to_the_objectives_minimum() -> None:
    """mean_k F_k(x_k) + lam/2 mean_k ||x_k - mean x||^2 is least where a linear system says."""
    hand, lam, n = ByHand(problem(5, sizes=(30, 20, 40))), 0.7, 3
    a, c = hand.normal()
    centre = np.eye(n) - np.ones((n, n)) / n
    best = np.linalg.solve(a + lam * np.kron(centre, np.eye(3)), c).reshape(n, 3)
    found = models(simulate(l2sgd(lam, variant="local"), hand.fed, rounds=120, batch=0, lr=0.4, decay=1.0))[1]
    assert found == pytest.approx(best, rel=1e-6)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="l2sgd: lam is -1"):
        l2sgd(-1.0)
    for p in (0.0, 1.0):
        with pytest.raises(EquipoiseError, match="l2sgd: p is"):
            l2sgd(p=p)
    with pytest.raises(EquipoiseError, match="l2sgd: variant is 'x'"):
        l2sgd(variant="x")  # type: ignore[arg-type]
