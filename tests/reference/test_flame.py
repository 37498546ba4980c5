"""FLAME against a slow, literal transcription, and its clustering against HDBSCAN itself."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN

from equipoise.aggregators.flame import FLAME, majority
from equipoise.streams import Stream
from tests.small import cohort


def literal_majority(apart: np.ndarray) -> list[bool]:
    """Raise a threshold over all distances, flood from every point, stop at the first group of more than half."""
    m = len(apart)
    for threshold in [0.0, *sorted(apart[i, j] for i in range(m) for j in range(m) if i != j)]:
        for start in range(m):
            group, edge = {start}, [start]
            while edge:
                i = edge.pop()
                for j in range(m):
                    if j not in group and apart[i, j] <= threshold:
                        group.add(j)
                        edge.append(j)
            if len(group) > m / 2:
                return [k in group for k in range(m)]
    raise AssertionError


@st.composite
def distances(draw: st.DrawFn) -> np.ndarray:
    """Symmetric, 0 on the diagonal: between random points, in clusters or not, or whole numbers with many ties."""
    m, g = draw(st.integers(2, 14)), Stream(draw(st.integers(0, 2**32))).numpy()
    if draw(st.booleans()):
        apart = g.integers(0, 5, (m, m)).astype(np.float64)
    else:
        x = g.standard_normal((m, 3)) + 5.0 * draw(st.booleans()) * g.integers(0, 2, (m, 1))
        apart = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    apart = np.maximum(apart, apart.T)
    np.fill_diagonal(apart, 0.0)
    return apart


@settings(max_examples=100)
@given(distances())
def test_the_majority_is_the_first_group_of_more_than_half(apart: np.ndarray) -> None:
    assert majority(torch.from_numpy(apart)).tolist() == literal_majority(apart)


@settings(max_examples=100)
@given(distances())
def test_the_majority_is_the_cluster_that_hdbscan_finds(apart: np.ndarray) -> None:
    m = len(apart)
    cluster = HDBSCAN(
        min_cluster_size=max(2, m // 2 + 1),
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    ).fit(apart)
    assert majority(torch.from_numpy(apart)).tolist() == (cluster.labels_ == 0).tolist()
    assert set(cluster.labels_.tolist()) <= {0, -1}


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    m=st.integers(1, 9),
    d=st.integers(3, 9),
    of=st.sampled_from(["model", "update"]),
    way=st.sampled_from(["uniform", "size"]),
    lam=st.sampled_from([0.0, 0.001, 0.5]),
)
def test_flame_is_its_algorithm(seed: int, m: int, d: int, of: str, way: str, lam: float) -> None:
    seen = cohort(m, d, seed=seed % 1000)
    updates = Stream(seed).numpy().standard_normal((m, d))
    seen = replace(seen, updates=torch.from_numpy(updates))
    rows = updates if of == "update" else seen.start.numpy() - updates
    apart = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if i != j:
                cos = (rows[i] @ rows[j]) / (math.sqrt(rows[i] @ rows[i]) * math.sqrt(rows[j] @ rows[j]))
                apart[i, j] = 1.0 - cos
    kept = literal_majority(np.maximum(apart, apart.T))
    lengths = [math.sqrt(u @ u) for u in updates]
    bound = float(np.median(lengths))
    total, expected = 0.0, np.zeros(d)
    for k in range(m):
        if kept[k]:
            n = 1.0 if way == "uniform" else float(seen.sizes[k])
            total += n
            expected = expected + n * min(1.0, bound / lengths[k]) * updates[k]
    noise = seen.rng.child("flame").normal(torch.arange(d)).numpy()
    found = FLAME(lam, of, way)(seen, {})  # type: ignore[arg-type]
    assert found.direction.numpy() == pytest.approx(expected / total - lam * bound * noise, rel=1e-9, abs=1e-9)
    assert (found.info["weights"] > 0).tolist() == kept
    assert found.info["bound"] == pytest.approx(bound, rel=1e-9)
    assert found.info["kept"] == sum(kept) > m / 2
