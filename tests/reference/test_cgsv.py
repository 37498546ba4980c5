"""CGSV against a slow, literal transcription: dicts and loops in numpy, one participant at a time."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from equipoise.methods.cgsv import CGSV, cgsv
from tests.reference.test_rffl import (
    SIZES,
    START,
    Numbers,
    Vectors,
    cos,
    draw,
    largest_share,
    problem,
    simulated,
    trained,
)


class Literal:
    def __init__(self, rule: CGSV) -> None:
        self.rule, self.r = rule, {}  # type: CGSV, Numbers

    def round(self, updates: Vectors, sizes: Numbers, parts: list[slice]) -> tuple[np.ndarray, Vectors]:
        rule, r = self.rule, {**dict.fromkeys(updates, 0.0), **self.r}
        u_k = {k: rule.gamma * x / math.sqrt(x @ x) if x.any() else x for k, x in updates.items()}
        here = {k: r[k] for k in updates}
        weight = here if sum(here.values()) > 0 else {k: float(sizes[k]) for k in updates}
        total = sum(weight.values())
        u = sum(weight[k] / total * u_k[k] for k in updates)
        for k in updates:
            r[k] = rule.alpha * r[k] + (1 - rule.alpha) * cos(u, u_k[k])
        r = {k: max(v, 1e-3) for k, v in r.items()}
        self.r = {k: v / sum(r.values()) for k, v in r.items()}
        top = max(math.tanh(rule.beta * v) for v in self.r.values())
        tensors = parts if rule.largest == "tensor" else [slice(0, len(u))]
        return u, {k: -largest_share(u, math.tanh(rule.beta * self.r[k]) / top, tensors) for k in updates}


OPTIONS = st.builds(
    CGSV,
    alpha=st.sampled_from([0.0, 0.8, 0.95]),
    gamma=st.sampled_from([0.5, 2.0]),
    beta=st.sampled_from([0.5, 2.0, 30.0, 1e7]),
    largest=st.sampled_from(["tensor", "model"]),
)


@settings(max_examples=50)
@given(rule=OPTIONS, seed=st.integers(0, 10**6))
def test_every_round_is_the_definition(rule: CGSV, seed: int) -> None:
    literal = Literal(rule)
    state = rule.init(torch.zeros(24, dtype=torch.float64))
    for t in range(5):
        cohort = draw(seed, t, [2, 3, 7, 11, 20, 21, 40])
        parts = [slice(s.start, s.stop) for s in cohort.layout.slots]
        updates = {k: cohort.updates[i].numpy() for i, k in enumerate(cohort.ids.tolist())}
        sizes = dict(zip(cohort.ids.tolist(), cohort.sizes.tolist(), strict=True))
        u, downloads = literal.round(updates, sizes, parts)
        outcome = rule(cohort, state)
        state = outcome.state
        assert_allclose(outcome.direction, u, rtol=1e-9, atol=1e-12)
        assert outcome.downloads is not None
        for i, k in enumerate(cohort.ids.tolist()):
            assert_allclose(outcome.downloads[i], downloads[k], rtol=1e-9, atol=1e-12)
        assert outcome.exclude == ()
        assert state["ids"].tolist() == sorted(literal.r)
        assert_allclose(state["reputation"], [literal.r[k] for k in sorted(literal.r)], rtol=1e-9, atol=1e-12)


def test_a_whole_run_with_training_is_the_definition() -> None:
    fed = problem()
    sim, records = simulated(cgsv(), fed)
    literal, w, own = Literal(CGSV()), START.copy(), {k: START.copy() for k in range(len(SIZES))}
    for t in range(len(records)):
        updates = {k: own[k] - trained(fed, k, own[k], t) for k in own}
        u, downloads = literal.round(updates, dict(enumerate(SIZES)), [slice(0, 5)])
        own = {k: own[k] + downloads[k] for k in own}
        w = w - u
    ids, models = sim.personal() or (None, None)
    assert ids is not None and models is not None
    assert_allclose(sim.server.w, w, rtol=1e-9)
    for k in own:
        assert_allclose(models[k], own[k], rtol=1e-9)


def test_with_quota_one_a_participant_ends_at_its_start_minus_the_aggregate() -> None:
    """Whoever has the top reputation follows the server exactly; with a huge beta everyone does."""
    fed = problem()
    sim, records = simulated(cgsv(beta=1e7), fed)
    ids, models = sim.personal() or (None, None)
    assert ids is not None and models is not None
    assert all(float(q) == 1.0 for r in records for q in r.info["quota"])
    for k in ids.tolist():
        assert_allclose(models[k], sim.server.w.numpy(), rtol=1e-9)
