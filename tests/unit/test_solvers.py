"""The projection onto the simplex and the shortest vector of a hull: their optimality, and what is known exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from equipoise import solvers
from equipoise.solvers import min_norm, project_simplex
from equipoise.streams import Stream

SEEDS = st.integers(0, 10**9)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=Stream(seed).torch(), dtype=torch.float64)


def uniform(seed: int, *shape: int) -> Tensor:
    return torch.rand(shape, generator=Stream(seed).child("uniform").torch(), dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------- the simplex


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 40), st.sampled_from([1e-6, 1.0, 1e6]))
def test_projection_is_on_the_simplex_and_no_other_point_is_nearer(seed: int, n: int, size: float) -> None:
    v = size * normal(seed, 3, n)
    w = project_simplex(v)
    assert (w >= 0).all() and torch.allclose(w.sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12)
    # w is nearest if (v - w) . (e_i - w) <= 0 for every corner e_i
    away = v - w
    assert (away - (away * w).sum(-1, keepdim=True)).max() <= 1e-9 * max(1.0, size)


def test_projection_of_known_points() -> None:
    cases = [([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]), ([2.0, 0.0], [1.0, 0.0]), ([0.5, 0.7], [0.4, 0.6]), ([7.0], [1.0])]
    cases += [([-5.0, -5.0], [0.5, 0.5]), ([1e30, -1e30], [1.0, 0.0]), ([1e15 + 0.25, 1e15], [0.625, 0.375])]
    for v, w in cases:
        assert project_simplex(torch.tensor(v, dtype=torch.float64)).tolist() == pytest.approx(w, abs=1e-12)


def test_projection_keeps_shape_and_dtype_and_is_idempotent() -> None:
    v = normal(1, 2, 3, 5).float()
    w = project_simplex(v)
    assert w.shape == v.shape and w.dtype == torch.float32
    assert torch.allclose(project_simplex(w), w, atol=1e-7)


# ------------------------------------------------------------------------------------------- the shortest vector


def kkt_error(gram: Tensor, w: Tensor) -> Tensor:
    """[L]: by how much (G w)_j >= w' G w, and = where w_j > 0, fail, relative to ||x_j|| sum_i w_i ||x_i||."""
    length = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    products = (gram @ w[..., None])[..., 0]
    slack = products - (w * products).sum(-1, keepdim=True)
    failing = torch.where(w > 0, slack.abs(), -slack)
    return (failing / (length * (w * length).sum(-1, keepdim=True))).amax(-1)


def by_nnls(x: Tensor) -> Tensor:
    """The shortest vector by scipy's non-negative least squares: min ||X' z||^2 + (sum z - 1)^2 is it, rescaled."""
    rows = (x / x.norm(dim=1).min()).numpy()
    z, _ = nnls(np.vstack([rows.T, np.ones(len(rows))]), np.r_[np.zeros(rows.shape[1]), 1.0], maxiter=100 * len(rows))
    return torch.from_numpy(z / z.sum()) @ x


def with_mixture(x: Tensor) -> Tensor:
    """The rows at length 1, the last one made of the first few, as FedLF's hulls have it."""
    few = min(10, x.shape[1] - 1)
    if few:
        made = torch.linspace(-1, 0.7, few, dtype=torch.float64) @ x[:, :few]
        x = torch.cat([x[:, :-1], made[:, None]], 1)
    return x / x.norm(dim=-1, keepdim=True)


ROWS = {
    "random": lambda s, n: normal(s, 3, n, 2 * n),
    "few dimensions": lambda s, n: normal(s, 3, n, 1 + n // 5),
    "in a half space": lambda s, n: 0.3 * normal(s, 3, n, n + 2) + normal(s + 1, 3, 1, n + 2),
    "repeated": lambda s, n: (normal(s, 3, n, 20) + normal(s + 1, 3, 1, 20))[:, torch.arange(n) // 3],
    "nearly equal": lambda s, n: normal(s + 1, 3, 1, 12) + 1e-9 * normal(s, 3, n, 12),
    "around zero": lambda s, n: (lambda x: x - x.mean(1, keepdim=True))(normal(s, 3, n, n + 3)) + 1e-5,
    "lengths 1e-8 to 1e3": lambda s, n: (normal(s, 3, n, 30) + 0.5) * 10 ** (11 * uniform(s, 3, n, 1) - 8),
    "whole numbers": lambda s, n: normal(s, 3, n, 4).round().clamp(-1, 1) + torch.tensor([1.5, 0, 0, 0]),
    "on an arc": lambda s, n: (lambda a: torch.stack([a.cos(), a.sin()], -1))(3 * uniform(s, 3, n)),
    "all are used": lambda s, n: torch.eye(n, 2 * n, dtype=torch.float64) * (0.5 + uniform(s, 3, n, 1)) + 0.01,
    "one is used": lambda s, n: torch.cat([normal(s, 3, n - 1, 9).abs() + 9, 3 + uniform(s, 3, 1, 9)], 1),
    "one made of others": lambda s, n: with_mixture(normal(s, 3, n, n + 30) + 0.3),
    "float32": lambda s, n: (1e-4 * normal(s, 3, n, 50) + 1e-5).float().double(),
}


@pytest.mark.parametrize("kind", ROWS)
@settings(max_examples=8)
@given(seed=SEEDS, n=st.integers(1, 40))
def test_no_row_has_a_smaller_product_than_the_shortest_vector_with_itself(kind: str, seed: int, n: int) -> None:
    x = ROWS[kind](seed, n)
    gram = x @ x.mT
    w = min_norm(gram)
    used = {"all are used": x.shape[1], "one is used": 1}.get(kind)
    assert used is None or ((w > 0).sum(-1) == used).all()
    assert w.shape == x.shape[:2] and w.dtype == torch.float64
    assert (w >= 0).all() and torch.allclose(w.sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12)
    assert kkt_error(gram, w).max() < 1e-8


@pytest.mark.parametrize("kind", sorted({*ROWS} - {"nearly equal", "float32"}))
@settings(max_examples=6)
@given(seed=SEEDS, n=st.integers(1, 25))
def test_it_is_the_vector_that_non_negative_least_squares_finds(kind: str, seed: int, n: int) -> None:
    x = ROWS[kind](seed, n)
    found = (min_norm(x @ x.mT)[:, None] @ x)[:, 0]
    for mine, rows in zip(found, x, strict=True):
        assert (mine - by_nnls(rows)).norm() <= 1e-9 * rows.norm(dim=1).min()


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 30), st.floats(0, 1))
def test_with_some_rows_masked_it_is_what_non_negative_least_squares_finds_without_them(
    seed: int, n: int, share: float
) -> None:
    x = ROWS["one made of others"](seed, n)
    mask = uniform(seed, *x.shape[:2]) < share
    found = (min_norm(x @ x.mT, mask)[:, None] @ x)[:, 0]
    for mine, rows, there in zip(found, x, mask, strict=True):
        expected = by_nnls(rows[there]) if there.any() else torch.zeros_like(mine)
        assert (mine - expected).norm() <= 1e-9


def no_pivoting(c: Tensor, b: Tensor, real: Tensor) -> Tensor:
    return torch.zeros_like(b)


@pytest.mark.parametrize("kind", ROWS)
def test_both_methods_find_the_same_vector(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ROWS[kind](11, 30)
    one = min_norm(x @ x.mT)
    monkeypatch.setattr(solvers, "_pivoted", no_pivoting)
    other = min_norm(x @ x.mT)
    assert max(kkt_error(x @ x.mT, w).max() for w in (one, other)) < 1e-8
    assert ((one - other)[:, None] @ x).norm() <= 1e-7 * x.norm(dim=-1).min()


@pytest.mark.parametrize("kind", ROWS)
def test_without_scipy_it_is_the_same_vector(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ROWS[kind](5, 30)
    one = min_norm(x @ x.mT)
    monkeypatch.setattr(solvers, "_lapack", lambda: None)
    other = min_norm(x @ x.mT)
    assert ((one - other)[:, None] @ x).norm() <= 1e-8 * x.norm(dim=-1).min()


@pytest.mark.parametrize("kind", ["random", "few dimensions", "in a half space", "repeated", "one made of others"])
def test_pivoting_alone_solves_what_methods_ask_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Tensor) -> Tensor:
        raise AssertionError("the interior point was asked")

    monkeypatch.setattr(solvers, "_interior_point", refuse)
    for n in (2, 11, 101):
        x = ROWS[kind](n, n)
        assert kkt_error(x @ x.mT, min_norm(x @ x.mT)).max() < 1e-12


def test_the_interior_point_is_asked_for_those_sets_only_that_pivoting_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.cat([normal(1, 1, 101, 50) + 0.5, ROWS["float32"](1, 101), normal(2, 1, 101, 50) + 0.5])
    gram, asked, original = x @ x.mT, [], solvers._interior_point

    def count(c: Tensor, b: Tensor, real: Tensor) -> Tensor:
        asked.append(len(c))
        return original(c, b, real)

    monkeypatch.setattr(solvers, "_interior_point", count)
    assert kkt_error(gram, min_norm(gram)).max() < 1e-8
    assert len(asked) == 1 and 1 <= asked[0] <= 3


@pytest.mark.parametrize("n", [110, 200])
def test_many_rows(n: int) -> None:
    x = torch.cat([ROWS[kind](n, n)[..., :2] for kind in ROWS] + [normal(1, 3, n, 300) * 0.2 + 0.1], -1)
    sets = torch.cat([x @ x.mT, ROWS["in a half space"](3, n) @ ROWS["in a half space"](3, n).mT])
    assert kkt_error(sets, min_norm(sets)).max() < 1e-12


def test_none_of_thousands_of_sets_goes_round_in_circles() -> None:
    """Steps that only keep v and s positive fail on about one in two thousand of these."""
    length = 10 ** (4 * uniform(1, 6000, 5, 1) - 2)
    x = (normal(1, 6000, 5, 15) + 2 * uniform(2, 6000, 1, 1) * normal(2, 6000, 1, 15)) * length
    assert kkt_error(x @ x.mT, min_norm(x @ x.mT)).max() < 1e-12


def test_opposite_rows_cancel() -> None:
    x = torch.tensor([[[1.0, 2.0], [-3.0, -6.0]]], dtype=torch.float64)
    w = min_norm(x @ x.mT)
    assert w[0].tolist() == pytest.approx([0.75, 0.25], abs=1e-12)
    assert float((w[:, None] @ x).norm()) < 1e-12


def test_one_row_is_its_own_shortest_vector() -> None:
    assert min_norm(torch.tensor([[[4.0]], [[1e-30]], [[1e30]]], dtype=torch.float64)).tolist() == [[1.0]] * 3


def test_orthogonal_rows_weigh_in_inverse_proportion_to_their_squares() -> None:
    squares = torch.tensor([1.0, 4.0, 0.25], dtype=torch.float64)
    expected = (1 / squares) / (1 / squares).sum()
    assert min_norm(torch.diag(squares)[None])[0].tolist() == pytest.approx(expected.tolist(), rel=1e-12)


def test_an_obtuse_longer_row_is_not_used() -> None:
    x = torch.tensor([[[1.0, 0.0], [2.0, 1.0], [1.5, -3.0]]], dtype=torch.float64)
    assert min_norm(x @ x.mT).tolist() == [[1.0, 0.0, 0.0]]


def test_a_zero_row_takes_all_the_weight() -> None:
    x = normal(3, 2, 5, 7)
    x[0, 2] = x[0, 4] = 0
    w = min_norm(x @ x.mT)
    assert w[0].tolist() == [0, 0, 1, 0, 0] and (w[1] > 0).sum() > 1


def test_a_short_row_beside_long_ones_is_found_exactly() -> None:
    x = torch.tensor([[[1e-8, 0.0], [-1e3, 1e3], [1e3, 1e3]]], dtype=torch.float64)
    d = (min_norm(x @ x.mT)[:, None] @ x)[0, 0]
    # On the segment from (1e-8, 0) to (-1e3, 1e3), the point nearest to 0, to first order: (1e-8 / 2) (1, 1).
    assert d.tolist() == pytest.approx([0.5e-8, 0.5e-8], rel=1e-6)


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 12), st.integers(0, 8))
def test_masked_rows_count_for_nothing(seed: int, n: int, more: int) -> None:
    x = normal(seed, 2, n, 9) + 0.3
    padded = torch.cat([x, 1e3 * normal(seed + 1, 2, more, 9)], 1)
    order = torch.randperm(n + more, generator=Stream(seed).torch())
    padded, mask = padded[:, order], (order < n).expand(2, -1)
    w = min_norm(padded @ padded.mT, mask)
    assert (w[~mask] == 0).all()
    assert torch.allclose((w[:, None] @ padded), min_norm(x @ x.mT)[:, None] @ x, atol=1e-10)


def test_a_set_without_rows_gets_no_weights_and_disturbs_no_other() -> None:
    x = normal(5, 3, 6, 20) + 1
    gram, mask = x @ x.mT, torch.ones((3, 6), dtype=torch.bool)
    mask[1] = False
    w = min_norm(gram, mask)
    assert (w[1] == 0).all()
    assert torch.allclose(w[[0, 2]], min_norm(gram[[0, 2]]), atol=1e-12)


def test_sets_do_not_disturb_each_other() -> None:
    sets = torch.cat([(lambda x: x @ x.mT)(make(8, 15)) for make in ROWS.values()])
    together, alone = min_norm(sets), torch.cat([min_norm(g[None]) for g in sets])
    assert torch.equal(together, alone)


def test_the_unit_of_measurement_does_not_matter() -> None:
    x = normal(2, 2, 9, 11) + 0.5
    w = min_norm(x @ x.mT)
    for factor in (1e-60, 1e60):
        assert torch.allclose(min_norm(factor * (x @ x.mT)), w, atol=1e-12)


def test_inputs_are_not_changed_and_float32_is_taken() -> None:
    x = (normal(4, 2, 5, 30) + 1).float()
    gram, mask = x @ x.mT, torch.ones((2, 5), dtype=torch.bool)
    before = gram.clone()
    w = min_norm(gram, mask)
    assert torch.equal(gram, before) and mask.all()
    assert torch.allclose(w, min_norm(x.double() @ x.double().mT), atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ROWS)
def test_on_a_cuda_device_it_is_the_same_vector(kind: str) -> None:
    x = ROWS[kind](7, 60)
    here, there = min_norm(x @ x.mT), min_norm((x @ x.mT).cuda()).cpu()
    assert kkt_error(x @ x.mT, there).max() < 1e-8
    assert ((here - there)[:, None] @ x).norm() <= 1e-7 * x.norm(dim=-1).min()
    assert torch.allclose(project_simplex(x.cuda()).cpu(), project_simplex(x), atol=1e-12)
