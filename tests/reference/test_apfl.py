"""APFL against a slow, literal transcription in numpy, and its two ends."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.core import Method, WeightedMean
from equipoise.errors import EquipoiseError
from equipoise.methods.apfl import APFL, apfl
from equipoise.methods.fedavg import fedavg
from equipoise.methods.local import local
from tests.reference._regression import ROUNDS, START, ByHand, Vector, models, problem, simulate


def literal(hand: ByHand, alpha: float, adaptive: bool, by_size: bool) -> tuple[Vector, Vector, Vector]:
    w, v, a = START, [START.copy() for _ in hand.clients], [alpha for _ in hand.clients]
    for t in range(ROUNDS):
        ends = []
        for k in hand.clients:
            wk = w.copy()
            for s, (b,) in enumerate(hand.steps(k, t)):
                mix = a[k] * v[k] + (1 - a[k]) * wk
                g = hand.gradient(mix, b)
                slope = float((v[k] - wk) @ g)
                v[k], wk = v[k] - hand.lr(t) * a[k] * g, wk - hand.lr(t) * hand.gradient(wk, b)
                if adaptive and s == 0:
                    a[k] = min(1.0, max(0.0, a[k] - hand.lr(t) * slope))
            ends.append(wk)
        w = hand.mean(ends, by_size)
    return w, np.stack([a[k] * v[k] + (1 - a[k]) * w for k in hand.clients]), np.array(a)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), alpha=st.floats(0, 1), adaptive=st.booleans(), by_size=st.booleans())
def test_apfl_is_its_equations(seed: int, alpha: float, adaptive: bool, by_size: bool) -> None:
    hand = ByHand(problem(seed))
    method = apfl(alpha, adaptive=adaptive, server=WeightedMean("size" if by_size else "uniform"))
    sim = simulate(method, hand.fed)
    w, personal, a = literal(hand, alpha, adaptive, by_size)
    assert models(sim)[0] == pytest.approx(w, rel=1e-9)
    assert models(sim)[1] == pytest.approx(personal, rel=1e-9)
    assert sim.simulator.store.get(torch.arange(4))["alpha"].numpy() == pytest.approx(a, rel=1e-9)


def test_alpha_0_is_fedavg_to_the_bit() -> None:
    mixed, plain = simulate(apfl(0.0), problem(1)), simulate(fedavg(server=WeightedMean("uniform")), problem(1))
    assert torch.equal(mixed.server.w, plain.server.w)
    assert np.array_equal(models(mixed)[1], np.stack([plain.server.w.numpy()] * 4))


def test_alpha_1_is_local_training_to_the_bit() -> None:
    assert np.array_equal(models(simulate(apfl(1.0), problem(2)))[1], models(simulate(local(), problem(2)))[1])


def test_the_global_model_is_the_same_for_every_alpha_to_the_bit() -> None:
    ends = [simulate(apfl(a, adaptive=b), problem(3)).server.w for a, b in ((0.1, False), (0.9, False), (0.5, True))]
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


def test_an_adaptive_alpha_moves_once_a_round_and_not_in_the_first_where_v_is_w() -> None:
    alphas = []
    for rounds in (1, 2, 3):
        sim = simulate(apfl(0.5, adaptive=True), problem(4), rounds=rounds)
        alphas.append(sim.simulator.store.get(torch.arange(4))["alpha"])
    assert torch.equal(alphas[0], torch.full((4,), 0.5, dtype=torch.float64))
    assert bool((alphas[1] != alphas[0]).all()) and bool((alphas[2] != alphas[1]).all())


def test_an_adaptive_alpha_stays_between_0_and_1_whatever_the_slope() -> None:
    sim = simulate(Method("steep", APFL(0.5, adaptive=True)), problem(5), lr=0.9, rounds=4)
    alpha = sim.simulator.store.get(torch.arange(4))["alpha"]
    assert bool(((alpha >= 0) & (alpha <= 1)).all()) and bool(((alpha == 0) | (alpha == 1)).any())


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_an_alpha_that_is_no_share_is_refused(alpha: float) -> None:
    with pytest.raises(EquipoiseError, match="apfl: alpha is"):
        apfl(alpha)
