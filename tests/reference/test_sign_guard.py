"""SignGuard against a slow, literal transcription, and its clustering against scikit-learn's mean shift."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import MeanShift, estimate_bandwidth

from equipoise.aggregators._rows import some_columns
from equipoise.aggregators.sign_guard import SignGuard, largest_cluster, radius
from equipoise.streams import Stream
from tests.small import cohort


def mean_shift_majority(x: np.ndarray) -> list[bool]:
    bandwidth = estimate_bandwidth(x, quantile=0.5)
    labels = MeanShift(bandwidth=bandwidth + 1e-12, cluster_all=False).fit(x).labels_
    counts = [int((labels == i).sum()) for i in range(labels.max() + 1)]
    return (labels == int(np.argmax(counts))).tolist()


@st.composite
def points(draw: st.DrawFn) -> np.ndarray:
    g = Stream(draw(st.integers(0, 2**32))).numpy()
    m = draw(st.integers(4, 25))  # with fewer the radius is 0, and scikit-learn's only rounding: points miss themselves
    x = 0.1 * g.standard_normal((m, 3))
    return x + draw(st.sampled_from([0.0, 0.3, 1.0])) * g.integers(0, draw(st.integers(1, 3)), (m, 1))


@settings(max_examples=80, deadline=None)
@given(points())
def test_the_cluster_is_that_of_mean_shift(x: np.ndarray) -> None:
    assert float(radius(torch.from_numpy(x))) == pytest.approx(estimate_bandwidth(x, quantile=0.5), rel=1e-9)
    assert largest_cluster(torch.from_numpy(x)).tolist() == mean_shift_majority(x)


@pytest.mark.parametrize("m", [2, 3])
def test_two_or_three_points_are_clusters_of_their_own(m: int) -> None:
    x = torch.from_numpy(Stream(m).numpy().standard_normal((m, 3)))
    assert float(radius(x)) == 0.0
    assert largest_cluster(x).tolist() == (x[:, 0] == x[:, 0].max()).tolist()  # the tie is mean shift's


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    m=st.integers(2, 12),
    d=st.integers(20, 60),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    low=st.sampled_from([0.0, 0.1, 0.8]),
    high=st.sampled_from([1.2, 3.0]),
    way=st.sampled_from(["uniform", "size"]),
    shift=st.sampled_from([0.0, 2.0]),
)
def test_sign_guard_is_its_algorithm(
    seed: int, m: int, d: int, share: float, low: float, high: float, way: str, shift: float
) -> None:
    g = Stream(seed).numpy()
    updates = g.standard_normal((m, d)) * 3.0 ** g.integers(-2, 3, (m, 1))
    updates[: m // 3] += shift * np.abs(updates[: m // 3])  # a group with more positive signs
    updates[:, ::4] = 0.0
    seen = replace(cohort(m, d, seed=seed % 1000), updates=torch.from_numpy(updates))
    at = some_columns(seen.rng.child("sign-guard"), d, round(share * d), torch.device("cpu")).numpy()
    signs = []
    for u in updates[:, at]:
        counts = [sum(v > 0 for v in u), sum(v == 0 for v in u), sum(v < 0 for v in u)]
        signs.append([c / len(at) for c in counts])
    alike = largest_cluster(torch.tensor(signs, dtype=torch.float64)).tolist()  # whole numbers tie: see above
    lengths = [math.sqrt(u @ u) for u in updates]
    bound = float(np.median(lengths))
    total, expected, kept = 0.0, np.zeros(d), []
    for k in range(m):
        if alike[k] and low * bound <= lengths[k] <= high * bound:
            kept.append(k)
            n = 1.0 if way == "uniform" else float(seen.sizes[k])
            total += n
            expected = expected + n * min(1.0, bound / lengths[k]) * updates[k]
    found = SignGuard(low, high, share, way)(seen, {})
    assert (found.info["weights"] > 0).nonzero().flatten().tolist() == kept
    assert found.direction.numpy() == pytest.approx(expected / max(total, 1.0), rel=1e-9, abs=1e-9)
    assert found.info["signs_refused"] == m - sum(alike)
    assert ("reason" in found.info) == (not kept)
