"""EAGLE against a slow, literal transcription in numpy: linear regression, written out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Admission, Run, Train
from equipoise.methods.eagle import eagle
from equipoise.streams import Stream
from tests.small import cohort

ROUNDS, EPOCHS, LR, DECAY = 4, 2, 0.05, 0.9
TOLERANCE, WINDOW, CAP = 0.02, 4, 18
START = np.array([0.3, -0.2, 0.1])
SCALES = ["norm", "sqrt_k", "none"]


def problem(seed: int, k: int) -> Federation:
    """k clients with 5, 6, ... training and 4 validation samples, each with a linear model of its own."""
    sizes = [5 + i + 4 for i in range(k)]
    g = Stream(seed).torch()
    x = torch.randn((sum(sizes), 3), generator=g, dtype=torch.float64)
    own = torch.randn((k, 3), generator=g, dtype=torch.float64)
    parts = torch.split(torch.arange(sum(sizes)), sizes)
    y = torch.cat([x[p] @ own[i] for i, p in enumerate(parts)])
    y = (y + 0.3 * torch.randn(len(y), generator=g, dtype=torch.float64))[:, None]
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * k)
    splits = {"train": Split.of([p[4:] for p in parts]), "validation": Split.of([p[:4] for p in parts]), "test": nobody}
    return Federation(Dataset("r", x, y, 0), splits)


def simulate(fed: Federation, lam: float, scale: str) -> tuple[np.ndarray, list[list[float]]]:
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(START)[None])
    train = Train(rounds=ROUNDS, epochs=EPOCHS, batch=0, lr=LR, lr_decay=DECAY)
    method = eagle(lam, scale=scale, tolerance=TOLERANCE, window=WINDOW, cap=CAP)  # type: ignore[arg-type]
    sim = Simulation(Scenario(fed, model, train, admission=Admission(guard="off")), method, Run(dtype="float64"))
    sent = []
    for _ in range(ROUNDS):
        sent.append(sim.server.plan().messages["weight"].tolist())
        sim.step()
    return sim.server.w.numpy(), sent


def samples(fed: Federation, split: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    at = fed.splits[split].of_client(k)
    return fed.data.x[at].numpy(), fed.data.y[at].numpy()[:, 0]


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    return sum(0.5 * (x[i] @ w - y[i]) ** 2 for i in range(len(y))) / len(y)


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return sum((x[i] @ w - y[i]) * x[i] for i in range(len(y))) / len(y)


def alone(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Appendix B.1: SGD until the training loss flattens or the epochs are used up; the last iterate."""
    w, epoch, last = START.copy(), 0, loss(START, x, y)
    while epoch < CAP:
        for _ in range(min(WINDOW, CAP - epoch)):
            w = w - LR * gradient(w, x, y)
            epoch += 1
        now = loss(w, x, y)
        if not last - now > TOLERANCE * last:
            break
        last = now
    return w


def scaled(weights: list[float], scale: str) -> list[float]:
    norm = sum(a * a for a in weights) ** 0.5
    if scale == "none":
        return weights
    return [a / norm * (len(weights) ** 0.5 if scale == "sqrt_k" else 1.0) for a in weights]


def literal(fed: Federation, k: int, lam: float, scale: str) -> tuple[np.ndarray, list[list[float]]]:
    """Algorithm 1, one client and one sample at a time."""
    theta, sent = START.copy(), []
    optima = [loss(alone(*samples(fed, "train", i)), *samples(fed, "validation", i)) for i in range(k)]
    weights = scaled([1.0] * k, scale)
    for t in range(ROUNDS):
        sent.append(weights)
        gaps, ends = [], []
        for i in range(k):
            gaps.append(loss(theta, *samples(fed, "validation", i)) - optima[i])
            own = theta.copy()
            for _ in range(EPOCHS):
                own = own - LR * DECAY**t * weights[i] * gradient(own, *samples(fed, "train", i))
            ends.append(own)
        new = []
        for i in range(k):
            total = sum(gaps[i] - gaps[j] for j in range(k) if j != i)
            new.append(1.0 + (4.0 * lam / (k - 1) * total if k > 1 else 0.0))
        weights = scaled(new, scale)
        theta = sum(ends) / k
    return theta, sent


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 4), lam=st.floats(0.0, 3.0))
def test_eagle_is_its_algorithm(scale: str, seed: int, k: int, lam: float) -> None:
    fed = problem(seed, k)
    (found, sent), (expected, weights) = simulate(fed, lam, scale), literal(fed, k, lam, scale)
    assert np.allclose(sent, weights, rtol=1e-9, atol=1e-12)
    assert np.allclose(found, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), k=st.integers(2, 8), lam=st.floats(0.0, 10.0))
def test_weights_give_the_gradient_of_the_objective(seed: int, k: int, lam: float) -> None:
    """grad F = (1/K) sum a_k grad L_k, F = mean L + lam/(K(K-1)) sum_{k != j} (r_k - r_j)^2 = mean L + 2 lam V(r)."""
    g = Stream(seed).torch()
    centre, curve = torch.randn((k, 5), generator=g).double(), torch.rand(k, generator=g).double()
    optimum = torch.randn(k, generator=g).double()
    theta = torch.randn(5, generator=g).double().requires_grad_()
    losses = curve * (theta - centre).square().sum(1) + (theta * centre).sum(1).sin()
    gaps = losses - optimum
    pairs = (gaps[:, None] - gaps[None, :]).square().sum()
    objective = losses.mean() + lam / (k * (k - 1)) * pairs
    assert torch.isclose(objective, losses.mean() + 2 * lam * gaps.var(correction=1), rtol=1e-12)
    (whole,) = torch.autograd.grad(objective, theta, retain_graph=True)
    each = torch.stack([torch.autograd.grad(losses[i], theta, retain_graph=True)[0] for i in range(k)])

    rule = eagle(lam, scale="none").server
    seen = replace(cohort(k=k), signals={"gap": gaps.detach()}, n_clients=k)
    weights = rule.plan(seen.ids, rule(seen, rule.init(seen.start)).state)["weight"]
    assert torch.allclose(weights @ each / k, whole, rtol=1e-9, atol=1e-9 * float(whole.abs().max()))
