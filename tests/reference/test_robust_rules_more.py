"""Trimmed mean, Bulyan, geometric median, centred clipping, k-norm, k-loss, norm bounding, signSGD: slow, literal."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.aggregators import _distances
from equipoise.aggregators.bulyan import Bulyan
from equipoise.aggregators.centred_clipping import CentredClipping
from equipoise.aggregators.clip import Clip
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.geometric_median import GeometricMedian
from equipoise.aggregators.k_loss import KLoss
from equipoise.aggregators.k_norm import KNorm
from equipoise.aggregators.multi_krum import MultiKrum
from equipoise.aggregators.norm_bounding import NormBounding
from equipoise.aggregators.sign_sgd import SignSGD
from equipoise.aggregators.trimmed_mean import TrimmedMean
from equipoise.core import Cohort, Outcome, ServerRule
from equipoise.streams import Stream
from tests.reference.test_robust_rules import lattice, literal_order, literal_scores, nearly_equal, outlying, smooth

WAYS = st.sampled_from(["uniform", "size", "capped"])
SEEDS = st.integers(0, 10**6)
ALL = smooth() | lattice() | outlying() | nearly_equal()


def cohort_of(updates: np.ndarray, sizes: list[int] | None = None, round: int = 0) -> Cohort:
    m, d = updates.shape
    rows = torch.from_numpy(updates.copy())
    n = torch.tensor(sizes if sizes is not None else list(range(1, m + 1)))
    return Cohort(torch.arange(m), torch.zeros(d, dtype=rows.dtype), rows, n, round=round)


def outcome(rule: ServerRule, updates: np.ndarray, sizes: list[int] | None = None) -> Outcome:
    cohort = cohort_of(updates, sizes)
    return rule(cohort, rule.init(cohort.start))


def sizes_for(m: int, seed: int) -> list[int]:
    drawn: list[int] = Stream(seed).child("sizes").numpy().integers(0, 9, m).tolist()
    return drawn


def literal_shares(sizes: list[int], way: str) -> list[Fraction]:
    """Exact weights that sum to 1."""
    middle = sorted(sizes)[(len(sizes) - 1) // 2]
    n = {"uniform": [1] * len(sizes), "size": sizes, "capped": [min(s, middle) for s in sizes]}[way]
    return [Fraction(s, sum(n)) if sum(n) else Fraction(1, len(n)) for s in n]


def close(found: torch.Tensor, expected: object, dtype: type = np.float64) -> None:
    tolerance = 1e-9 if dtype == np.float64 else 2e-6
    assert found.numpy() == pytest.approx(np.asarray(expected, dtype=np.float64), rel=tolerance, abs=tolerance)


# ----------------------------------------------------------------------------------------------------- trimmed mean


def literal_trimmed(updates: np.ndarray, f: int, p: list[Fraction]) -> np.ndarray:
    """Walk along each column's sorted values; each takes up its weight, and what lies in the kept part counts."""
    m, d = updates.shape
    out, trim = np.zeros(d), Fraction(f, m)
    for c in range(d):
        at, total = Fraction(0), 0.0
        for value, k in sorted((float(updates[k, c]), k) for k in range(m)):
            kept = max(Fraction(0), min(at + p[k], 1 - trim) - max(at, trim))
            total += float(kept) * value
            at += p[k]
        out[c] = total / float(1 - 2 * trim)
    return out


@settings(max_examples=60)
@given(ALL, WAYS, SEEDS)
def test_the_trimmed_mean_is_its_equation(given: tuple[np.ndarray, int], way: str, seed: int) -> None:
    updates, f = given
    m = len(updates)
    f, sizes = min(f, (m - 1) // 2), sizes_for(m, seed)
    found = outcome(TrimmedMean(f, way), updates, sizes)
    expected = literal_trimmed(updates, f, literal_shares(sizes, way))
    size = max(1.0, float(np.abs(expected).max()))
    close(found.direction / size, expected / size, updates.dtype.type)
    assert found.direction.numpy().dtype == updates.dtype
    assert float(found.info["weights"].sum()) == pytest.approx(1.0)


@settings(max_examples=40)
@given(smooth() | lattice())
def test_with_equal_weights_it_drops_the_f_largest_and_the_f_smallest(given: tuple[np.ndarray, int]) -> None:
    updates, f = given[0].astype(np.float64), min(given[1], (len(given[0]) - 1) // 2)
    columns = [sorted(column)[f : len(updates) - f] for column in updates.T.tolist()]
    close(outcome(TrimmedMean(f), updates).direction, [sum(c) / len(c) for c in columns])
    for way in ("size", "capped"):
        same = outcome(TrimmedMean(f, way), updates, [4] * len(updates))
        close(same.direction, outcome(TrimmedMean(f), updates).direction)


@settings(max_examples=40)
@given(smooth() | lattice() | outlying())
def test_its_weights_say_whose_values_were_kept(given: tuple[np.ndarray, int]) -> None:
    updates, f = given[0].astype(np.float64), min(given[1], (len(given[0]) - 1) // 2)
    m, d = updates.shape
    expected = np.zeros(m)
    for c in range(d):
        kept = sorted(updates[:, c])[f : m - f]
        for k in range(m):
            expected[k] += kept.count(updates[k, c]) / list(updates[:, c]).count(updates[k, c]) / (m - 2 * f) / d
    close(outcome(TrimmedMean(f), updates).info["weights"], expected)


@given(smooth())
def test_trimming_nothing_is_the_mean_and_trimming_all_but_the_middle_is_the_median(
    given: tuple[np.ndarray, int],
) -> None:
    updates = given[0].astype(np.float64)
    close(outcome(TrimmedMean(0), updates).direction, updates.mean(0))
    close(outcome(TrimmedMean((len(updates) - 1) // 2), updates).direction, np.median(updates, axis=0))


# ----------------------------------------------------------------------- weights of the median and of Multi-Krum


@settings(max_examples=60)
@given(ALL, WAYS, SEEDS)
def test_the_weighted_median_has_half_of_the_weight_on_either_side(
    given: tuple[np.ndarray, int], way: str, seed: int
) -> None:
    updates, _ = given
    m, d = updates.shape
    sizes = sizes_for(m, seed)
    p = literal_shares(sizes, way)
    found = outcome(CoordinateMedian(way), updates, sizes)
    for c in range(d):
        column = updates[:, c].tolist()
        below = {v: sum((p[k] for k in range(m) if column[k] <= v), Fraction(0)) for v in column}
        above = {v: sum((p[k] for k in range(m) if column[k] >= v), Fraction(0)) for v in column}
        low = min(v for v in column if below[v] >= Fraction(1, 2))
        high = max(v for v in column if above[v] >= Fraction(1, 2))
        expected = (updates.dtype.type(low) + updates.dtype.type(high)) / updates.dtype.type(2)
        assert found.direction[c] == expected
    assert float(found.info["weights"].sum()) == pytest.approx(1.0)


@settings(max_examples=40)
@given(smooth() | lattice(), WAYS, SEEDS)
def test_multi_krum_weighs_those_it_keeps_by_their_sizes(given: tuple[np.ndarray, int], way: str, seed: int) -> None:
    updates, f = given[0].astype(np.float64), given[1]
    m = len(updates)
    sizes = sizes_for(m, seed)
    kept = sorted(literal_order(literal_scores(updates, f))[: m - f])
    p = dict(zip(kept, literal_shares([sizes[k] for k in kept], way), strict=True))
    found = outcome(MultiKrum(f, way), updates, sizes)
    close(found.info["weights"], [float(p.get(k, 0)) for k in range(m)])
    close(found.direction, sum(float(w) * updates[k] for k, w in p.items()))


# ------------------------------------------------------------------------------------------------------------ Bulyan


def literal_bulyan(updates: np.ndarray, f: int) -> tuple[list[int], np.ndarray]:
    m, d = updates.shape
    left, chosen = list(range(m)), []
    while len(chosen) < m - 2 * f:
        scores = {}
        for k in left:
            apart = [sum((float(a) - float(b)) ** 2 for a, b in zip(updates[k], updates[j], strict=True)) for j in left]
            apart.pop(left.index(k))
            scores[k] = sum(sorted(apart)[: max(1, len(left) - f - 2)])
        best = min(left, key=lambda k: (scores[k], k))
        left.remove(best)
        chosen.append(best)
    out = np.zeros(d)
    for c in range(d):
        values = [updates[k, c] for k in sorted(chosen)]
        ordered = sorted(values)
        n = len(ordered)
        centre = (ordered[(n - 1) // 2] + ordered[n // 2]) / updates.dtype.type(2)
        near = sorted(values, key=lambda v: (abs(v - centre), v))[: m - 4 * f]
        out[c] = sum(float(v) for v in near) / (m - 4 * f)
    return sorted(chosen), out


@st.composite
def for_bulyan(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Cohorts with m >= 4f + 3, smooth, on a lattice, or with f rows at 1e30."""
    f = draw(st.integers(0, 2))
    m, d = 4 * f + 3 + draw(st.integers(0, 3)), draw(st.integers(1, 5))
    g = Stream(draw(SEEDS)).numpy()
    kind = draw(st.sampled_from(["smooth", "lattice", "outlying"]))
    updates = g.standard_normal((m, d)) if kind == "smooth" else g.integers(-2, 3, (m, d)).astype(np.float64)
    if kind == "outlying" and f > 0:
        updates[g.permutation(m)[:f]] = 1e30 * g.choice([-1.0, 1.0], (f, 1))
    return updates.astype(draw(st.sampled_from([np.float32, np.float64]))), f


@settings(max_examples=80)
@given(for_bulyan())
def test_bulyan_is_its_algorithm(given: tuple[np.ndarray, int]) -> None:
    updates, f = given
    found = outcome(Bulyan(f), updates)
    chosen, expected = literal_bulyan(updates, f)
    close(found.direction, expected, updates.dtype.type)
    weights = found.info["weights"]
    assert float(weights.sum()) == pytest.approx(1.0)
    assert set(weights.nonzero().flatten().tolist()) <= set(chosen)


# -------------------------------------------------------------------------------------------------- geometric median


def literal_weiszfeld(updates: np.ndarray, p: np.ndarray, nu: float, steps: int) -> np.ndarray:
    x = updates.astype(np.float64)
    z = np.median(x, axis=0)
    for _ in range(steps):
        beta = np.array([p[k] / max(nu, math.sqrt(sum((z - x[k]) ** 2))) for k in range(len(x))])
        z = sum(beta[k] * x[k] for k in range(len(x))) / sum(beta)
    return z


@settings(max_examples=60)
@given(smooth(), WAYS, SEEDS, st.integers(1, 8), st.sampled_from([1e-6, 0.3, 3.0]))
def test_the_geometric_median_is_smoothed_weiszfeld_from_the_coordinate_median(
    given: tuple[np.ndarray, int], way: str, seed: int, steps: int, nu: float
) -> None:
    updates = given[0].astype(np.float64)
    sizes = sizes_for(len(updates), seed)
    rule = GeometricMedian(nu, steps, 0.0, way)
    p = np.array([float(w) for w in literal_shares(sizes, way)])
    found = outcome(rule, updates, sizes)
    # Where z sits on an update, distances are exact to 1e-8 of the others, as the docstring says.
    assert found.direction.numpy() == pytest.approx(literal_weiszfeld(updates, p, nu, steps), rel=1e-7, abs=1e-7)
    assert found.info["iterations"] <= steps  # fewer only where a step moved nothing at all
    assert found.info["weights"].numpy() @ updates == pytest.approx(found.direction.numpy())


@settings(max_examples=40)
@given(SEEDS, st.integers(3, 12), st.integers(2, 30))
def test_away_from_the_updates_it_is_the_equation_to_the_last_digits(seed: int, m: int, d: int) -> None:
    updates = Stream(seed).numpy().standard_normal((m, d)) * 3.0 + 100.0
    p = np.full(m, 1 / m)
    found = outcome(GeometricMedian(1e-3, 5, 0.0), updates).direction.numpy()
    expected = literal_weiszfeld(updates, p, 1e-3, 5)
    if min(np.linalg.norm(updates - expected, axis=1)) > 0.5:
        assert found == pytest.approx(expected, rel=1e-9)


@settings(max_examples=30)
@given(SEEDS, st.integers(3, 10))
def test_no_nearby_point_has_a_smaller_sum_of_distances(seed: int, m: int) -> None:
    g = Stream(seed).numpy()
    updates = g.standard_normal((m, 5))
    z = outcome(GeometricMedian(iterations=3000, tolerance=1e-9), updates).direction.numpy()
    least = np.linalg.norm(updates - z, axis=1).sum()
    for step in (1e-1, 1e-2, 1e-3):
        for _ in range(10):
            other = z + step * g.standard_normal(5)
            assert np.linalg.norm(updates - other, axis=1).sum() >= least - 1e-6


@settings(max_examples=40)
@given(outlying())
def test_updates_at_1e30_change_it_as_much_as_any_far_update_in_that_direction(given: tuple[np.ndarray, int]) -> None:
    updates = given[0].astype(np.float64)
    far = np.abs(updates).max(1) > 1e20
    z = outcome(GeometricMedian(), updates).direction.numpy()
    nearer = outcome(GeometricMedian(), np.where(far[:, None], updates * 1e-18, updates)).direction.numpy()
    assert z == pytest.approx(nearer, abs=1e-3)
    assert np.abs(z).max() < 20


# -------------------------------------------------------------------------------------------------- centred clipping


def literal_clipping(
    rounds: list[np.ndarray], p: list[float], tau: float, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """The last v, and how many clients were clipped in the last iteration."""
    v, clipped = np.zeros(rounds[0].shape[1]), 0
    for updates in rounds:
        for _ in range(iterations):
            step, clipped = np.zeros_like(v), 0
            for k in range(len(updates)):
                length = math.sqrt(sum((updates[k] - v) ** 2))
                step = step + p[k] * (updates[k] - v) * (min(1.0, tau / length) if length > 0 else 1.0)
                clipped += length > tau
            v = v + step
    return v, np.asarray(clipped)


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 9), WAYS, st.sampled_from([0.1, 1.0, 3.0, 100.0]), st.integers(1, 4), st.integers(1, 3))
def test_centred_clipping_is_its_equation_over_rounds(
    seed: int, m: int, way: str, tau: float, iterations: int, rounds: int
) -> None:
    g = Stream(seed).numpy()
    all_updates = [g.standard_normal((m, 6)) for _ in range(rounds)]
    sizes = sizes_for(m, seed)
    rule = CentredClipping(tau, iterations, way)
    state = rule.init(torch.zeros(6, dtype=torch.float64))
    for updates in all_updates:
        found = rule(cohort_of(updates, sizes), state)
        before, state = state["v"], found.state
    p = [float(w) for w in literal_shares(sizes, way)]
    expected, clipped = literal_clipping(all_updates, p, tau, iterations)
    close(found.direction, expected)
    assert torch.equal(state["v"], found.direction)
    assert found.info["clipped"] == int(clipped) == int((found.info["scale"] < 1).sum())
    weights = found.info["weights"]
    assert 0 <= float(weights.sum()) <= 1 + 1e-12
    close(found.direction, (1 - weights.sum()) * before + weights @ torch.from_numpy(all_updates[-1]))


def test_a_tau_beyond_all_distances_is_the_mean() -> None:
    updates = Stream(1).numpy().standard_normal((7, 5))
    close(outcome(CentredClipping(1e6), updates).direction, updates.mean(0))


# ------------------------------------------------------------------------------- k-norm, k-loss, norm bounding


@settings(max_examples=60)
@given(ALL)
def test_k_norm_keeps_the_m_minus_f_shortest_and_of_equals_the_lowest_ids(given: tuple[np.ndarray, int]) -> None:
    updates, f = given
    m = len(updates)
    lengths = [math.sqrt(sum(float(v) ** 2 for v in row)) for row in updates]
    # Lengths that differ in the last digit of float64 only are not told apart by two ways of adding up.
    kept = sorted(sorted(range(m), key=lambda k: (float(f"{lengths[k]:.12e}"), k))[: m - f])
    found, info = KNorm(f)(cohort_of(updates))
    assert found.ids.tolist() == kept
    assert np.array_equal(found.updates.numpy(), updates[kept])
    assert info["scale"].tolist() == [float(k in kept) for k in range(m)]
    assert info["row_of"].tolist() == [kept.index(k) if k in kept else -1 for k in range(m)]
    assert info["dropped"] == f


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 9), WAYS, st.data())
def test_k_loss_takes_the_update_with_the_m_minus_f_th_smallest_loss(
    seed: int, m: int, way: str, data: st.DataObject
) -> None:
    g = Stream(seed).numpy()
    f = data.draw(st.integers(0, m - 1))
    updates, losses, sizes = g.standard_normal((m, 4)), g.integers(0, 4, m) / 4.0, sizes_for(m, seed)
    seen = replace(cohort_of(updates, sizes), losses=torch.from_numpy(losses))
    order = sorted(range(m), key=lambda k: (losses[k], k))
    one = KLoss(f)(seen, {})
    assert np.array_equal(one.direction.numpy(), updates[order[m - f - 1]])
    assert one.info["weights"].tolist() == [float(k == order[m - f - 1]) for k in range(m)]
    kept = sorted(order[: m - f])
    p = literal_shares([sizes[k] for k in kept], way)
    rest = KLoss(f, "rest", way)(seen, {})
    close(rest.direction, sum(float(w) * updates[k] for w, k in zip(p, kept, strict=True)))
    assert (one.info["dropped"], rest.info["dropped"]) == (m - 1, f)


@settings(max_examples=40)
@given(smooth() | lattice(), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([0.0, 0.1]), SEEDS)
def test_norm_bounding_is_clipping_and_one_noise_for_all_rows(
    given: tuple[np.ndarray, int], bound: float, sigma: float, seed: int
) -> None:
    updates = given[0].astype(np.float64)
    seen = replace(cohort_of(updates), rng=Stream(seed))
    found, info = NormBounding(bound, sigma)(seen)
    z = Stream(seed).child("norm-bounding").normal(torch.arange(updates.shape[1])).numpy()
    lengths = np.linalg.norm(updates, axis=1)
    factor = np.array([min(1.0, bound / n) if n > 0 else 1.0 for n in lengths])
    close(found.updates, updates * factor[:, None] + sigma * z)
    close(info["scale"], factor)
    if sigma == 0:
        assert torch.equal(found.updates, Clip(bound)(seen)[0].updates)


# ----------------------------------------------------------------------------------------------------------- signSGD


def sign(x: float | Fraction) -> int:
    return int(x > 0) - int(x < 0)


@settings(max_examples=60)
@given(SEEDS, WAYS, st.sampled_from([0.0, 0.5, 0.9]), st.integers(1, 4))
def test_sign_sgd_is_its_algorithm_over_rounds_with_absent_clients(
    seed: int, way: str, beta: float, rounds: int
) -> None:
    g = Stream(seed).numpy()
    rule = SignSGD(0.01, beta, weights=way)
    state, momentum = rule.init(torch.zeros(5, dtype=torch.float64)), {}
    for r in range(rounds):
        ids = sorted(g.permutation(8)[: g.integers(1, 7)].tolist())
        updates = g.integers(-1, 2, (len(ids), 5)).astype(np.float64)
        sizes = sizes_for(len(ids), seed + r)
        seen = replace(cohort_of(updates, sizes, r), ids=torch.tensor(ids))
        found = rule(seen, state)
        state = found.state
        p, votes = literal_shares(sizes, way), []
        for k, u in zip(ids, updates, strict=True):
            momentum[k] = (1 - beta) * u + beta * momentum.get(k, np.zeros(5))
            votes.append([sign(v) for v in momentum[k]])
        expected, weights = [], np.zeros(len(ids))
        for c in range(5):
            won = sign(sum((w * v[c] for w, v in zip(p, votes, strict=True)), Fraction(0)))
            expected.append(0.01 * won)
            winners = [k for k in range(len(ids)) if won != 0 and votes[k][c] == won]
            for k in winners:
                weights[k] += float(p[k] / sum(p[j] for j in winners)) / 5
        assert found.direction.tolist() == pytest.approx(expected)
        close(found.info["weights"], weights)
        assert found.info["decided"] == pytest.approx(np.count_nonzero(expected) / 5)


# ------------------------------------------------------------------------------------------------- pieces of columns


@settings(max_examples=40)
@given(for_bulyan())
def test_a_few_columns_at_a_time_give_the_same(given: tuple[np.ndarray, int]) -> None:
    updates, f = given
    rules = [TrimmedMean(f), TrimmedMean(f, "size"), Bulyan(f), GeometricMedian(), SignSGD(), CoordinateMedian("size")]
    whole = [outcome(rule, updates) for rule in rules]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_distances, "_NUMBERS", 2 * len(updates))
        pieces = [outcome(rule, updates) for rule in rules]
    for rule, a, b in zip(rules, whole, pieces, strict=True):
        exact = 1e-5 if isinstance(rule, GeometricMedian) else 1e-6
        assert a.direction.tolist() == pytest.approx(b.direction.tolist(), rel=exact, abs=exact)
        assert a.info["weights"].tolist() == pytest.approx(b.info["weights"].tolist(), rel=1e-6, abs=1e-6)
