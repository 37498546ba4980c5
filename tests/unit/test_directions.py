"""Products and mixtures of rows, and the shortest mixture within bounds: its optimality, and what is known exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from equipoise.methods import _rows
from equipoise.methods._directions import along, contributions, length, mixture, shortest_within, told
from equipoise.solvers import min_norm
from equipoise.streams import Stream

SEEDS = st.integers(0, 10**9)
KINDS = st.sampled_from(["any", "around zero", "to one side", "twice", "nearly one"])


def products(updates: Tensor, past: Tensor | None = None, known: Tensor | None = None) -> Tensor:
    return told(updates, past, known)[0]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=Stream(seed).torch(), dtype=torch.float64)


def unit_rows(seed: int, n: int, d: int, kind: str) -> Tensor:
    x = normal(seed, n, d)
    x = {
        "any": x,
        "around zero": x - x.mean(0),
        "to one side": x + 2,
        "twice": x[torch.arange(n) // 2],
        "nearly one": x[0] + 1e-4 * x,
    }[kind]
    return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)


def bounds(centre: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return (centre - eps).clamp(min=0.0), (centre + eps).clamp(max=1.0)


def equal(n: int) -> Tensor:
    return torch.full((n,), 1.0 / n, dtype=torch.float64)


def projection(v: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The nearest point to v within the bounds and with sum 1, by bisection on the shift."""
    down, up = (v - high).min() - 1, (v - low).max() + 1
    for _ in range(200):
        middle = (down + up) / 2
        down, up = (middle, up) if np.clip(v - middle, low, high).sum() > 1 else (down, middle)
    return np.asarray(np.clip(v - (down + up) / 2, low, high))


def kkt_error(gram: Tensor, w: Tensor, low: Tensor, high: Tensor) -> float:
    """How far a projected gradient step moves; 0 at the answer and nowhere else."""
    step = projection((w - gram @ w).numpy(), low.numpy(), high.numpy())
    return float(np.abs(w.numpy() - step).max())


# ------------------------------------------------------------------------------------------ the shortest mixture


@settings(max_examples=150)
@given(SEEDS, st.integers(1, 24), st.integers(1, 40), KINDS, st.sampled_from([1e-9, 1e-4, 0.01, 0.1, 0.3, 1.0]))
def test_weights_are_feasible_and_optimal_whatever_the_rows(seed: int, n: int, d: int, kind: str, eps: float) -> None:
    x = unit_rows(seed, n, d, kind)
    low, high = bounds(equal(n), eps)
    w = shortest_within(x @ x.T, low, high)
    assert (w >= low).all() and (w <= high).all() and float(w.sum()) == pytest.approx(1, abs=1e-12)
    assert kkt_error(x @ x.T, w, low, high) <= 1e-8


@settings(max_examples=30)
@given(SEEDS, st.integers(2, 12), KINDS)
def test_bounds_may_differ_from_row_to_row(seed: int, n: int, kind: str) -> None:
    x = unit_rows(seed, n, 15, kind)
    centre = torch.rand(n, generator=Stream(seed).child("centre").torch(), dtype=torch.float64)
    centre[seed % n] = 0.0
    low, high = bounds(centre / centre.sum(), 0.15)
    w = shortest_within(x @ x.T, low, high)
    assert float(w.sum()) == pytest.approx(1, abs=1e-12) and kkt_error(x @ x.T, w, low, high) <= 1e-8


@settings(max_examples=15)
@given(SEEDS, st.integers(2, 8), st.sampled_from([0.05, 0.2, 1.0]))
def test_a_general_solver_finds_nothing_shorter(seed: int, n: int, eps: float) -> None:
    x = unit_rows(seed, n, 20, "any")
    low, high = bounds(equal(n), eps)
    gram = (x @ x.T).numpy()
    found = minimize(
        lambda w: w @ gram @ w,
        np.full(n, 1.0 / n),
        jac=lambda w: 2 * gram @ w,
        method="SLSQP",
        bounds=list(zip(low.tolist(), high.tolist(), strict=True)),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    w = shortest_within(torch.from_numpy(gram), low, high).numpy()
    assert w @ gram @ w <= found.fun + 1e-10
    assert w == pytest.approx(found.x, abs=1e-5)


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 15))
def test_without_bounds_it_is_the_shortest_vector_of_the_hull(seed: int, n: int) -> None:
    x = unit_rows(seed, n, 20, "any")
    plain = min_norm((x @ x.T)[None])[0]
    w = shortest_within(x @ x.T, torch.zeros(n), torch.ones(n))
    assert torch.allclose(w @ x, plain @ x, atol=1e-9)


def test_bounds_with_one_answer_are_answered_with_it() -> None:
    x = unit_rows(3, 4, 6, "any")
    gram, centre = x @ x.T, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    assert torch.equal(shortest_within(gram, centre, centre), centre)
    assert torch.allclose(shortest_within(gram, centre, torch.ones(4)), centre, atol=1e-12)
    assert torch.allclose(shortest_within(gram, torch.zeros(4), centre), centre, atol=1e-12)


def test_a_weight_that_cannot_move_stays_and_the_others_answer_to_it() -> None:
    x = torch.eye(3, dtype=torch.float64)
    low, high = torch.tensor([0.5, 0.0, 0.0]), torch.tensor([0.5, 1.0, 1.0])
    assert shortest_within(x, low, high).tolist() == pytest.approx([0.5, 0.25, 0.25], abs=1e-12)


def test_known_answers() -> None:
    two = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert shortest_within(two, torch.zeros(2), torch.ones(2)).tolist() == pytest.approx([0.5, 0.5], abs=1e-12)
    long = torch.tensor([[1.0, 0.0], [0.0, 9.0]], dtype=torch.float64)  # without bounds 0.9, 0.1
    assert shortest_within(long, *bounds(equal(2), 0.1)).tolist() == pytest.approx([0.6, 0.4], abs=1e-12)
    assert shortest_within(torch.zeros((3, 3)), *bounds(equal(3), 0.1)).tolist() == pytest.approx([1 / 3] * 3)
    assert shortest_within(1e60 * long, *bounds(equal(2), 0.1)).tolist() == pytest.approx([0.6, 0.4], abs=1e-12)


# ----------------------------------------------------------------------------------------------- rows of d numbers


@pytest.mark.parametrize("chunk", [1 << 21, 16])
def test_products_and_mixtures_are_those_of_the_rows(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rows, "_CHUNK", chunk)
    new, past = normal(1, 3, 50), normal(2, 2, 50)
    both, w = torch.cat([new, past]), normal(3, 5)
    assert torch.allclose(products(new), new @ new.T)
    assert torch.allclose(products(new, past, past @ past.T), both @ both.T)
    assert torch.allclose(mixture(w, new, past), w @ both) and torch.allclose(mixture(w[:3], new), w[:3] @ new)
    assert torch.allclose(along(new, past[0]), new @ past[0])


def test_large_float32_rows_do_not_overflow() -> None:
    rows = torch.full((2, 4), 1e30)
    assert products(rows).tolist() == [[pytest.approx(4e60)] * 2] * 2
    assert along(rows, rows[0]).tolist() == [pytest.approx(4e60)] * 2
    assert mixture(torch.tensor([1e-30, 1e-30], dtype=torch.float64), rows).tolist() == pytest.approx([2.0] * 4)


def test_what_is_only_rounding_has_no_length() -> None:
    rows = torch.stack([normal(1, 30), -normal(1, 30)])
    gram = products(rows)
    assert float(length(torch.tensor([0.5, 0.5], dtype=torch.float64), gram)) == 0
    apart = torch.tensor([0.7, 0.3], dtype=torch.float64)
    assert float(length(apart, gram)) == pytest.approx(0.4 * float(rows[0].norm()))
    assert float(length(torch.zeros(2, dtype=torch.float64), gram)) == 0


def test_contributions_are_shares_of_length() -> None:
    gram = torch.diag(torch.tensor([1.0, 4.0, 0.0], dtype=torch.float64))
    weights = torch.tensor([1.0, -1.0, 5.0], dtype=torch.float64)
    assert contributions(weights, gram).tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert contributions(torch.zeros_like(weights), gram).tolist() == [0, 0, 0]
