"""Krum, Multi-Krum, the coordinate-wise median and clipping against slow, literal transcriptions in plain Python."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from equipoise.aggregators import _distances
from equipoise.aggregators.clip import Clip
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.multi_krum import MultiKrum
from equipoise.core import Cohort, Outcome, ServerRule
from equipoise.streams import Stream

TYPES = st.sampled_from([np.float32, np.float64])


def cohort_of(updates: np.ndarray) -> Cohort:
    m, d = updates.shape
    rows = torch.from_numpy(updates.copy())
    return Cohort(torch.arange(m), torch.zeros(d, dtype=rows.dtype), rows, torch.arange(1, m + 1))


def outcome(rule: ServerRule, updates: np.ndarray) -> Outcome:
    return rule(cohort_of(updates), {})


def weights(rule: ServerRule, updates: np.ndarray) -> list[float]:
    found: torch.Tensor = outcome(rule, updates).info["weights"]
    return found.tolist()


# -------------------------------------------------------------------------------------------------- the literal rules


def literal_scores(updates: np.ndarray, f: int, power: int = 2, neighbours: int = -2) -> list[float]:
    """For every client: its distances to every other, sorted, and the first m - f - 2 of them added up."""
    m, d = updates.shape
    scores = []
    for i in range(m):
        distances = []
        for j in range(m):
            if i != j:
                squared = sum((float(updates[i, c]) - float(updates[j, c])) ** 2 for c in range(d))
                distances.append(math.sqrt(squared) ** power if power != 2 else squared)
        scores.append(sum(sorted(distances)[: m - f + neighbours]))
    return scores


def literal_order(scores: list[float]) -> list[int]:
    """Client ids by score, the lower id first among equals."""
    return sorted(range(len(scores)), key=lambda i: (scores[i], i))


def literal_mean(updates: np.ndarray, chosen: list[int]) -> np.ndarray:
    total = np.zeros(updates.shape[1])
    for i in chosen:
        total = total + updates[i].astype(np.float64)
    return total / len(chosen)


def literal_median(updates: np.ndarray) -> np.ndarray:
    m, d = updates.shape
    out = np.empty(d, dtype=updates.dtype)
    for c in range(d):
        column = sorted(updates[:, c])
        out[c] = column[m // 2] if m % 2 else (column[m // 2 - 1] + column[m // 2]) / updates.dtype.type(2)
    return out


def literal_clip(updates: np.ndarray, bound: float | None) -> np.ndarray:
    lengths = [math.sqrt(sum(float(v) ** 2 for v in row)) for row in updates]
    if bound is None:
        bound = float(np.median(lengths))
    return np.array([row * min(1.0, bound / n) if n > 0 else row for row, n in zip(updates, lengths, strict=True)])


# ---------------------------------------------------------------------------------------------------- cohorts to try


@st.composite
def smooth(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Random updates without ties, and an f that the cohort allows."""
    m, d = draw(st.integers(4, 12)), draw(st.integers(1, 12))
    updates = Stream(draw(st.integers(0, 2**32))).numpy().standard_normal((m, d))
    return updates.astype(draw(TYPES)), draw(st.integers(0, m - 3))


@st.composite
def lattice(draw: st.DrawFn, lowest: int = 4) -> tuple[np.ndarray, int]:
    """Small whole numbers: equal updates, equal distances and equal scores everywhere, and all of it exact."""
    m, d = draw(st.integers(lowest, 9)), draw(st.integers(1, 4))
    whole = draw(arrays(np.int64, (m, d), elements=st.integers(-2, 2)))
    return whole.astype(draw(TYPES)), draw(st.integers(0, max(0, m - 3)))


@st.composite
def outlying(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """A lattice in which up to f rows, less than half, lie at 1e30: together, opposite or apart."""
    updates, _ = draw(lattice(lowest=5))
    m, d = updates.shape
    f = draw(st.integers(1, (m - 3) // 2))
    rows = draw(st.lists(st.integers(0, m - 1), min_size=1, max_size=f, unique=True))
    for row in rows:
        updates[row] = 1e30 * draw(st.sampled_from([1.0, -1.0, 0.5])) * np.arange(1, d + 1)
    return updates, f


@st.composite
def nearly_equal(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """float32 updates of 10,000 that differ in their last bits only: in float32 their Gram matrix is all rounding."""
    whole, f = draw(lattice())
    return (1e4 + whole.astype(np.float64) * 2.0**-10).astype(np.float32), f


COHORTS = smooth() | lattice() | outlying() | nearly_equal()


# ------------------------------------------------------------------------------------------------------------- Krum


@settings(max_examples=60)
@given(COHORTS)
def test_krum_scores_are_the_sums_of_squared_distances_to_the_nearest_others(given: tuple[np.ndarray, int]) -> None:
    updates, f = given
    found = outcome(Krum(f), updates).info["scores"].tolist()
    assert found == pytest.approx(literal_scores(updates, f), rel=1e-9)


@settings(max_examples=60)
@given(COHORTS)
def test_krum_takes_the_update_with_the_smallest_score_and_of_equals_the_lowest_id(
    given: tuple[np.ndarray, int],
) -> None:
    updates, f = given
    best = literal_order(literal_scores(updates, f))[0]
    assert weights(Krum(f), updates) == [float(i == best) for i in range(len(updates))]
    assert np.array_equal(outcome(Krum(f), updates).direction.numpy(), updates[best])


@settings(max_examples=60)
@given(COHORTS)
def test_multi_krum_is_the_mean_of_the_m_minus_f_best(given: tuple[np.ndarray, int]) -> None:
    updates, f = given
    m = len(updates)
    chosen = literal_order(literal_scores(updates, f))[: m - f]
    found = outcome(MultiKrum(f), updates)
    assert found.info["weights"].tolist() == [(i in chosen) / (m - f) for i in range(m)]
    tolerance = 1e-9 if updates.dtype == np.float64 else 1e-6
    assert found.direction.numpy() == pytest.approx(literal_mean(updates, chosen), rel=tolerance, abs=tolerance)
    assert found.direction.numpy().dtype == updates.dtype


@pytest.mark.parametrize(
    ("power", "neighbours"),
    [pytest.param(1, -2, id="not squared"), pytest.param(2, -1, id="one more"), pytest.param(2, -3, id="one less")],
)
def test_the_well_known_mistakes_pick_another_client_and_krum_does_not(power: int, neighbours: int) -> None:
    differing = 0
    for seed in range(60):
        updates = Stream(seed).numpy().standard_normal((9, 3))
        wrong = literal_order(literal_scores(updates, 2, power, neighbours))[0]
        right = literal_order(literal_scores(updates, 2))[0]
        differing += wrong != right
        assert weights(Krum(2), updates)[right] == 1.0
    assert differing > 0


# ------------------------------------------------------------------------------------------------------- distances


@settings(max_examples=60)
@given(COHORTS)
def test_distances_are_right_symmetric_and_zero_between_equals(given: tuple[np.ndarray, int]) -> None:
    updates, _ = given
    found = _distances.squared_distances(torch.from_numpy(updates))
    x = updates.astype(np.float64)
    assert found.numpy() == pytest.approx(((x[:, None] - x[None]) ** 2).sum(-1), rel=1e-9)
    assert torch.equal(found, found.T)
    assert (found.numpy() == 0).tolist() == (x[:, None] == x[None]).all(-1).tolist()


@pytest.mark.parametrize("numbers", [1 << 20, 64])
def test_two_tight_groups_far_apart_keep_their_inner_distances(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_distances, "_NUMBERS", numbers)
    g = Stream(1).numpy()
    inner = 1e-5 * g.standard_normal((6, 50))
    updates = inner + np.repeat([[1e6], [-1e6]], 3, axis=0)
    found = _distances.squared_distances(torch.from_numpy(updates)).numpy()
    exact = ((updates[:, None] - updates[None]) ** 2).sum(-1)
    assert found == pytest.approx(exact, rel=1e-9)
    assert exact[0, 1] < 1e-6 < 1e12 < exact[0, 3]


def test_what_overflows_or_is_not_a_number_is_infinitely_far_from_the_others() -> None:
    updates = Stream(2).numpy().standard_normal((6, 4))
    updates[4], updates[5] = 1e300, -1e300
    odd = torch.from_numpy(np.vstack([updates, np.full((1, 4), np.nan), np.full((1, 4), np.inf)]))
    found = _distances.squared_distances(odd).numpy()
    assert found[:4, :4] == pytest.approx(((updates[:4, None] - updates[None, :4]) ** 2).sum(-1), rel=1e-9)
    far = found.copy()
    far[:4, :4] = np.inf
    np.fill_diagonal(far, np.inf)
    assert np.isinf(far).all()


@settings(max_examples=60)
@given(COHORTS)
def test_a_few_columns_at_a_time_give_the_same(given: tuple[np.ndarray, int]) -> None:
    updates, f = given
    rules: list[ServerRule] = [Krum(f), MultiKrum(f), CoordinateMedian()]
    whole = [outcome(rule, updates) for rule in rules]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_distances, "_NUMBERS", 2 * len(updates))
        pieces = [outcome(rule, updates) for rule in rules]
    for a, b in zip(whole, pieces, strict=True):
        assert torch.equal(a.direction, b.direction)
        assert a.info["weights"].tolist() == pytest.approx(b.info["weights"].tolist(), rel=1e-12)


# ---------------------------------------------------------------------------------------------------------- median


@settings(max_examples=60)
@given(COHORTS | lattice(lowest=1))
def test_the_median_is_that_of_every_column_to_the_bit(given: tuple[np.ndarray, int]) -> None:
    updates, _ = given
    found = outcome(CoordinateMedian(), updates).direction.numpy()
    assert found.dtype == updates.dtype
    assert np.array_equal(found, literal_median(updates))
    assert np.array_equal(found, np.median(updates, axis=0))


@settings(max_examples=60)
@given(COHORTS | lattice(lowest=1))
def test_the_weights_of_the_median_say_whose_values_it_is(given: tuple[np.ndarray, int]) -> None:
    updates, _ = given
    for c in range(updates.shape[1]):
        column = updates[:, c : c + 1]
        shares = np.array(weights(CoordinateMedian(), column))
        assert shares.sum() == pytest.approx(1.0)
        taken = np.where(shares > 0, column[:, 0].astype(np.float64), 0.0)
        assert shares @ taken == pytest.approx(float(np.median(column.astype(np.float64))), rel=1e-6, abs=1e-12)
    assert sum(weights(CoordinateMedian(), updates)) == pytest.approx(1.0)


# -------------------------------------------------------------------------------------------------------- clipping


@settings(max_examples=60)
@given(COHORTS | lattice(lowest=1), st.none() | st.floats(1e-3, 1e3))
def test_clipping_is_its_equation(given: tuple[np.ndarray, int], bound: float | None) -> None:
    updates = given[0].astype(np.float64)
    cohort, info = Clip(bound)(cohort_of(updates))
    expected = literal_clip(updates, bound)
    assert cohort.updates.numpy() == pytest.approx(expected, rel=1e-9, abs=1e-300)
    lengths = np.linalg.norm(updates, axis=1)
    assert info["bound"] == pytest.approx(float(np.median(lengths)) if bound is None else bound, rel=1e-9)
    assert info["clipped"] == int((info["scale"] < 1).sum())
    assert (info["scale"][:, None].numpy() * updates) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("rule", [Krum(1), MultiKrum(1), CoordinateMedian()], ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("scale", [lambda u: u * 4.0, lambda u: u - 7.0, lambda u: -u], ids=["times", "plus", "minus"])
@settings(max_examples=25)
@given(lattice())
def test_shifted_and_scaled_updates_give_a_shifted_and_scaled_step(
    rule: ServerRule, scale: Callable[[np.ndarray], np.ndarray], given: tuple[np.ndarray, int]
) -> None:
    updates, _ = given
    found = outcome(rule, scale(updates))
    assert found.direction.numpy() == pytest.approx(scale(outcome(rule, updates).direction.numpy()), abs=1e-5)
    if not isinstance(rule, CoordinateMedian):
        assert torch.equal(found.info["weights"], outcome(rule, updates).info["weights"])
