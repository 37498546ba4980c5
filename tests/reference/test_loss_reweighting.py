"""FedSGD, q-FFL, AFL, TERM, DRFL, FedGini and FedFa against slow, literal transcriptions in plain Python and numpy."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.at import Schedule
from equipoise.core import Cohort, Method, Outcome, State, WeightedMean
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Admission, Run, Train
from equipoise.methods.afl import AFL, afl
from equipoise.methods.drfl import DRFL
from equipoise.methods.fedfa import FedFa, fedfa
from equipoise.methods.fedgini import FedGini
from equipoise.methods.fedsgd import fedsgd
from equipoise.methods.qffl import QFFL, qffl
from equipoise.methods.term import TERM, term
from equipoise.streams import Stream

WAYS = st.sampled_from(["uniform", "size", "capped"])
SEEDS = st.integers(0, 10**6)


def drawn(seed: int, m: int, d: int = 5, losses: list[float] | None = None, lr: float = 0.1) -> Cohort:
    r = np.random.default_rng(seed)
    return Cohort(
        ids=torch.from_numpy(np.sort(r.choice(20, m, replace=False))),
        start=torch.from_numpy(r.normal(size=d)),
        updates=torch.from_numpy(r.normal(size=(m, d)) * 0.3),
        sizes=torch.from_numpy(r.integers(1, 40, m)),
        losses=torch.tensor(r.gamma(2.0, 1.0, m) if losses is None else losses, dtype=torch.float64),
        lr=lr,
        n_clients=20,
    )


def literal_shares(cohort: Cohort, way: str) -> list[float]:
    n = [float(s) for s in cohort.sizes]
    if way == "uniform":
        n = [1.0] * len(n)
    elif way == "capped":
        middle = sorted(n)[(len(n) - 1) // 2]
        n = [min(x, middle) for x in n]
    return [x / sum(n) for x in n]


def the_losses(cohort: Cohort) -> list[float]:
    assert cohort.losses is not None
    return [float(f) for f in cohort.losses]


def mixed(cohort: Cohort, weights: list[float]) -> np.ndarray:
    out = np.zeros(cohort.updates.shape[1])
    for k, a in enumerate(weights):
        out += a * cohort.updates[k].numpy()
    return out


def same(outcome: Outcome, cohort: Cohort, weights: list[float]) -> None:
    assert outcome.info["weights"].dtype == torch.float64
    assert outcome.info["weights"].tolist() == pytest.approx(weights, rel=1e-9, abs=1e-12)
    assert outcome.direction.numpy() == pytest.approx(mixed(cohort, weights), rel=1e-9, abs=1e-12)


# ---------------------------------------------------------------------------------------------- rules without memory


@settings(max_examples=50)
@given(SEEDS, st.integers(1, 8), st.sampled_from([0.0, 0.001, 0.5, 1.0, 2.0, 5.0]), WAYS)
def test_qffl_is_its_equation(seed: int, m: int, q: float, way: str) -> None:
    cohort = drawn(seed, m, lr=0.05)
    lipschitz, top, bottom = 1 / 0.05, np.zeros(5), 0.0
    for k, (f, p) in enumerate(zip(the_losses(cohort), literal_shares(cohort, way), strict=True)):
        g = cohort.updates[k].numpy() / 0.05
        top += p * (f + 1e-10) ** q * g
        bottom += p * (q * (f + 1e-10) ** (q - 1) * (g @ g) + lipschitz * (f + 1e-10) ** q)
    outcome = QFFL(q, way)(cohort, {})
    assert outcome.direction.numpy() == pytest.approx(top / bottom, rel=1e-9)
    assert mixed(cohort, outcome.info["weights"].tolist()) == pytest.approx(top / bottom, rel=1e-9)


@settings(max_examples=50)
@given(SEEDS, st.integers(1, 8), st.sampled_from([-2.0, -0.1, 0.0, 0.1, 1.0, 2.0, 5.0]), WAYS)
def test_term_is_its_equation(seed: int, m: int, t: float, way: str) -> None:
    cohort = drawn(seed, m)
    powers = [p * math.exp(t * f) for f, p in zip(the_losses(cohort), literal_shares(cohort, way), strict=True)]
    same(TERM(t, way)(cohort, {}), cohort, [x / sum(powers) for x in powers])


@settings(max_examples=50)
@given(SEEDS, st.integers(1, 8), WAYS)
def test_drfl_is_its_equation(seed: int, m: int, way: str) -> None:
    cohort = drawn(seed, m)
    parts = [p * f for f, p in zip(the_losses(cohort), literal_shares(cohort, way), strict=True)]
    same(DRFL(way)(cohort, {}), cohort, [x / sum(parts) for x in parts])


@settings(max_examples=50)
@given(SEEDS, st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0]), min_size=1, max_size=8), st.floats(0, 1))
@pytest.mark.parametrize("form", ["added", "mixed"])
def test_fedgini_is_its_equation(form: str, seed: int, losses: list[float], eps: float) -> None:
    m = len(losses)
    cohort = drawn(seed, m, losses=losses)
    bottom = (m - 1) * m * (m + 1) / 3
    by_rank = []
    for i in range(m):
        share = i * (i + 1) / bottom if m > 1 else 1.0
        by_rank.append(1 + (1 - eps) * share if form == "added" else eps / m + (1 - eps) * share)
    ascending = sorted(losses)
    weights = []
    for f in losses:  # clients with the same loss share what their ranks have together
        mine = [by_rank[i] for i in range(m) if ascending[i] == f]
        weights.append(sum(mine) / len(mine) / sum(by_rank))
    same(FedGini(eps, form)(cohort, {}), cohort, weights)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- rules that remember


def literal_projection(v: list[float], total: float) -> list[float]:
    """The nearest point to v among those >= 0 that sum to `total`: max(v - theta, 0), theta by bisection."""
    low, high = min(v) - total, max(v)
    for _ in range(200):
        theta = (low + high) / 2
        low, high = (theta, high) if sum(max(x - theta, 0.0) for x in v) > total else (low, theta)
    return [max(x - low, 0.0) for x in v]


@settings(max_examples=50)
@given(SEEDS, st.floats(0, 2), st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_afl_is_its_equation_with_and_without_absent_clients(seed: int, eta_lam: float, cohorts: list[int]) -> None:
    rule, lam = AFL(eta_lam), dict.fromkeys(range(20), 1 / 20)
    state: State = rule.init(torch.zeros(5, dtype=torch.float64))
    for r, m in enumerate(cohorts):
        cohort = drawn(seed + r, m)
        ids = cohort.ids.tolist()
        held = sum(lam[k] for k in ids)
        outcome = rule(cohort, state)
        if held > 1e-12:
            same(outcome, cohort, [lam[k] / held for k in ids])
            new = literal_projection([lam[k] + eta_lam * f for k, f in zip(ids, the_losses(cohort), strict=True)], held)
            lam.update(zip(ids, new, strict=True))
        state = outcome.state
        kept = dict(zip(state["ids"].tolist(), state["lam"].tolist(), strict=True))
        assert [kept.get(k, 1 / 20) for k in range(20)] == pytest.approx(list(lam.values()), abs=1e-9)
        assert sum(kept.values()) + (20 - len(kept)) / 20 == pytest.approx(1.0)


@settings(max_examples=50)
@given(SEEDS, st.floats(0, 1), st.sampled_from([0.0, 0.5, 0.9]), st.lists(st.integers(2, 8), min_size=1, max_size=4))
@pytest.mark.parametrize("told", [True, False])
def test_fedfa_is_its_equation(told: bool, seed: int, beta: float, gamma: float, cohorts: list[int]) -> None:
    rule, count, velocity = FedFa(beta, gamma), dict.fromkeys(range(20), 0), np.zeros(5)
    state: State = rule.init(torch.zeros(5, dtype=torch.float64))
    for r, m in enumerate(cohorts):
        cohort = drawn(seed + r, m)
        ids = cohort.ids.tolist()
        acc = np.random.default_rng(seed + r).integers(1, 11, m) / 10 if told else np.exp(-np.array(the_losses(cohort)))
        if told:
            object.__setattr__(cohort, "signals", {"accuracy": torch.from_numpy(acc)})
        for k in ids:
            count[k] += 1
        a = [-math.log2(max(x / sum(acc), 1e-6)) for x in acc]
        b = [-math.log2(1 - count[k] / sum(count[j] for j in ids)) for k in ids]
        weights = [(1 - beta) * x / sum(a) + beta * y / sum(b) for x, y in zip(a, b, strict=True)]
        velocity = gamma * velocity + mixed(cohort, weights)
        outcome = rule(cohort, state)
        assert outcome.info["weights"].tolist() == pytest.approx(weights, rel=1e-9)
        assert outcome.direction.numpy() == pytest.approx(velocity, rel=1e-9, abs=1e-12)
        state = outcome.state


# ------------------------------------------------------------------------------- whole methods, on linear regression

SIZES = (9, 4, 13)
ROUNDS, EPOCHS, BATCH, LR, DECAY = 4, 2, 4, 0.05, 0.9


def problem() -> Federation:
    g = Stream(4).torch()
    x = torch.randn((sum(SIZES), 3), generator=g, dtype=torch.float64)
    y = torch.randn((sum(SIZES), 1), generator=g, dtype=torch.float64)
    parts = list(torch.split(torch.arange(sum(SIZES)), list(SIZES)))
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * len(SIZES))
    return Federation(Dataset("r", x, y, 0), {"train": Split.of(parts), "validation": nobody, "test": Split.of(parts)})


def simulate(method: Method, fed: Federation) -> np.ndarray:
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64))
    train = Train(rounds=ROUNDS, epochs=EPOCHS, batch=BATCH, lr=LR, lr_decay=DECAY)
    scenario = Scenario(fed, model, train, admission=Admission(guard="off"))
    sim = Simulation(scenario, method, Run(dtype="float64"))
    for _ in range(ROUNDS):
        assert sim.step().skipped == ""
    w: np.ndarray = sim.server.w.numpy()
    return w


def averaged(ends: list[np.ndarray], counts: Sequence[float]) -> np.ndarray:
    out = np.zeros(3)
    for n, end in zip(counts, ends, strict=True):
        out += n * end / sum(counts)
    return out


class Literal:
    """One sample, one batch, one client at a time."""

    def __init__(self, fed: Federation) -> None:
        self.fed, self.x, self.y = fed, fed.data.x.numpy(), fed.data.y.numpy()[:, 0]
        self.w = np.array([0.3, -0.2, 0.1])

    def batches(self, t: int, schedule: Schedule) -> list[list[list[int]]]:
        """For every client, for every step, the samples in it."""
        plan = plan_batches(self.fed.splits["train"], torch.arange(3), schedule, Stream(0).child("batch", t))
        return [[plan.index[s, 0, k][plan.mask[s, 0, k]].tolist() for s in range(plan.steps[k])] for k in range(3)]

    def gradient(self, w: np.ndarray, samples: list[int], tau: float = 0.0) -> np.ndarray:
        tilt, out = [math.exp(tau * 0.5 * (self.x[i] @ w - self.y[i]) ** 2) for i in samples], np.zeros(3)
        for n, i in enumerate(samples):
            out += tilt[n] / sum(tilt) * (self.x[i] @ w - self.y[i]) * self.x[i]
        return out

    def loss(self, k: int) -> float:
        own = self.fed.splits["train"].of_client(k).tolist()
        return float(np.mean([0.5 * (self.x[i] @ self.w - self.y[i]) ** 2 for i in own]))


@pytest.mark.parametrize("damped", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("batch", [None, 4])
def test_fedsgd_is_its_equation(batch: int | None, momentum: float, damped: bool) -> None:
    fed = problem()
    world = Literal(fed)
    m: list[np.ndarray | None] = [None, None, None]
    for t in range(ROUNDS):
        ends = []
        for k, steps in enumerate(world.batches(t, Schedule(1, 1, batch))):
            assert len(steps) == 1
            g, old = world.gradient(world.w, steps[0]), m[k]
            new = g if old is None else momentum * old + (1 - momentum if damped else 1.0) * g
            ends.append(world.w - LR * DECAY**t * new)
            m[k] = new
        world.w = averaged(ends, SIZES)
    assert simulate(fedsgd(batch, momentum, damped=damped), fed) == pytest.approx(world.w, rel=1e-9)


@pytest.mark.parametrize("variant", ["fedavg", "fedsgd"])
def test_qffl_and_afl_run_their_clients_as_the_variant_says(variant: str) -> None:
    fed, q, eta_lam = problem(), 2.0, 0.3
    for name in ("qffl", "afl"):
        world, lam = Literal(fed), [1 / 3] * 3
        for t in range(ROUNDS):
            lr = LR * DECAY**t
            given = Schedule(EPOCHS, None, BATCH) if variant == "fedavg" else Schedule(1, 1, None)
            us, losses = [], [world.loss(k) for k in range(3)]
            for steps in world.batches(t, given):
                wk = world.w.copy()
                for samples in steps:
                    wk = wk - lr * world.gradient(wk, samples)
                us.append(world.w - wk)
            if name == "qffl":
                top = sum((f + 1e-10) ** q * u / lr for f, u in zip(losses, us, strict=True))
                bottom = 0.0
                for f, u in zip(losses, us, strict=True):
                    bottom += q * (f + 1e-10) ** (q - 1) * (u / lr) @ (u / lr) + (f + 1e-10) ** q / lr
                world.w = world.w - top / bottom
            else:
                world.w = world.w - sum(a * u for a, u in zip(lam, us, strict=True))
                lam = literal_projection([a + eta_lam * f for a, f in zip(lam, losses, strict=True)], 1.0)
        method = qffl(q, variant=variant) if name == "qffl" else afl(eta_lam, variant=variant)  # type: ignore[arg-type]
        assert simulate(method, fed) == pytest.approx(world.w, rel=1e-9), name


@pytest.mark.parametrize("tau", [0.0, 0.7])
def test_term_tilts_between_samples_and_between_clients(tau: float) -> None:
    fed, t_ = problem(), 1.5
    world = Literal(fed)
    for t in range(ROUNDS):
        powers, ends = [math.exp(t_ * world.loss(k)) for k in range(3)], []
        for steps in world.batches(t, Schedule(EPOCHS, None, BATCH)):
            wk = world.w.copy()
            for samples in steps:
                wk = wk - LR * DECAY**t * world.gradient(wk, samples, tau)
            ends.append(wk)
        world.w = averaged(ends, powers)
    assert simulate(term(t_, tau), fed) == pytest.approx(world.w, rel=1e-9)


@settings(max_examples=5)
@given(st.sampled_from([0.0, 0.5, 0.9]))
def test_fedfa_clients_have_momentum_within_a_round_only(local_gamma: float) -> None:
    fed = problem()
    world = Literal(fed)
    for t in range(ROUNDS):
        ends = []
        for steps in world.batches(t, Schedule(EPOCHS, None, BATCH)):
            wk, v = world.w.copy(), np.zeros(3)
            for samples in steps:
                v = local_gamma * v + world.gradient(wk, samples)
                wk = wk - LR * DECAY**t * v
            ends.append(wk)
        world.w = averaged(ends, SIZES)
    method = Method("fedfa's clients", fedfa(local_gamma=local_gamma).client, WeightedMean())
    assert simulate(method, fed) == pytest.approx(world.w, rel=1e-9)
