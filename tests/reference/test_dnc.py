"""DnC against a slow, literal transcription with numpy's singular value decomposition."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.aggregators._rows import some_columns
from equipoise.aggregators.dnc import DnC, outlier_scores
from equipoise.core import Cohort
from equipoise.streams import Stream
from tests.small import cohort


def literal_scores(rows: np.ndarray) -> np.ndarray:
    centred = rows - rows.mean(0)
    v = np.linalg.svd(centred)[2][0]
    return np.array([float(x @ v) ** 2 for x in centred])


def literal_shares(sizes: np.ndarray, way: str) -> np.ndarray:
    cap = {"uniform": 1.0, "size": math.inf, "capped": float(np.sort(sizes)[(len(sizes) - 1) // 2])}[way]
    counted = np.ones(len(sizes)) if way == "uniform" else np.array([min(float(n), cap) for n in sizes])
    return counted / counted.sum()


def separated(values: np.ndarray) -> bool:
    """Whether the order of these numbers survives rounding."""
    return bool(np.diff(np.sort(values)).min(initial=1.0) > 1e-6 * max(1e-12, values.max()))


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    m=st.integers(3, 10),
    d=st.integers(2, 9),
    b=st.integers(1, 12),
    iterations=st.integers(1, 4),
    c=st.sampled_from([0.5, 1.0, 1.5]),
    way=st.sampled_from(["uniform", "size", "capped"]),
    data=st.data(),
)
def test_dnc_is_its_algorithm(
    seed: int, m: int, d: int, b: int, iterations: int, c: float, way: str, data: st.DataObject
) -> None:
    f = data.draw(st.integers(0, m // 2))
    out = math.ceil(c * f)
    assume(out < m)
    updates = Stream(seed).numpy().standard_normal((m, d))
    seen: Cohort = replace(cohort(m, d, seed=seed % 1000), updates=torch.from_numpy(updates))
    kept = set(range(m))
    for i in range(iterations):
        at = some_columns(seen.rng.child("dnc", i), d, b, torch.device("cpu")).numpy()
        assert len(set(at.tolist())) == len(at) == min(b, d)
        scores = literal_scores(updates[:, at])
        assume(separated(scores))
        kept &= set(np.argsort(scores)[: m - out].tolist())
    expected = np.zeros(m)
    if kept:
        expected[sorted(kept)] = literal_shares(seen.sizes.numpy()[sorted(kept)], way)
    found = DnC(f, c, b, iterations, way)(seen, {})
    assert found.info["weights"].numpy() == pytest.approx(expected, rel=1e-9)
    assert found.direction.numpy() == pytest.approx(expected @ updates, rel=1e-9, abs=1e-9)
    assert found.info["kept"] == len(kept)
    assert ("reason" in found.info) == (not kept)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), m=st.integers(2, 10), d=st.integers(1, 9), size=st.sampled_from([1.0, 1e30, 1e-30]))
def test_scores_are_squared_parts_along_the_top_singular_vector(seed: int, m: int, d: int, size: float) -> None:
    rows = Stream(seed).numpy().standard_normal((m, d))
    values = np.linalg.svd(rows - rows.mean(0))[1]
    assume(len(values) < 2 or values[1] < 0.99 * values[0])
    expected, found = literal_scores(rows), outlier_scores(torch.from_numpy(size * rows)).numpy()
    assert found / found.sum() == pytest.approx(expected / expected.sum(), rel=1e-9, abs=1e-9)
