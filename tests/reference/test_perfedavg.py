"""Per-FedAvg against a slow, literal transcription in numpy, and against the exact Hessian of a regression."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.core import WeightedMean
from equipoise.errors import EquipoiseError
from equipoise.methods.fedavg import fedavg
from equipoise.methods.perfedavg import Variant, perfedavg
from tests.reference._regression import ROUNDS, START, ByHand, Vector, models, problem, simulate


def literal(hand: ByHand, alpha: float, variant: str, delta: float, exact: bool = False) -> tuple[Vector, Vector]:
    w, batches = START, 3 if variant == "hf" else 2
    for t in range(ROUNDS):
        ends = []
        for k in hand.clients:
            wk = w.copy()
            for step in hand.steps(k, t, batches=batches):
                g = hand.gradient(wk - alpha * hand.gradient(wk, step[1]), step[0])
                product = np.zeros(3)
                if variant == "hf" and exact:
                    x = hand.fed.data.x[step[2]].numpy()
                    product = x.T @ (x @ g) / len(x)
                elif variant == "hf":
                    ahead, behind = hand.gradient(wk + delta * g, step[2]), hand.gradient(wk - delta * g, step[2])
                    product = (ahead - behind) / (2 * delta)
                wk = wk - hand.lr(t) * (g - alpha * product)
            ends.append(wk)
        w = hand.mean(ends, by_size=False)
    return w, np.stack([w - alpha * hand.gradient(w, hand.samples(k)) for k in hand.clients])


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    alpha=st.floats(0, 0.5),
    variant=st.sampled_from(["hf", "fo"]),
    delta=st.sampled_from([1e-3, 1e-2, 1.0]),
)
def test_perfedavg_is_its_equations(seed: int, alpha: float, variant: Variant, delta: float) -> None:
    hand = ByHand(problem(seed))
    w, personal = literal(hand, alpha, variant, delta)
    found, own = models(simulate(perfedavg(alpha, variant=variant, delta=delta), hand.fed))
    assert found == pytest.approx(w, rel=1e-9)
    assert own == pytest.approx(personal, rel=1e-9)


def test_the_difference_of_gradients_is_the_product_with_the_hessian_of_a_regression() -> None:
    hand = ByHand(problem(1))
    w, personal = literal(hand, 0.2, "hf", 1e-3, exact=True)
    found, own = models(simulate(perfedavg(0.2), hand.fed))
    assert found == pytest.approx(w, rel=1e-9)
    assert own == pytest.approx(personal, rel=1e-9)


@pytest.mark.parametrize("variant", ["hf", "fo"])
def test_alpha_0_is_fedavg_to_the_bit(variant: Variant) -> None:
    meta = simulate(perfedavg(0.0, variant=variant), problem(2))
    plain = simulate(fedavg(server=WeightedMean("uniform")), problem(2))
    assert torch.equal(meta.server.w, plain.server.w)
    assert np.array_equal(models(meta)[1], np.stack([plain.server.w.numpy()] * 4))


def test_a_step_sees_three_independent_batches_and_two_without_the_hessian() -> None:
    assert perfedavg().client.batches == 3 and perfedavg(variant="fo").client.batches == 2


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="perfedavg: alpha is -1"):
        perfedavg(-1.0)
    with pytest.raises(EquipoiseError, match="perfedavg: delta is 0"):
        perfedavg(delta=0.0)
    with pytest.raises(EquipoiseError, match="perfedavg: variant is 'exact'"):
        perfedavg(variant="exact")  # type: ignore[arg-type]
