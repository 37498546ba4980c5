"""Mapper against a slow, literal transcription in numpy, and its ends."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.core import WeightedMean
from equipoise.errors import EquipoiseError
from equipoise.methods.local import local
from equipoise.methods.mapper import mapper
from tests.reference._regression import ROUNDS, START, ByHand, Vector, models, problem, simulate


def literal(hand: ByHand, lams: tuple[float, ...], by_size: bool) -> tuple[Vector, Vector, Vector]:
    w, own, chosen = START, [START.copy() for _ in hand.clients], [0.0 for _ in hand.clients]
    for t in range(ROUNDS + 1):  # the last time nothing is sent
        ends = []
        for k in hand.clients:
            best, g_best, h_best = np.inf, START, START
            for lam in lams:
                h, g = own[k].copy(), np.zeros(3)
                for (b,) in hand.steps(k, t):
                    g = hand.gradient(lam * h + (1 - lam) * w, b)
                    h = h - hand.lr(t) * lam * g
                loss = hand.loss(lam * h + (1 - lam) * w, k)
                if loss < best:
                    best, g_best, h_best, chosen[k] = loss, g, h, lam
            own[k] = h_best
            ends.append(w - hand.lr(t) * (1 - chosen[k]) * g_best)
        if t < ROUNDS:
            w = hand.mean(ends, by_size)
    return w, np.stack([chosen[k] * own[k] + (1 - chosen[k]) * w for k in hand.clients]), np.array(chosen)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    lams=st.lists(st.floats(0.05, 1), min_size=1, max_size=3, unique_by=lambda v: round(v, 2)).map(tuple),
    by_size=st.booleans(),
)
def test_mapper_is_its_equations(seed: int, lams: tuple[float, ...], by_size: bool) -> None:
    hand = ByHand(problem(seed))
    sim = simulate(mapper(lams, server=WeightedMean("size" if by_size else "uniform")), hand.fed)
    w, personal, chosen = literal(hand, lams, by_size)
    assert models(sim)[0] == pytest.approx(w, rel=1e-9)
    assert models(sim)[1] == pytest.approx(personal, rel=1e-9)
    assert np.array_equal(sim.simulator.store.get(torch.arange(4))["lam"].numpy(), chosen)


def test_lam_1_alone_is_local_training_and_the_central_model_stays() -> None:
    sim = simulate(mapper((1.0,)), problem(1))
    alone = simulate(local(), problem(1), rounds=ROUNDS + 1)  # the final fit is one more round
    assert torch.equal(sim.server.w, sim.simulator.w0)
    assert np.array_equal(models(sim)[1], models(alone)[1])


def test_a_client_without_data_uses_the_global_model() -> None:
    sim = simulate(mapper(), problem(2, sizes=(9, 0, 13, 6)))
    assert np.array_equal(models(sim)[1][1], sim.server.w.numpy())


@pytest.mark.parametrize("lams", [(), (0.0,), (0.5, 1.5)])
def test_lams_that_are_no_shares_are_refused(lams: tuple[float, ...]) -> None:
    with pytest.raises(EquipoiseError, match="mapper: lams is"):
        mapper(lams)
