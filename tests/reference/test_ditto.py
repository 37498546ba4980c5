"""Ditto against a slow, literal transcription in numpy, every option; and the closed forms of its section 3.3."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.at import Schedule
from equipoise.core import Method, WeightedMean
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.data.synthetic import ditto_linear, ditto_linear_truth, ditto_point, ditto_point_truth
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.methods.ditto import ditto, optimal_lam
from equipoise.methods.fedprox import fedprox
from equipoise.streams import Stream

Vector = np.ndarray
SIZES, VALIDATION = (9, 4, 13, 6), (5, 3, 4, 0)  # the second and the last client cannot choose
START = np.array([0.3, -0.2, 0.1])
ROUNDS, EPOCHS, BATCH, LR, DECAY, TUNING = 3, 2, 4, 0.05, 0.9, 2


def problem(seed: int) -> Federation:
    g, n = Stream(seed).torch(), sum(SIZES) + sum(VALIDATION)
    x = torch.randn((n, 3), generator=g, dtype=torch.float64)
    y = torch.randn((n, 1), generator=g, dtype=torch.float64)
    parts = torch.split(torch.arange(n), [*SIZES, *VALIDATION])
    train, validation = Split.of(list(parts[:4])), Split.of(list(parts[4:]))
    return Federation(Dataset("r", x, y, 0), {"train": train, "validation": validation, "test": train})


def engine(method: Method, fed: Federation) -> tuple[Vector, Vector]:
    """The global model and the personal ones."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(START)[None])
    train = Train(rounds=ROUNDS, epochs=EPOCHS, batch=BATCH, lr=LR, lr_decay=DECAY)
    sim = Simulation(Scenario(fed, model, train), method, Run(dtype="float64", device="cpu"))
    for _ in range(ROUNDS):
        sim.step()
    sim.finish()
    found = sim.personal()
    assert found is not None
    return sim.server.w.numpy(), found[1].numpy()


class Literal:
    """Algorithm 1, one sample, one batch, one candidate, one client at a time."""

    def __init__(self, fed: Federation, lam: float, mu: float, choose: str, strong: bool, uniform: bool) -> None:
        self.fed, self.x, self.y = fed, fed.data.x.numpy(), fed.data.y.numpy()[:, 0]
        self.mu, self.choose = mu, choose
        self.p = np.ones(4) if uniform else np.array(SIZES, dtype=float)
        self.lams = []
        for k in range(4):
            if choose == "fixed":
                self.lams.append([lam])
            elif VALIDATION[k] < 4:
                self.lams.append([0.1 if strong else lam])
            else:
                self.lams.append([0.05, 0.1, 0.2] if strong else [0.1, 1.0, 2.0])

    def gradient(self, v: Vector, samples: list[int]) -> Vector:
        total = np.zeros(3)
        for i in samples:
            total += (self.x[i] @ v - self.y[i]) * self.x[i]
        return total / len(samples)

    def validation_loss(self, v: Vector, k: int) -> float:
        losses = [0.5 * (self.x[i] @ v - self.y[i]) ** 2 for i in self.fed.splits["validation"].of_client(k).tolist()]
        return float(np.mean(losses)) if losses else 0.0

    def batches(self, k: int, round: int, epochs: int) -> list[list[int]]:
        plan = plan_batches(
            self.fed.splits["train"], torch.arange(4), Schedule(epochs, None, BATCH), Stream(0).child("batch", round)
        )
        return [plan.index[s, 0, k][plan.mask[s, 0, k]].tolist() for s in range(plan.steps[k])]

    def personal_round(self, k: int, models: list[Vector], w: Vector, batches: list[list[int]], lr: float) -> None:
        """`models` holds a model for each candidate ("validation"), or one."""
        for b in batches:
            if self.choose == "greedy":
                v = models[0]
                trials = [v - lr * (self.gradient(v, b) + lam * (v - w)) for lam in self.lams[k]]
                models[0] = min(trials, key=lambda t: self.validation_loss(t, k))
            else:
                for c, lam in enumerate(self.lams[k]):
                    v = models[c]
                    models[c] = v - lr * (self.gradient(v, b) + lam * (v - w))

    def fresh(self, k: int, w: Vector) -> list[Vector]:
        return [w.copy() for _ in (self.lams[k] if self.choose == "validation" else [0])]

    def run(self, solver: str) -> tuple[Vector, Vector]:
        w, v = START.copy(), [self.fresh(k, START) for k in range(4)]
        for t in range(ROUNDS):
            lr, ends = LR * DECAY**t, []
            for k in range(4):
                batches, wk = self.batches(k, t, EPOCHS), w.copy()
                for b in batches:
                    wk = wk - lr * (self.gradient(wk, b) + self.mu * (wk - w))
                ends.append(wk)
                if solver == "joint":
                    self.personal_round(k, v[k], w, batches, lr)
            w = sum(self.p[k] * ends[k] for k in range(4)) / self.p.sum()
        if solver == "finetune":
            v = [self.fresh(k, w) for k in range(4)]
            for k in range(4):
                self.personal_round(k, v[k], w, self.batches(k, ROUNDS, TUNING), LR * DECAY**ROUNDS)
        return w, np.array([min(v[k], key=lambda m: self.validation_loss(m, k)) for k in range(4)])


@pytest.mark.parametrize("solver", ["joint", "finetune"])
@pytest.mark.parametrize(
    ("choose", "strong"), [("fixed", False), *((c, s) for c in ("validation", "greedy") for s in (False, True))]
)
@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), lam=st.floats(0, 5), mu=st.sampled_from([0.0, 0.3]), uniform=st.booleans())
def test_ditto_is_its_algorithm(
    solver: str, choose: str, strong: bool, seed: int, lam: float, mu: float, uniform: bool
) -> None:
    fed = problem(seed)
    options = {"solver": solver, "choose": choose, "strong": strong, "finetune_epochs": TUNING}
    server, base = WeightedMean("uniform" if uniform else "size"), fedprox(mu) if mu else None
    w, v = engine(ditto(lam, base=base, server=server, **options), fed)  # type: ignore[arg-type]
    literal_w, literal_v = Literal(fed, lam, mu, choose, strong, uniform).run(solver)
    assert w == pytest.approx(literal_w, rel=1e-9, abs=1e-12)
    assert v == pytest.approx(literal_v, rel=1e-9, abs=1e-12)


# --------------------------------------------------------------------- point estimation and linear regression, exactly

CASES = [(0, 1.0), (5, 3.0)]  # adversaries among the K clients, and tau_a
K, N, SIGMA, TAU = 20, 5, 2.0, 0.8


@pytest.mark.parametrize(("bad", "tau_a"), CASES)
def test_the_optimal_lam_minimises_the_error_and_its_deviation(bad: int, tau_a: float) -> None:
    """Theorem 8, on the closed form: clients are drawn many times, and every other lam is worse in both."""
    rng, draws = Stream(5).child(bad).numpy(), 40_000
    truth = rng.normal(0, np.where(np.arange(K) < K - bad, TAU, tau_a), (draws, K))
    x_bar = truth + rng.normal(0, SIGMA / N**0.5, (draws, K))
    best = optimal_lam(SIGMA, N, TAU, K, bad, tau_a)
    benign = slice(0, K - bad)

    def measured(lam: float) -> tuple[float, float]:
        v = (x_bar + lam * x_bar.mean(1, keepdims=True)) / (1 + lam)
        squared = np.square(v - truth)[:, benign]
        return float(squared.mean()), float(squared.std())

    at_best = measured(best)
    for factor in (0.0, 0.5, 0.8, 1.25, 2.0, 1e6):
        other = measured(factor * best)
        assert other[0] > at_best[0] and other[1] > at_best[1]


def test_without_adversaries_the_optimal_lam_is_noise_over_spread() -> None:
    assert optimal_lam(SIGMA, N, TAU) == pytest.approx(SIGMA**2 / (N * TAU**2), rel=1e-12)
    assert optimal_lam(SIGMA, N, TAU, K) == pytest.approx(optimal_lam(SIGMA, N, TAU), rel=1e-12)
    assert optimal_lam(SIGMA, N, TAU, K, 5, 3.0) == pytest.approx(0.8 * K / (K * 0.64 + 5 / 19 * (9 - 0.64)), rel=1e-12)


def converged(fed: Federation, lam: float, curvature: float) -> tuple[Vector, Vector]:
    """Ditto by the engine with full batches, until nothing moves: an error of v shrinks by 0.6 in every step."""
    inputs, outputs = fed.data.x.shape[1], fed.data.y.shape[1]
    model = nn.Linear(inputs, outputs, bias=False).double()
    train = Train(rounds=10, steps=10, batch=0, lr=1.6 / (curvature + lam))
    sim = Simulation(Scenario(fed, model, train), ditto(lam), Run(dtype="float64", device="cpu"))
    for _ in range(train.rounds):
        sim.step()
    found = sim.personal()
    assert found is not None
    return sim.server.w.numpy(), found[1].numpy()


def least_squares(fed: Federation) -> Vector:
    """[K, p]: what each client would estimate alone; with inputs of 1, the mean of its points."""
    x, y = fed.data.x.double().numpy(), fed.data.y.double().numpy()
    rows = [fed.splits["train"].of_client(k).numpy() for k in range(fed.n_clients)]
    return np.array([np.linalg.lstsq(x[r], y[r], rcond=None)[0].ravel() for r in rows])


def point(bad: int, tau_a: float) -> tuple[Federation, Vector, float]:
    options = {"tau": TAU, "malicious": bad, "tau_a": tau_a, "dim": 60}
    return ditto_point(K, N, sigma=SIGMA, **options), ditto_point_truth(K, **options).numpy(), 1.0  # type: ignore[arg-type]


def regression(bad: int, tau_a: float) -> tuple[Federation, Vector, float]:
    options = {"tau": TAU, "malicious": bad, "tau_a": tau_a, "features": 60}
    fed = ditto_linear(K, 60, b=0.5, sigma=SIGMA * (60 / N) ** 0.5, **options)  # type: ignore[arg-type]
    return fed, ditto_linear_truth(K, **options).numpy(), 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", [point, regression])
@pytest.mark.parametrize(("bad", "tau_a"), CASES)
def test_the_engine_reaches_the_closed_form_and_the_optimal_lam_is_best_there(
    problem: Callable[[int, float], tuple[Federation, Vector, float]], bad: int, tau_a: float
) -> None:
    """v_k = (b v_ls + lam w) / (b + lam), w the mean; 60 dimensions are 60 draws of the one-dimensional problem."""
    fed, truth, b = problem(bad, tau_a)
    alone, best, found = least_squares(fed), optimal_lam(SIGMA, N, TAU, K, bad, tau_a), {}
    for factor in (0.0, 0.3, 1.0, 3.0):
        lam = factor * best
        w, v = converged(fed, lam, b)
        assert w == pytest.approx(alone.mean(0), rel=1e-6, abs=1e-7)
        expected = (b * alone + lam * alone.mean(0)) / (b + lam)
        assert v == pytest.approx(expected, rel=1e-6, abs=1e-7)
        squared = np.square(v - truth)[: K - bad]
        found[factor] = squared.mean(), squared.std()
    assert min(found, key=lambda f: found[f][0]) == 1.0
    assert min(found, key=lambda f: found[f][1]) == 1.0
