"""FLTrust against a slow, literal transcription of its equations."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.aggregators.fltrust import FLTrust
from equipoise.streams import Stream
from tests.small import cohort


def length(x: np.ndarray) -> float:
    return math.sqrt(sum(float(v) ** 2 for v in x))


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    m=st.integers(1, 9),
    d=st.integers(1, 8),
    zeros=st.integers(0, 2),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_fltrust_is_its_equations(seed: int, m: int, d: int, zeros: int, dtype: type) -> None:
    g = Stream(seed).numpy()
    updates = (g.standard_normal((m, d)) * 10.0 ** g.integers(-3, 4, (m, 1))).astype(dtype)
    updates[:zeros] = 0.0
    root = g.standard_normal(d).astype(dtype)
    wide, own = updates.astype(np.float64), root.astype(np.float64)
    trust = []
    for u in wide:
        trust.append(max(0.0, float(u @ own) / (length(u) * length(own))) if length(u) > 0 else 0.0)
    total = sum(trust)
    expected = np.zeros(d)
    for t, u in zip(trust, wide, strict=True):
        if t > 0:
            expected = expected + t / total * length(own) / length(u) * u
    seen = replace(cohort(m, d), updates=torch.from_numpy(updates), root=torch.from_numpy(root))
    found = FLTrust()(seen, {})
    assert found.info["trust"].numpy() == pytest.approx(np.array(trust), rel=1e-9, abs=1e-12)
    shares = np.array(trust) / total if total > 0 else np.zeros(m)
    assert found.info["weights"].numpy() == pytest.approx(shares, rel=1e-9, abs=1e-12)
    tolerance = 1e-9 if dtype is np.float64 else 1e-6
    assert found.direction.numpy() == pytest.approx(expected, rel=tolerance, abs=tolerance)
    assert ("reason" in found.info) == (total == 0)
