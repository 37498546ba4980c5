"""SKL against a slow, literal transcription in numpy on softmax regression, gradients written out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.at import Schedule
from equipoise.core import Method
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.errors import EquipoiseError
from equipoise.methods.finetuning import finetuning
from equipoise.methods.skl import skl
from equipoise.streams import Stream
from tests.reference._regression import problem as regression
from tests.reference._regression import simulate as simulate_regression

Vector = np.ndarray
SIZES, C, D = (7, 4, 10), 3, 2
ROUNDS, BATCH, LR, TUNING = 2, 4, 0.2, 2


def problem(seed: int) -> Federation:
    g, n = Stream(seed).torch(), sum(SIZES)
    x, y = torch.randn((n, D), generator=g, dtype=torch.float64), torch.randint(C, (n,), generator=g)
    parts = Split.of(list(torch.split(torch.arange(n), list(SIZES))))
    return Federation(Dataset("c", x, y, C), dict.fromkeys(("train", "validation", "test"), parts))


def simulate(method: Method, fed: Federation) -> tuple[Vector, Vector]:
    model = nn.Linear(D, C, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.arange(C * D, dtype=torch.float64).view(C, D) / 10)
    sim = Simulation(Scenario(fed, model, Train(rounds=ROUNDS, batch=BATCH, lr=LR)), method, Run(dtype="float64"))
    for _ in range(ROUNDS):
        sim.step()
    sim.finish()
    found = sim.personal()
    assert found is not None
    return sim.server.w.numpy().reshape(C, D), found[1].numpy().reshape(-1, C, D)


def softmax(v: Vector, x: Vector) -> Vector:
    e = np.exp(v @ x - (v @ x).max())
    return np.asarray(e / e.sum())


def pull(v: Vector, w: Vector, x: Vector) -> Vector:
    """d/dv of sum_c (p_c - q_c)(log p_c - log q_c), by the chain rule through p = softmax(v x)."""
    p, q = softmax(v, x), softmax(w, x)
    slope = np.log(p) - np.log(q) + 1 - q / p  # d D / d p_c
    logits = np.zeros(C)
    for i in range(C):
        for c in range(C):
            logits[i] += slope[c] * p[c] * ((1.0 if c == i else 0.0) - p[i])
    return np.outer(logits, x)


def literal(fed: Federation, lam: float) -> tuple[Vector, Vector]:
    x, y = fed.data.x.numpy(), fed.data.y.numpy()

    def steps(k: int, round: int, epochs: int) -> list[list[int]]:
        schedule, stream = Schedule(epochs, None, BATCH), Stream(0).child("batch", round)
        plan = plan_batches(fed.splits["train"], torch.arange(len(SIZES)), schedule, stream)
        return [plan.index[s, 0, k][plan.mask[s, 0, k]].tolist() for s in range(plan.steps[k])]

    def gradient(v: Vector, b: list[int]) -> Vector:
        return np.asarray(np.mean([np.outer(softmax(v, x[i]) - np.eye(C)[y[i]], x[i]) for i in b], axis=0))

    w = np.arange(C * D).reshape(C, D) / 10
    for t in range(ROUNDS):
        ends = []
        for k in range(len(SIZES)):
            wk = w.copy()
            for b in steps(k, t, 1):
                wk = wk - LR * gradient(wk, b)
            ends.append(SIZES[k] * wk)
        w = np.sum(ends, axis=0) / sum(SIZES)
    own = []
    for k in range(len(SIZES)):
        v = w.copy()
        for b in steps(k, ROUNDS, TUNING):
            v = v - LR * (gradient(v, b) + lam * np.mean([pull(v, w, x[i]) for i in b], axis=0))
        own.append(v)
    return w, np.stack(own)


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), lam=st.floats(0, 5))
def test_skl_is_its_equation(seed: int, lam: float) -> None:
    fed = problem(seed)
    w, own = literal(fed, lam)
    found, personal = simulate(skl(lam, epochs=TUNING), fed)
    assert found == pytest.approx(w, rel=1e-9)
    assert personal == pytest.approx(own, rel=1e-9)


def test_without_a_pull_it_is_plain_finetuning_to_the_bit() -> None:
    assert np.array_equal(simulate(skl(0.0, epochs=3), problem(1))[1], simulate(finetuning(3), problem(1))[1])


def test_a_stronger_pull_keeps_answers_closer_to_the_global_models() -> None:
    fed, away = problem(2), []
    for lam in (0.0, 0.5, 2.0):
        w, own = simulate(skl(lam, epochs=20), fed)
        total = 0.0
        for k in range(len(SIZES)):
            for i in fed.splits["train"].of_client(k).tolist():
                x = fed.data.x[i].numpy()
                total += float(np.abs(softmax(own[k], x) - softmax(w, x)).sum())
        away.append(total)
    assert away[0] > 1.1 * away[1] > 1.2 * away[2]


def test_a_model_with_one_output_is_refused_in_words() -> None:
    with pytest.raises(EquipoiseError, match="skl: the model has 1 output"):
        simulate_regression(skl(epochs=1), regression(1))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="skl: lam is -1"):
        skl(-1.0)
    with pytest.raises(EquipoiseError, match="skl: epochs is 0"):
        skl(epochs=0)
