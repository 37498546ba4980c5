"""FoolsGold against a slow, literal transcription of its algorithm, over several rounds with some clients absent."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.aggregators.fools_gold import FoolsGold
from equipoise.core import Cohort
from equipoise.streams import Stream


def literal_weights(history: list[np.ndarray], kappa: float) -> list[float]:
    m = len(history)
    cs = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            lengths = math.sqrt(history[i] @ history[i]) * math.sqrt(history[j] @ history[j])
            cs[i, j] = history[i] @ history[j] / lengths if i != j and lengths > 0 else 0.0
    v = [max([0.0] + [cs[i, j] for j in range(m) if j != i]) for i in range(m)]
    for i in range(m):
        for j in range(m):
            if v[j] > v[i]:
                cs[i, j] *= v[i] / v[j]
    alpha = [1.0 - max([0.0] + [cs[i, j] for j in range(m) if j != i]) for i in range(m)]
    alpha = [a if a > 1e-9 else 0.0 for a in alpha]  # what is left of 1 - 1 by rounding
    top = max(alpha) or 1.0
    out = []
    for a in (a / top for a in alpha):
        logit = math.inf if a >= 1 else -math.inf if a <= 0 else math.log(a / (1 - a))
        out.append(min(1.0, max(0.0, kappa * (logit + 0.5))))
    return out


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 8),
    d=st.integers(1, 6),
    kappa=st.sampled_from([0.1, 1.0, 3.0]),
    like=st.floats(0.0, 2.0),
)
def test_every_round_is_the_algorithm(seed: int, n: int, d: int, kappa: float, like: float) -> None:
    g = Stream(seed).numpy()
    rule, past = FoolsGold(kappa), {k: np.zeros(d) for k in range(n)}
    state = rule.init(torch.zeros(d, dtype=torch.float64))
    common = like * g.standard_normal(d)  # makes clients more or less alike
    for r in range(3):
        ids = np.sort(g.permutation(n)[: g.integers(1, n + 1)])
        updates = g.standard_normal((len(ids), d)) + common
        rows = torch.from_numpy(updates)
        outcome = rule(Cohort(torch.from_numpy(ids), rows.new_zeros(d), rows, torch.ones(len(ids)), round=r), state)
        state = outcome.state
        for k, u in zip(ids.tolist(), updates, strict=True):
            past[k] = past[k] + u
        weights = np.array(literal_weights([past[k] for k in ids.tolist()], kappa))
        assert outcome.info["weights"].numpy() == pytest.approx(weights / len(ids), rel=1e-7, abs=1e-9)
        expected = sum(w * u for w, u in zip(weights, updates, strict=True)) / len(ids)
        assert outcome.direction.numpy() == pytest.approx(expected, rel=1e-7, abs=1e-9)
    seen = state["ids"].tolist()
    assert seen == sorted(k for k, h in past.items() if h.any())
    assert state["history"].numpy() == pytest.approx(np.array([past[k] for k in seen]), abs=1e-12)
