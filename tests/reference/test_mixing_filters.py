"""Bucketing, nearest neighbour mixing and adaptive robust clipping against slow, literal transcriptions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from equipoise.aggregators.arc import ARC
from equipoise.aggregators.bucketing import Bucketing
from equipoise.aggregators.nnm import NNM
from equipoise.core import Cohort
from equipoise.streams import Stream
from tests.small import cohort


def cohort_of(updates: np.ndarray, seed: int = 0) -> Cohort:
    return replace(cohort(*updates.shape, seed=seed), updates=torch.from_numpy(updates.copy()))


@st.composite
def smooth(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.integers(1, 11)), draw(st.integers(1, 8))
    return Stream(draw(st.integers(0, 2**32))).numpy().standard_normal(shape)


@st.composite
def lattice(draw: st.DrawFn) -> np.ndarray:
    """Small whole numbers: ties everywhere, and all of it exact."""
    m, d = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    return draw(arrays(np.int64, (m, d), elements=st.integers(-2, 2))).astype(np.float64)


UPDATES = smooth() | lattice()


# -------------------------------------------------------------------------------------------------------- bucketing


@settings(max_examples=60)
@given(UPDATES, st.integers(1, 5), st.integers(0, 10**6))
def test_buckets_are_means_of_s_clients_each_and_the_last_of_the_rest(updates: np.ndarray, s: int, seed: int) -> None:
    m = len(updates)
    seen = cohort_of(updates, seed)
    found, info = Bucketing(s)(seen)
    members = [[k for k in range(m) if int(info["row_of"][k]) == row] for row in range(len(found))]
    assert len(found) == Bucketing(s).check(m) == math.ceil(m / s)
    assert sorted(len(b) for b in members) == sorted([s] * (m // s) + ([m % s] if m % s else []))
    assert seen.losses is not None and found.losses is not None
    for row, bucket in enumerate(members):
        mean = sum(updates[k] for k in bucket) / len(bucket)
        assert found.updates[row].numpy() == pytest.approx(mean, rel=1e-9, abs=1e-12)
        assert int(found.ids[row]) == min(int(seen.ids[k]) for k in bucket)
        assert int(found.sizes[row]) == sum(int(seen.sizes[k]) for k in bucket)
        assert float(found.losses[row]) == pytest.approx(np.mean([float(seen.losses[k]) for k in bucket]), rel=1e-9)


# ------------------------------------------------------------------------------------------ nearest neighbour mixing


def literal_neighbours(updates: np.ndarray, i: int, f: int) -> list[int]:
    m = len(updates)
    distances = [float(((updates[i] - updates[j]) ** 2).sum()) for j in range(m)]
    others = sorted((j for j in range(m) if j != i), key=lambda j: (distances[j], j))
    return [i, *others][: m - f]


@settings(max_examples=80)
@given(UPDATES, st.data())
def test_nnm_is_the_mean_of_the_nearest(updates: np.ndarray, data: st.DataObject) -> None:
    m = len(updates)
    f = data.draw(st.integers(0, (m - 1) // 2))
    found, info = NNM(f)(cohort_of(updates))
    near = [literal_neighbours(updates, i, f) for i in range(m)]
    for i in range(m):
        mean = sum(updates[j] for j in near[i]) / (m - f)
        assert found.updates[i].numpy() == pytest.approx(mean, rel=1e-9, abs=1e-12)
    part = [sum(j in n for n in near) / (m - f) for j in range(m)]
    assert info["scale"].tolist() == pytest.approx([min(1.0, p) for p in part], rel=1e-9)


# ---------------------------------------------------------------------------------------- adaptive robust clipping


@settings(max_examples=80)
@given(UPDATES, st.data())
def test_arc_clips_the_k_longest_to_the_next_length(updates: np.ndarray, data: st.DataObject) -> None:
    m = len(updates)
    f = data.draw(st.integers(0, (m - 1) // 2))
    found, info = ARC(f)(cohort_of(updates))
    lengths = [math.sqrt(sum(v * v for v in row)) for row in updates]
    k = math.floor(2 * f * (m - f) / m)
    bound = sorted(lengths, reverse=True)[k]
    expected = [row * min(1.0, bound / n) if n > 0 else row for row, n in zip(updates, lengths, strict=True)]
    assert found.updates.numpy() == pytest.approx(np.array(expected), rel=1e-9, abs=1e-12)
    assert info["bound"] == pytest.approx(bound, rel=1e-9)
    assert info["clipped"] == int((info["scale"] < 1).sum()) <= k
    assert (info["scale"].numpy()[:, None] * updates) == pytest.approx(np.array(expected), rel=1e-9, abs=1e-12)
