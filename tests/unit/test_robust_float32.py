"""Large float32 cohorts: products in float32 keep to their bound, and what they leave in doubt is done in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import history
from equipoise.aggregators import _distances, _order, _rough
from equipoise.aggregators.geometric_median import GeometricMedian
from equipoise.aggregators.krum import Krum
from equipoise.core import Cohort, Outcome
from equipoise.streams import Stream

SEEDS = st.integers(0, 10**6)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small cohorts count as large ones."""
    monkeypatch.setattr(_rough, "_WORTH", 1)


def rows(seed: int, m: int, d: int, common: float = 0.0, scale: float = 1.0) -> Tensor:
    g = Stream(seed).torch()
    return scale * (common * torch.randn(d, generator=g) + torch.randn((m, d), generator=g))


def median_of(updates: Tensor, rule: GeometricMedian | None = None) -> Outcome:
    m, d = updates.shape
    return (rule or GeometricMedian())(Cohort(torch.arange(m), torch.zeros(d), updates, torch.ones(m)), {})


def in_float64(updates: Tensor, rule: GeometricMedian | None = None) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rough, "_WORTH", 1 << 60)
        return median_of(updates, rule)


def apart(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


# ---------------------------------------------------------------------------------------------------------- the bound


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 12), st.integers(1, 3000), st.sampled_from([0, 1, 100]), st.sampled_from([1e-21, 1, 1e15]))
def test_products_in_float32_are_as_near_as_their_bound_says(
    seed: int, m: int, d: int, common: float, scale: float
) -> None:
    x = rows(seed, m, d, common, scale)
    centre = _rough._midst(x)
    seen = x.double() if centre is None else x.double() - centre.double()
    found = _rough.inner_products(x)
    bound = found.rounding * found.lengths[:, None] * found.lengths
    assert ((found.gram - seen @ seen.T).abs() <= bound).all()
    assert (found.lengths >= seen.norm(dim=1)).all()
    assert found.rounding < 1e-4


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 110), st.integers(1, 40), st.sampled_from([torch.float32, torch.float64]))
def test_half_of_a_symmetric_product_in_blocks_is_all_of_it(seed: int, m: int, d: int, dtype: torch.dtype) -> None:
    x = (8 * rows(seed, m, d)).round().to(dtype)  # whole numbers: every sum of their products is exact
    total, stale = torch.zeros((m, m), dtype=dtype), torch.full((m, m), torch.nan, dtype=dtype)
    for piece in (x[:, : d // 2], x[:, d // 2 :]):
        _distances.add_products(total, piece)
    _distances.add_products(stale, x, keep=0.0)
    assert torch.equal(_distances.mirrored(total), x @ x.T)
    assert torch.equal(_distances.mirrored(stale), x @ x.T)


@pytest.mark.parametrize("m", [47, 48, 49, 100, 130])
def test_cohorts_of_many_blocks_keep_their_distances_equals_their_scores_and_the_lowest_id(m: int) -> None:
    x = 1e3 + rows(m, m, 200)
    x[[3, m // 2, m - 1]] = x[:40].mean(0)
    exact = (x.double()[:, None] - x.double()).square().sum(-1)
    found = Krum(2)(Cohort(torch.arange(m), torch.zeros(200), x, torch.ones(m)), {})
    assert torch.allclose(_distances.squared_distances(x), exact, rtol=1e-9, atol=0.0)
    assert found.info["scores"][[3, m // 2, m - 1]].unique().numel() == 1
    assert found.info["weights"].argmax() == 3 and torch.equal(found.direction, x[3])


def test_what_overflows_in_one_block_is_infinite_in_both_halves() -> None:
    x = rows(1, 60, 5)
    x[50] = 1e30
    gram = _rough.inner_products(x).gram
    assert torch.isinf(gram[50, 50]) and torch.isfinite(gram[:50, :50]).all()
    assert torch.equal(gram, gram.T)


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 12))
def test_the_error_of_distances_from_a_mean_is_bounded_too(seed: int, m: int) -> None:
    x = rows(seed, m, 500, 3.0)
    weights = torch.softmax(rows(seed + 1, 1, m)[0].double(), 0)
    found = _rough.inner_products(x)
    products = found.gram @ weights
    measured = found.gram.diagonal() - 2 * products + weights @ products
    exact = (weights @ x.double() - x.double()).square().sum(1)
    assert ((measured - exact).abs() <= found.error_from(weights)).all()


def test_the_rows_are_seen_from_their_midst_unless_zero_is_as_near() -> None:
    far = rows(1, 9, 400, 50.0)
    far[0] *= -1
    centre = _rough._midst(far)
    assert centre is not None and any(torch.equal(centre, row) for row in far[1:])
    assert _rough._midst(rows(1, 9, 400)) is None


def test_float32_is_never_trusted_where_its_products_may_be_less() -> None:
    large = torch.zeros((2, 1 << 19))
    assert _rough.worth_it(large)
    assert not _rough.worth_it(large.double()) and not _rough.worth_it(large[:, 1:])
    torch.set_float32_matmul_precision("high")
    try:
        assert not _rough.worth_it(large)
    finally:
        torch.set_float32_matmul_precision("highest")


# --------------------------------------------------------------------------------------------------- geometric median


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("common", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_it_is_the_same_geometric_median(common: float, weights: str) -> None:
    updates, rule = rows(3, 21, 2500, common), GeometricMedian(weights=weights)
    updates[:4] *= -5
    p = torch.full((21,), 1 / 21, dtype=torch.float64)
    assert rule._in_float32(updates, p) is not None
    found, exact = median_of(updates, rule), in_float64(updates, rule)
    assert apart(found.direction, exact.direction) < 2e-6
    assert found.info["weights"].tolist() == pytest.approx(exact.info["weights"].tolist(), rel=1e-5)
    assert found.direction.dtype == torch.float32


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("what", ["1e30", "beyond float32", "not at rest"])
def test_what_float32_leaves_in_doubt_is_done_in_float64_to_the_bit(what: str) -> None:
    updates, rule = rows(4, 12, 600), GeometricMedian()
    if what == "1e30":
        updates[3] = 1e30
    if what == "beyond float32":
        updates[3], updates[4] = 3e38, -3e38
    if what == "not at rest":
        rule = replace(rule, iterations=2)
    found, exact = median_of(updates, rule), in_float64(updates, rule)
    assert torch.equal(found.direction, exact.direction) and torch.isfinite(found.direction).all()
    assert torch.equal(found.info["weights"], exact.info["weights"])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("what", ["on one point", "two tight groups"])
def test_where_rows_lie_close_together_nothing_cancels(what: str) -> None:
    updates = rows(4, 12, 600)
    if what == "on one point":
        updates[:7] = updates[0].clone()
    else:
        updates = 1e-6 * updates + torch.tensor([1.0, -1.0]).repeat_interleave(6)[:, None]
    sums = [(z.direction - updates).double().norm(dim=1).sum() for z in (median_of(updates), in_float64(updates))]
    assert sums[0] <= sums[1] * (1 + 1e-6)


@pytest.mark.usefixtures("always")
def test_a_row_that_looks_central_where_the_sample_looks_moves_nothing() -> None:
    updates = rows(5, 11, 3000)
    columns = torch.arange(0, 3000, -(-3000 // _rough._SAMPLE))
    updates[2] = 1e12
    updates[2, columns] = updates[:, columns].median(0).values
    found, exact = median_of(updates), in_float64(updates)
    assert apart(found.direction, exact.direction) < 1e-3


@pytest.mark.usefixtures("always")
def test_the_order_of_arrival_changes_no_bit_in_float32_either() -> None:
    updates = rows(6, 15, 2100, 1.0)
    order = torch.randperm(15, generator=Stream(7).torch())
    turned = Cohort(torch.arange(15)[order], torch.zeros(2100), updates[order], torch.ones(15))
    assert torch.equal(GeometricMedian()(turned, {}).direction, median_of(updates).direction)


# ------------------------------------------------------------------------------------------------- counting, memory


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 5), st.integers(1, 5000), st.sampled_from([-10.0, 0.0, 10.0]))
def test_flags_are_counted_by_the_word_and_none_is_lost(seed: int, m: int, n: int, low: float) -> None:
    x = rows(seed, m, n)
    inside, found = _order._between(x, torch.full((n,), low), torch.full((n,), 11.0))
    assert torch.equal(inside, (x >= low) & (x <= 11.0))
    assert found.tolist() == np.asarray(inside).sum(1).tolist()


def test_a_memory_that_only_the_cohort_is_left_in_shares_nothing_with_it() -> None:
    first, ids = torch.ones((3, 4)), torch.arange(3)
    memory = history.remember(history.blank(rows=first[0]), ids, 0, 10, rows=first)
    second = 2 * first
    after = history.remember(memory, ids, 1, 10, rows=second)
    second.zero_()
    assert torch.equal(memory["rows"], torch.ones((3, 4))) and torch.equal(after["rows"], torch.full((3, 4), 2.0))
