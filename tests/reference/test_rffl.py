"""RFFL against a slow, literal transcription of its algorithm: dicts and loops in numpy, one participant at a time."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import nn

from equipoise.at import Schedule
from equipoise.core import Cohort
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.methods.rffl import RFFL, rffl
from equipoise.streams import Stream
from tests.small import cohort as random_cohort

Vectors = dict[int, np.ndarray]
Numbers = dict[int, float]


def cos(a: np.ndarray, b: np.ndarray) -> float:
    if not a.any() or not b.any():
        return 0.0
    return float(a @ b / (math.sqrt(a @ a) * math.sqrt(b @ b)))


def largest_share(u: np.ndarray, share: float, parts: list[slice]) -> np.ndarray:
    out = np.zeros_like(u)
    for part in parts:
        places = sorted(range(part.start, part.stop), key=lambda j: (-abs(u[j]), j))
        for j in places[: math.ceil(share * len(places) - 1e-9)]:
            out[j] = u[j]
    return out


class Literal:
    """Algorithm 1 of Xu and Lyu with the readings of the module; `r` holds the reputations of R."""

    def __init__(self, rule: RFFL) -> None:
        self.rule, self.r = rule, {}  # type: RFFL, Numbers

    def round(self, t: int, updates: Vectors, sizes: Numbers, parts: list[slice]) -> tuple[np.ndarray, Vectors, list]:
        rule, r = self.rule, {**dict.fromkeys(updates, 0.0), **self.r}
        u_k = {}
        for k, x in updates.items():
            norm = math.sqrt(x @ x)
            u_k[k] = x * rule.clip / norm if rule.clip is not None and norm > rule.clip else x
        here = {k: r[k] for k in updates}
        weight = here if sum(here.values()) > 0 else {k: float(sizes[k]) for k in updates}
        total = sum(weight.values())
        p = {k: v / total for k, v in weight.items()}
        u = sum(p[k] * u_k[k] for k in updates)
        new = dict(r)
        for k in updates:
            new[k] = rule.alpha * r[k] + (1 - rule.alpha) * cos(u, u_k[k])
        stay = not u.any() or all(v <= 0 for v in new.values())
        if stay:
            new = dict(r)
        elif sum(new.values()) <= 0:
            new = {k: max(v, 0.0) for k, v in new.items()}
        total = 1.0 if stay else sum(new.values())
        new = {k: v / total for k, v in new.items()}
        removed = [] if stay or t < rule.grace else [k for k in updates if new[k] < rule.threshold / len(new)]
        new = {k: max(v, 0.0) for k, v in new.items() if k not in removed}
        total = sum(new.values())
        self.r = {k: v / total if total else v for k, v in new.items()}
        return u, self.downloads(updates, u, u_k, p, parts), removed

    def downloads(self, updates: Vectors, u: np.ndarray, u_k: Vectors, p: Numbers, parts: list[slice]) -> Vectors:
        rule, top, out = self.rule, max(self.r.values()), {}
        for k in updates:
            if k not in self.r:
                out[k] = np.zeros_like(u)
                continue
            quota = self.r[k] / top if top > 0 else 0.0
            if rule.beta is not None:
                quota = math.tanh(rule.beta * quota) / math.tanh(rule.beta)
            gift = largest_share(u, quota, parts if rule.largest == "tensor" else [slice(0, len(u))])
            out[k] = -(gift - p[k] * u_k[k]) if rule.subtract_own else -gift
        return out


def draw(seed: int, t: int, free: list[int]) -> Cohort:
    """A round's cohort: participants that agree more or less, some not at all, a few with nothing to say."""
    g = np.random.default_rng([seed, t])
    ids = sorted(g.choice(free, size=g.integers(1, len(free) + 1), replace=False).tolist())
    base = random_cohort(len(ids), 24, seed=seed + t, ids=ids)
    common = np.random.default_rng(seed).normal(size=24)
    kind = np.random.default_rng(seed + 1).integers(0, 5, size=50)[ids]
    slope = np.array([1.0, 1.0, 0.3, -1.0, 0.0])[kind][:, None]
    noise = np.array([0.3, 1.0, 1.0, 0.3, 0.0])[kind][:, None]
    rows = slope * common + noise * g.normal(size=(len(ids), 24))
    return replace(base, updates=torch.from_numpy(rows * g.uniform(0.1, 5, size=(len(ids), 1))), round=t)


OPTIONS = st.builds(
    RFFL,
    alpha=st.sampled_from([0.0, 0.5, 0.8, 0.95]),
    threshold=st.sampled_from([0.0, 1 / 6, 1 / 3, 0.9]),
    clip=st.sampled_from([None, 0.5, 3.0]),
    grace=st.sampled_from([0, 0, 2]),
    largest=st.sampled_from(["tensor", "model"]),
    subtract_own=st.booleans(),
    beta=st.sampled_from([None, 0.5, 2.0]),
)


@settings(max_examples=80)
@given(rule=OPTIONS, seed=st.integers(0, 10**6))
def test_every_round_is_the_algorithm(rule: RFFL, seed: int) -> None:
    literal, free = Literal(rule), [2, 3, 7, 11, 20, 21, 40]
    state = rule.init(torch.zeros(24, dtype=torch.float64))
    for t in range(5):
        cohort = draw(seed, t, free)
        parts = [slice(s.start, s.stop) for s in cohort.layout.slots]
        updates = {k: cohort.updates[i].numpy() for i, k in enumerate(cohort.ids.tolist())}
        sizes = dict(zip(cohort.ids.tolist(), cohort.sizes.tolist(), strict=True))
        u, downloads, removed = literal.round(t, updates, sizes, parts)
        outcome = rule(cohort, state)
        state = outcome.state
        assert_allclose(outcome.direction, u, rtol=1e-9, atol=1e-12)
        assert outcome.downloads is not None
        for i, k in enumerate(cohort.ids.tolist()):
            assert_allclose(outcome.downloads[i], downloads[k], rtol=1e-9, atol=1e-12)
            assert_allclose(outcome.info["reputation"][i], literal.r.get(k, 0.0), rtol=1e-9, atol=1e-12)
        assert list(outcome.exclude) == removed == [d["client"] for d in outcome.info["removed"]]
        assert state["ids"].tolist() == sorted(literal.r)
        assert_allclose(state["reputation"], [literal.r[k] for k in sorted(literal.r)], rtol=1e-9, atol=1e-12)
        free = [k for k in free if k not in removed]


SIZES, ROUNDS, EPOCHS, BATCH, LR, DECAY = (9, 4, 13, 6), 5, 2, 4, 0.05, 0.9
START = np.array([0.3, -0.2, 0.1, 0.4, 0.0])


def problem() -> Federation:
    """Linear regression; the last participant's targets are the opposite of everybody else's."""
    g = Stream(4).torch()
    x = torch.randn((sum(SIZES), 5), generator=g, dtype=torch.float64)
    truth = torch.tensor([[1.0], [-2.0], [0.5], [1.5], [-1.0]], dtype=torch.float64)
    y = x @ truth + 0.1 * torch.randn((sum(SIZES), 1), generator=g, dtype=torch.float64)
    y[-SIZES[-1] :] *= -1
    parts = list(torch.split(torch.arange(sum(SIZES)), list(SIZES)))
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * len(SIZES))
    return Federation(Dataset("r", x, y, 0), {"train": Split.of(parts), "validation": nobody, "test": Split.of(parts)})


def simulated(method: object, fed: Federation) -> tuple[Simulation, list]:
    model = nn.Linear(5, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(START)[None])
    train = Train(rounds=ROUNDS, epochs=EPOCHS, batch=BATCH, lr=LR, lr_decay=DECAY)
    sim = Simulation(Scenario(fed, model, train), method, Run(dtype="float64"))  # type: ignore[arg-type]
    return sim, [sim.step() for _ in range(ROUNDS)]


def trained(fed: Federation, k: int, w: np.ndarray, t: int) -> np.ndarray:
    """Participant k's model after a round of SGD from w, one sample at a time."""
    x, y, w = fed.data.x.numpy(), fed.data.y.numpy()[:, 0], w.copy()
    batches = plan_batches(
        fed.splits["train"], torch.arange(len(SIZES)), Schedule(EPOCHS, None, BATCH), Stream(0).child("batch", t)
    )
    for s in range(batches.steps[k]):
        samples = batches.index[s, 0, k][batches.mask[s, 0, k]].tolist()
        w = w - LR * DECAY**t * sum((x[i] @ w - y[i]) * x[i] for i in samples) / len(samples)
    return w


@pytest.mark.parametrize("options", [{}, {"clip": 0.05, "subtract_own": False}, {"beta": 2.0, "grace": 2}])
def test_a_whole_run_with_training_is_the_algorithm(options: dict) -> None:
    fed = problem()
    sim, records = simulated(rffl(**options), fed)
    literal, w = Literal(RFFL(**options)), START.copy()
    own = {k: START.copy() for k in range(len(SIZES))}
    taking_part, removed_ever = set(own), []
    for t in range(ROUNDS):
        end = {k: trained(fed, k, own[k], t) for k in sorted(taking_part)}
        updates = {k: own[k] - end[k] for k in end}
        u, downloads, removed = literal.round(t, updates, dict(enumerate(SIZES)), [slice(0, 5)])
        for k in end:
            own[k] = end[k] + downloads[k]
        w, taking_part = w - u, taking_part - set(removed)
        removed_ever += [(t, k) for k in removed]
    assert removed_ever and [k for _, k in removed_ever] == [3]
    assert [(r.round, d["client"]) for r in records for d in r.info["removed"]] == removed_ever
    ids, models = sim.personal() or (None, None)
    assert ids is not None and models is not None
    assert_allclose(sim.server.w, w, rtol=1e-9)
    for k in own:
        assert_allclose(models[k], own[k], rtol=1e-9)
