"""FedMDFG against a slow, literal transcription in numpy: least squares, every gradient and loss written out."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor

from equipoise.at import Schedule
from equipoise.core import Cohort, Outcome
from equipoise.engine.settings import Participation, Train
from equipoise.errors import EquipoiseError
from equipoise.methods.fedlf import FedLF
from equipoise.methods.fedmdfg import FedMDFG, fedmdfg
from equipoise.streams import Stream
from tests.small import cohort, federation, relative, simulation

SEEDS = st.integers(0, 10**6)
D, CLIENTS = 9, 7


class Problem:
    """Client k's loss is ||A_k w - b_k||^2 / 2 + 0.1, with its gradient."""

    def __init__(self, seed: int, apart: float) -> None:
        g = Stream(seed).torch()
        self.a = torch.randn((CLIENTS, 4, D), generator=g, dtype=torch.float64)
        centre = torch.randn(D, generator=g, dtype=torch.float64)
        points = centre + apart * torch.randn((CLIENTS, D), generator=g, dtype=torch.float64)
        self.b = torch.einsum("kij,kj->ki", self.a, points)
        self.generator = g

    def loss(self, k: int, w: np.ndarray) -> float:
        rest = self.a[k].numpy() @ w - self.b[k].numpy()
        return float(rest @ rest / 2 + 0.1)

    def gradient(self, k: int, w: np.ndarray) -> np.ndarray:
        return np.asarray(self.a[k].numpy().T @ (self.a[k].numpy() @ w - self.b[k].numpy()))

    def cohort(self, ids: list[int], w: np.ndarray, t: int, lr: float) -> Cohort:
        def probe(models: Tensor) -> Tensor:
            return torch.tensor([[self.loss(k, m) for k in sorted(ids)] for m in models.numpy()], dtype=torch.float64)

        updates = torch.from_numpy(np.array([lr * self.gradient(k, w) for k in ids]))
        losses = torch.tensor([self.loss(k, w) for k in ids], dtype=torch.float64)
        start, sizes = torch.from_numpy(w.copy()), torch.ones(len(ids), dtype=torch.int64)
        return Cohort(torch.tensor(ids), start, updates, sizes, losses, round=t, lr=lr, n_clients=CLIENTS, probe=probe)


def shortest(rows: list[np.ndarray]) -> np.ndarray:
    x = np.array(rows)
    a = np.vstack([x.T / np.linalg.norm(x, axis=1).mean(), np.ones(len(x))])
    z, _ = nnls(a, np.r_[np.zeros(x.shape[1]), 1.0], maxiter=1000)
    return np.asarray((z / z.sum()) @ x)


def cosine(losses: np.ndarray) -> float:
    return float(losses.sum() / (np.linalg.norm(losses) * math.sqrt(len(losses))))


class Literal:
    """Algorithm 1: gradients, hull, direction, search; what it remembers are the gradients of the last round."""

    def __init__(self, problem: Problem, theta: float, s: int, beta: float) -> None:
        self.problem, self.theta, self.s, self.beta, self.last = problem, theta, s, beta, {}

    def round(self, ids: list[int], w: np.ndarray, eta: float) -> tuple[np.ndarray, float, bool]:
        g = {k: self.problem.gradient(k, w) for k in ids}
        f = np.array([self.problem.loss(k, w) for k in ids])
        mean = np.mean([np.linalg.norm(g[k]) for k in ids])
        hull = [g[k] / np.linalg.norm(g[k]) * mean for k in ids]
        fair = math.acos(min(1.0, cosine(f))) > self.theta
        if fair:
            p = np.ones(len(ids)) / math.sqrt(len(ids))
            h = (f @ p) / np.linalg.norm(f) * f / np.linalg.norm(f) - p
            row = sum(h[i] / np.linalg.norm(h) * hull[i] for i in range(len(ids)))
            hull.append(row / np.linalg.norm(row) * mean)
        hull += [v / np.linalg.norm(v) * mean for k, v in sorted(self.last.items()) if k not in ids]
        self.last = g
        d = shortest(hull)
        if np.linalg.norm(d) <= 1e-6 * mean:
            return w, 0.0, False
        d = d / np.linalg.norm(d) * np.linalg.norm(sum(g.values()) / len(ids))
        tried = []
        for power in range(self.s, -self.s - 1, -1):
            step = 2.0**power * eta
            new = np.array([self.problem.loss(k, w - step * d) for k in ids])
            tried.append((new.mean(), power))
            falls = all(f[i] - new[i] >= self.beta * step * (g[k] @ d) for i, k in enumerate(ids))
            if falls and (not fair or cosine(new) > cosine(f)):
                return w - step * d, 2.0**power, True
        for total, power in tried:
            if total < f.mean():
                return w - 2.0**power * eta * d, 2.0**power, False
        power = min(tried, key=lambda pair: pair[0])[1]
        return w - 2.0**power * eta * d, 2.0**power, False


@settings(max_examples=40)
@given(
    SEEDS,
    st.sampled_from([0.0, math.pi / 16, math.pi / 2]),
    st.sampled_from([0, 2, 5]),
    st.sampled_from([1e-4, 0.5]),
    st.sampled_from([0.01, 0.2]),
    st.sampled_from([0.2, 2.0]),
)
def test_it_is_its_algorithm(seed: int, theta: float, s: int, beta: float, lr: float, apart: float) -> None:
    problem = Problem(seed, apart)
    rule, literal, w = FedMDFG(theta, s, beta), Literal(problem, theta, s, beta), np.zeros(D)
    state = rule.init(torch.from_numpy(w))
    for t in range(4):
        k = int(torch.randint(2, 5, (), generator=problem.generator))
        ids = torch.randperm(CLIENTS, generator=problem.generator)[:k].tolist()
        expected, step, accepted = literal.round(sorted(ids), w, lr)
        outcome = rule(problem.cohort(ids, w, t, lr), state)
        assert (outcome.info["step"], outcome.info["accepted"]) == (step, accepted), f"round {t}"
        assert (w - outcome.direction.numpy()) == pytest.approx(expected, rel=1e-9, abs=1e-9), f"round {t}"
        w, state = expected, outcome.state


def run(c: Cohort, **options: Any) -> Outcome:
    rule = FedMDFG(**options)
    return rule(c, rule.init(c.start))


def test_the_direction_is_that_of_fedlf_with_one_layer() -> None:
    c = replace(cohort(5, 60), probe=lambda models: torch.zeros((len(models), 5)))
    hull = FedLF(layer="model", fair="fedmdfg", theta=math.pi / 2, absent="last")
    plain = hull(c, hull.init(c.start)).direction
    assert torch.equal(run(c, s=0, theta=math.pi / 2).direction, plain)
    assert torch.equal(run(c, s=3, theta=math.pi / 2).direction, 8 * plain)


def with_losses(answer: Callable[[int], list[float]], k: int = 3) -> tuple[Cohort, list[int]]:
    """A cohort whose losses are 1 now, and `answer(i)` at the i-th trial; and how many models each probe was sent."""
    calls: list[int] = []

    def probe(models: Tensor) -> Tensor:
        calls.append(len(models))
        return torch.tensor([answer(i) for i in range(len(models))])

    c = cohort(k, 60, seed=1)
    return replace(c, losses=torch.ones(k), probe=probe), calls


def test_all_trials_are_sent_at_once_and_the_first_that_suits_everyone_is_taken() -> None:
    c, calls = with_losses(lambda i: [0.5, 0.5, 0.5 if i >= 4 else 1.5])
    outcome = run(c, beta=0.0)
    assert calls == [11] and outcome.info["step"] == 2.0 and outcome.info["accepted"]


@pytest.mark.parametrize(
    ("answer", "step", "reason"),
    [
        (lambda i: [1.1, 0.1 * i, 0.1 * i], 32.0, "lowers the mean"),
        (lambda i: [1.1, 1.1 if i < 6 else 0.5, 1.0], 0.5, "lowers the mean"),
        (lambda i: [1.1 + (i - 3) ** 2, 1.0, 1.0], 4.0, "the lowest"),
        (lambda i: [math.nan if i < 8 else 1.2, 1.0, 1.0 + i], 0.125, "the lowest"),
        (lambda i: [math.inf, math.nan, 1.0], 0.0, "finite"),
    ],
)
def test_when_no_step_suits_everyone_the_log_says_which_is_taken_and_why(
    answer: Callable[[int], list[float]], step: float, reason: str
) -> None:
    outcome = run(with_losses(answer)[0], beta=0.0)
    assert outcome.info["step"] == step and not outcome.info["accepted"] and reason in outcome.info["reason"]
    assert torch.isfinite(outcome.direction).all() and bool(outcome.direction.any()) == (step > 0)


def test_a_client_that_sent_nothing_is_not_asked_for_a_decrease() -> None:
    c, _ = with_losses(lambda i: [0.5, 0.5, 1.5])
    assert not run(c, beta=0.0).info["accepted"]
    c.updates[2] = 0
    assert run(c, beta=0.0).info["accepted"] and run(c, beta=0.0).info["step"] == 32.0


def test_losses_must_even_out_too_where_the_hull_has_their_row() -> None:
    uneven, even = [0.1, 0.5, 2.0], [0.09, 0.4, 1.0]
    c, _ = with_losses(lambda i: [0.5 * f for f in uneven] if i < 5 else even)
    c = replace(c, losses=torch.tensor(uneven))
    assert run(c, beta=0.0, theta=math.pi / 2).info["step"] == 32.0
    outcome = run(c, beta=0.0)
    assert outcome.info["fair_row"] and outcome.info["step"] == 1.0 and outcome.info["accepted"]


def test_a_stationary_model_is_not_probed() -> None:
    c, calls = with_losses(lambda i: [0.5, 0.5], k=2)
    for updates in (torch.stack([c.updates[0], -c.updates[0]]), torch.zeros_like(c.updates)):
        outcome = run(replace(c, updates=updates))
        assert not outcome.direction.any() and outcome.info["reason"] and outcome.info["step"] == 0.0
    assert calls == []


def test_everyone_of_the_last_round_is_remembered_and_nobody_else() -> None:
    rule = FedMDFG()
    state = rule.init(torch.zeros(24, dtype=torch.float64))
    for t, ids in enumerate([list(range(300)), [5, 700]]):
        outcome = rule(replace(cohort(len(ids), 24, seed=t, ids=ids), round=t), state)
        state = outcome.state
        assert state["ids"].tolist() == ids
    assert outcome.info["absent"] == 299


def test_clients_take_one_step_over_all_their_data() -> None:
    assert fedmdfg().client.schedule(Schedule(5, None, 10), 0, Stream(0)) == Schedule(5, 1, None)
    small, large = (simulation(fedmdfg(), train=Train(epochs=e, batch=b, lr=0.1)) for e, b in ((3, 2), (1, 7)))
    small.step(), large.step()
    assert torch.equal(small.server.w, large.server.w)


def test_an_accepted_step_lowers_the_loss_of_every_client() -> None:
    sim = simulation(fedmdfg(theta=math.pi / 2), federation((9, 12, 15, 9, 8, 10)))
    before, accepted = sim.evaluate("train")["global"].loss, 0
    for _ in range(6):
        record = sim.step()
        after = sim.evaluate("train")["global"].loss
        if record.info["accepted"]:
            accepted += 1
            assert (torch.as_tensor(after) < torch.as_tensor(before)).all()
        before = after
    assert accepted >= 4


def test_it_trains_with_absent_clients() -> None:
    sim = simulation(fedmdfg(), federation((9, 12, 15, 9, 8, 10)), participation=Participation(per_round=3))
    before = sim.evaluate("train")["global"].loss.mean()
    for _ in range(8):
        assert not sim.step().skipped
    assert sim.evaluate("train")["global"].loss.mean() < before


@pytest.mark.parametrize("size", [1e-20, 1e30])
def test_extreme_float32_updates_stay_finite(size: float) -> None:
    c = cohort(5, 60, dtype=torch.float32)
    c = replace(c, updates=size * c.updates, probe=lambda models: torch.zeros((len(models), 5)))
    d = run(c, theta=math.pi / 2).direction
    plain = run(replace(c, updates=c.updates / size), theta=math.pi / 2).direction
    assert torch.isfinite(d).all() and relative(d.double() / size, plain.double()) < 1e-4


def test_bad_options_and_missing_losses_are_named() -> None:
    bad = ({"theta": -0.1}, {"theta": 2.0}, {"s": -1}, {"s": 31}, {"beta": -1e-4}, {"beta": 1.0})
    for options in bad:
        with pytest.raises(EquipoiseError, match=f"fedmdfg: {next(iter(options))} is"):
            fedmdfg(**options)  # type: ignore[arg-type]
    for missing in ({"losses": None}, {"probe": None}):
        with pytest.raises(EquipoiseError, match="losses"):
            run(replace(cohort(), **missing))  # type: ignore[arg-type]
    assert FedMDFG().needs == {"losses", "probe"}
