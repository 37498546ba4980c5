"""FedTilt against a slow, literal transcription in numpy: its losses, its Algorithm 1 and its centre."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import nn

from equipoise.at import Schedule
from equipoise.core import Method
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.methods.fedtilt import TiltedCentre, fedtilt
from equipoise.objectives import ClassTilted, Tilted
from equipoise.streams import Stream
from tests.small import cohort

tilt = st.floats(-20, 20).filter(lambda t: t == 0 or abs(t) > 1e-3)
seeds = st.integers(0, 10**6)


# ------------------------------------------------------------------------------------------------- footnote 3, losses


def term(losses: list[float], t: float) -> float:
    """Equation 3, and the mean for t = 0."""
    if t == 0:
        return sum(losses) / len(losses)
    return float(np.log(sum(np.exp(t * loss) for loss in losses) / len(losses)) / t)


def two_levels(losses: list[float], labels: list[int], lam: float, tau: float) -> float:
    """Footnote 3, one class after the other."""
    n, groups = len(losses), {c: [x for x, y in zip(losses, labels, strict=True) if y == c] for c in labels}
    risks = {c: term(group, lam) for c, group in groups.items()}
    if tau == 0:
        return sum(len(groups[c]) * risks[c] for c in groups) / n
    return float(np.log(sum(len(groups[c]) * np.exp(tau * risks[c]) for c in groups) / n) / tau)


@given(seeds, tilt, tilt)
def test_objectives_are_their_equations(seed: int, lam: float, tau: float) -> None:
    g = Stream(seed).torch()
    losses = 4 * torch.rand((3, 8), generator=g, dtype=torch.float64)
    labels, mask = torch.randint(4, (3, 8), generator=g), torch.rand((3, 8), generator=g) < 0.6
    mask[:, 0] = True
    two, one = ClassTilted(lam, tau)(losses, labels, mask), Tilted(lam)(losses, labels, mask)
    for k in range(3):
        real, classes = losses[k][mask[k]].tolist(), labels[k][mask[k]].tolist()
        assert float(two[k]) == pytest.approx(two_levels(real, classes, lam, tau), rel=1e-9)
        assert float(one[k]) == pytest.approx(term(real, lam), rel=1e-9)


# ---------------------------------------------------------------------------------------------- Algorithm 1, both sides

SIZES, CLASSES, FEATURES = (9, 4, 13), 3, 2
ROUNDS, EPOCHS, BATCH, LR = 3, 2, 4, 0.05


def problem() -> Federation:
    g = Stream(4).torch()
    x = torch.randn((sum(SIZES), FEATURES), generator=g, dtype=torch.float64)
    y = torch.randint(CLASSES, (sum(SIZES),), generator=g)
    parts = Split.of(list(torch.split(torch.arange(sum(SIZES)), list(SIZES))))
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * len(SIZES))
    return Federation(Dataset("c", x, y, CLASSES), {"train": parts, "validation": nobody, "test": parts})


def start() -> np.ndarray:
    return np.linspace(-0.5, 0.5, CLASSES * FEATURES).reshape(CLASSES, FEATURES)


def simulate(method: Method, fed: Federation, executor: str) -> Simulation:
    model = nn.Linear(FEATURES, CLASSES, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(start()))
    train = Train(rounds=ROUNDS, epochs=EPOCHS, batch=BATCH, lr=LR, loss="squared")
    sim = Simulation(Scenario(fed, model, train), method, Run(dtype="float64", executor=executor))  # type: ignore[arg-type]
    for _ in range(ROUNDS):
        sim.step()
    return sim


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray, lam: float, tau: float) -> np.ndarray:
    """The gradient of R on the samples (x, y): the weight of the class, times that of the sample, times its gradient.

    The loss of a sample is half the squared distance of w x to the unit vector of its class.
    """
    away = [w @ x[i] - np.eye(CLASSES)[y[i]] for i in range(len(y))]
    losses = [0.5 * float(a @ a) for a in away]
    risks = {c: term([losses[i] for i in range(len(y)) if y[i] == c], lam) for c in set(y.tolist())}
    sizes = {c: int((y == c).sum()) for c in risks}
    below = sum(sizes[c] * np.exp(tau * risks[c]) for c in risks)
    total = np.zeros_like(w)
    for i, c in enumerate(y.tolist()):
        class_weight = sizes[c] * np.exp(tau * risks[c]) / below
        inside = sum(np.exp(lam * losses[j]) for j in range(len(y)) if y[j] == c)
        total += class_weight * np.exp(lam * losses[i]) / inside * np.outer(away[i], x[i])
    return total


def literal(fed: Federation, lam: float, tau: float, mu: float, full: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """Algorithm 1 with q = 0 and squared distances, one client and one batch at a time."""
    x, y, w, v = fed.data.x.numpy(), fed.data.y.numpy(), start(), [start() for _ in SIZES]
    for t in range(ROUNDS):
        schedule = Schedule(EPOCHS, None, None if full else BATCH)
        batches = plan_batches(fed.splits["train"], torch.arange(3), schedule, Stream(0).child("batch", t))
        ends = []
        for k in range(len(SIZES)):
            wk = w.copy()
            for s in range(batches.steps[k]):
                b = batches.index[s, 0, k][batches.mask[s, 0, k]].numpy()
                wk = wk - LR * gradient(wk, x[b], y[b], lam, tau)
                v[k] = v[k] - LR * (gradient(v[k], x[b], y[b], lam, tau) + mu * (v[k] - w))
            ends.append(wk)
        w = sum(ends) / len(ends)
    return w, v


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("lam", "tau", "mu"), [(3.0, 2.0, 0.01), (-3.0, 4.0, 0.5), (5.0, -1.0, 0.0), (-2.0, -2.0, 1.0), (0.0, 0.0, 0.1)]
)
def test_fedtilt_is_its_algorithm(lam: float, tau: float, mu: float, full: bool, executor: str) -> None:
    fed = problem()
    sim = simulate(fedtilt(lam, tau, mu, full_batch=full), fed, executor)
    w, v = literal(fed, lam, tau, mu, full)
    assert sim.server.w.numpy() == pytest.approx(w.flatten(), rel=1e-9)
    _, models = sim.personal() or (None, torch.empty(0))
    assert models.numpy() == pytest.approx(np.stack(v).reshape(3, -1), rel=1e-9)


# --------------------------------------------------------------------------------------------- Equation 10, the centre


def centre(updates: np.ndarray, q: float, dist: str, normalise: bool, steps: int, eta3: float) -> np.ndarray:
    """Gradient steps on G over w itself, from the old one; Weiszfeld's for the norm, from each coordinate's median.

    For q > 0, from the mean.
    """
    old = np.linspace(1.0, 2.0, updates.shape[1])
    models = [old - u for u in updates]

    def squares(w: np.ndarray) -> list[float]:
        return [float(((w - m) ** 2).sum()) for m in models]

    w = np.mean(models, axis=0) if q > 0 else old if dist == "squared" else np.median(models, axis=0)
    unit = sorted(d for d in squares(w) if d > 0)[(len(models) - 1) // 2]

    def distances(w: np.ndarray) -> list[float]:
        found = squares(w) if dist == "squared" else [np.sqrt(d + 1e-12 * unit) for d in squares(w)]
        return [d / (unit if dist == "squared" else np.sqrt(unit)) for d in found] if normalise else found

    rate = 2 * eta3
    for _ in range(steps):
        far = distances(w)
        a = [np.exp(q * d) / (1 if dist == "squared" else d) for d in far]
        towards = sum(ak * m for ak, m in zip(a, models, strict=True)) / sum(a)
        trial = w - rate * (w - towards)
        if term(distances(trial), q) > term(far, q):
            rate = rate / 2
        else:
            w = trial
    return old - w


@settings(max_examples=40)
@given(
    seeds,
    st.sampled_from([-5.0, -0.3, 0.2, 1.0]),
    st.sampled_from(["squared", "l2"]),
    st.booleans(),
    st.integers(1, 15),
    st.sampled_from([0.1, 0.5, 0.8]),
)
def test_the_centre_is_its_equation(seed: int, q: float, dist: Any, norm: bool, steps: int, eta3: float) -> None:
    seen = cohort(5, 6, seed=seed)
    found = TiltedCentre(q, dist, norm, steps, eta3)(seen, {}).direction.numpy()
    assert found == pytest.approx(centre(seen.updates.numpy(), q, dist, norm, steps, eta3), rel=1e-9, abs=1e-9)


@given(seeds)
def test_one_gradient_step_is_the_gradient_of_the_objective(seed: int) -> None:
    """eta3 is the paper's: w <- w - eta3 grad G, with the gradient taken by autograd."""
    seen, q, eta3 = cohort(4, 6, seed=seed), -0.05, 0.01
    w = seen.start.clone().requires_grad_()
    models = seen.start - seen.updates
    g = torch.log(torch.exp(q * (models - w).square().sum(1)).mean()) / q
    want = eta3 * torch.autograd.grad(g, w)[0]
    assert torch.allclose(TiltedCentre(q, steps=1, eta3=eta3)(seen, {}).direction, want, rtol=1e-9, atol=1e-12)


@settings(max_examples=10)
@given(seeds, st.sampled_from([0.02, 0.5, 5.0]), st.sampled_from(["squared", "l2"]))
def test_for_positive_tilts_the_centre_is_the_minimum(seed: int, q: float, dist: Any) -> None:
    seen = cohort(4, 3, seed=seed)
    u = seen.updates.numpy()

    def g(p: np.ndarray) -> float:
        d = ((u - p) ** 2).sum(1)
        d = d if dist == "squared" else np.sqrt(d)
        return float((np.log(np.exp(q * (d - d.max())).mean()) + q * d.max()) / q)

    best = min(optimize.minimize(g, u.mean(0), method=m, tol=1e-10).fun for m in ("BFGS", "Nelder-Mead"))
    outcome = TiltedCentre(q, dist, steps=400)(seen, {})
    assert g(outcome.direction.numpy()) <= best + 1e-5 * abs(best)
    assert outcome.info["objective"] == pytest.approx(g(outcome.direction.numpy()), rel=1e-5)


def test_no_tilt_and_norms_are_the_geometric_median() -> None:
    u = cohort(7, 3, seed=2).updates
    found = TiltedCentre(dist="l2", steps=300)(cohort(7, 3, seed=2), {}).direction
    best = optimize.minimize(lambda p: np.linalg.norm(u.numpy() - p, axis=1).sum(), u.numpy().mean(0), tol=1e-12)
    assert found.numpy() == pytest.approx(best.x, abs=1e-5)
