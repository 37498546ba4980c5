"""FedFV against a slow, literal transcription in numpy, and the cases in which its answer is known."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.core import Cohort, Outcome
from equipoise.engine.settings import Participation
from equipoise.errors import EquipoiseError
from equipoise.methods.fedfv import FedFV, fedfv
from equipoise.streams import Stream
from tests.small import cohort, federation, relative, simulation

SEEDS = st.integers(0, 10**6)


class Literal:
    """Algorithms 1 to 3, one pair of clients at a time."""

    def __init__(self, alpha: float, tau: int) -> None:
        self.alpha, self.tau, self.history = alpha, tau, {}

    def round(self, t: int, ids: list[int], updates: dict[int, np.ndarray], losses: dict[int, float]) -> np.ndarray:
        order = sorted(ids, key=lambda i: (losses[i], i))
        n = math.ceil(round(self.alpha * len(ids), 9))
        keep = set(order[len(order) - n :]) if n else set()
        projected = []
        for i in ids:
            p = updates[i].copy()
            for j in order:
                if j == i or i in keep:
                    continue
                if p @ updates[j] < 0:
                    p = p - (p @ updates[j]) / (updates[j] @ updates[j]) * updates[j]
            projected.append(p)
        d = sum(projected) / len(ids)
        for i in ids:
            self.history[i] = (t, updates[i])
        if t >= self.tau:
            for back in range(self.tau, 0, -1):
                c = np.zeros_like(d)
                for when, u in self.history.values():
                    if when == t - back and d @ u < 0:
                        c = c + u
                if d @ c < 0:
                    d = d - (d @ c) / (c @ c) * c
        return d / np.linalg.norm(d) * np.linalg.norm(sum(updates[i] for i in ids) / len(ids))


@settings(max_examples=60)
@given(SEEDS, st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 1.0]), st.integers(0, 3), st.sampled_from([3, 8, 30]))
def test_it_is_its_algorithms_over_rounds_of_changing_clients(seed: int, alpha: float, tau: int, d: int) -> None:
    rule, literal = FedFV(alpha, tau), Literal(alpha, tau)
    state, g = rule.init(torch.zeros(d, dtype=torch.float64)), Stream(seed).torch()
    for t in range(5):
        k = int(torch.randint(2, 7, (), generator=g))
        ids = torch.randperm(9, generator=g)[:k]
        c = replace(cohort(k, d, seed=seed + 10 * t, ids=ids.tolist()), round=t)
        rows = {int(i): u.numpy() for i, u in zip(c.ids, c.updates, strict=True)}
        assert c.losses is not None
        losses = {int(i): float(f) for i, f in zip(c.ids, c.losses, strict=True)}
        expected = literal.round(t, sorted(rows), rows, losses)
        outcome = rule(c, state)
        assert np.linalg.norm(outcome.direction.numpy() - expected) <= 1e-9 * np.linalg.norm(expected)
        state = outcome.state


def run(c: Cohort, **options: Any) -> Outcome:
    rule = FedFV(**options)
    return rule(c, rule.init(c.start))


def test_alpha_one_without_memory_is_the_plain_mean() -> None:
    c = cohort(6, 30)
    outcome = run(c, alpha=1.0, tau=0)
    assert relative(outcome.direction, c.updates.mean(0)) < 1e-12
    assert outcome.info["internal"] == outcome.info["external"] == 0


def test_without_conflicts_it_is_the_plain_mean() -> None:
    c = cohort(6, 30)
    c = replace(c, updates=c.updates.abs())
    outcome = run(c)
    assert relative(outcome.direction, c.updates.mean(0)) < 1e-12 and outcome.info["internal"] == 0


def test_one_client_gets_its_own_update() -> None:
    c = cohort(1, 12)
    assert relative(run(c).direction, c.updates[0]) < 1e-12
    assert run(c).info["weights"].tolist() == [1.0]


def test_the_direction_is_as_long_as_the_mean_update_and_shares_sum_to_one() -> None:
    c = cohort(9, 10)
    outcome = run(c)
    assert outcome.info["internal"] > 0
    assert float(outcome.direction.norm()) == pytest.approx(float(c.updates.mean(0).norm()), rel=1e-12)
    assert float(outcome.info["weights"].sum()) == pytest.approx(1) and (outcome.info["weights"] > 0).all()


def test_equal_losses_go_by_client_id() -> None:
    c = cohort(5, 6, seed=4)
    even, first = torch.ones(5, dtype=torch.float64), torch.linspace(1, 1 + 1e-9, 5, dtype=torch.float64)
    assert torch.equal(run(replace(c, losses=even)).direction, run(replace(c, losses=first)).direction)
    assert not torch.equal(run(replace(c, losses=even)).direction, run(replace(c, losses=first.flip(0))).direction)


@pytest.mark.parametrize(("alpha", "m", "kept"), [(0.0, 9, 0), (0.1, 9, 1), (0.1, 10, 1), (0.1, 20, 2), (0.3, 10, 3)])
def test_the_largest_losses_keep_their_updates(alpha: float, m: int, kept: int) -> None:
    """On a line with one client against all others, whoever is not kept ends at zero or with the others."""
    updates = torch.ones((m, 1), dtype=torch.float64)
    updates[m - 1] = -1.0
    c = replace(cohort(m, 12), updates=updates, start=torch.zeros(1, dtype=torch.float64))
    outcome = run(replace(c, losses=torch.arange(m, dtype=torch.float64)), alpha=alpha)
    # All that may be projected are: the other m - kept, and the last client too if nobody is kept.
    assert outcome.info["internal"] == (m - kept if kept else m)


def test_ruled_out_conflicts_between_two_clients_leave_none() -> None:
    c = cohort(2, 12, seed=5)
    updates = torch.stack([c.updates[0], -0.5 * c.updates[0] + 0.3 * c.updates[1]])
    d = run(replace(c, updates=updates), alpha=0.0).direction
    assert (updates @ d >= -1e-12).all() and float(updates[0] @ updates[1]) < 0


def test_absent_clients_of_the_last_round_are_not_opposed_as_a_whole() -> None:
    rule = FedFV(alpha=1.0)
    a, b = cohort(1, 12, seed=1, ids=[0]), replace(cohort(3, 12, seed=2, ids=[1, 2, 3]), round=1)
    a = replace(a, updates=-b.updates.mean(0, keepdim=True) + 0.1 * a.updates)
    outcome = rule(b, rule(a, rule.init(a.start)).state)
    assert outcome.info["external"] == 1
    assert float(b.updates.mean(0) @ a.updates[0]) < 0 and float(outcome.direction @ a.updates[0]) > -1e-12
    assert 0 < float(outcome.info["weights"].sum()) < 1


@pytest.mark.parametrize("tau", [0, 1, 2])
def test_updates_of_tau_rounds_are_remembered_and_no_more(tau: int) -> None:
    rule = FedFV(tau=tau)
    state = rule.init(torch.zeros(12, dtype=torch.float64))
    for t, ids in enumerate([[0, 1], [2, 3], [3, 4]]):
        state = rule(replace(cohort(2, 12, seed=t, ids=ids), round=t), state).state
    assert state["ids"].tolist() == [[], [3, 4], [2, 3, 4]][tau]
    assert torch.allclose(state["gram"], state["rows"] @ state["rows"].T)


def test_updates_that_cancel_leave_the_model_alone_and_say_why() -> None:
    c = cohort(2, 12)
    opposed = replace(c, updates=torch.stack([c.updates[0], -c.updates[0]]))
    zero = replace(c, updates=torch.zeros_like(c.updates))
    unequal = replace(c, updates=torch.stack([c.updates[0], -0.3 * c.updates[0]]))
    for case, alpha in ((opposed, 0.1), (zero, 0.1), (unequal, 0.0)):
        outcome = run(case, alpha=alpha)
        assert not outcome.direction.any() and outcome.info["reason"] and not outcome.info["weights"].any()


def test_a_client_that_sends_nothing_stops_nobody() -> None:
    c = cohort(5, 8)
    c.updates[2] = 0
    d = run(c).direction
    assert torch.isfinite(d).all() and float(d.norm()) > 0 and float(run(c).info["weights"][2]) == 0


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_extreme_float32_updates_stay_finite(size: float) -> None:
    c = cohort(6, 8, dtype=torch.float32)
    d = run(replace(c, updates=size * c.updates)).direction
    assert torch.isfinite(d).all() and relative(d.double() / size, run(c).direction.double()) < 1e-5


def test_bad_options_and_missing_losses_are_named() -> None:
    for options in ({"alpha": -0.1}, {"alpha": 1.1}, {"alpha": float("nan")}, {"tau": -1}):
        with pytest.raises(EquipoiseError, match=f"fedfv: {next(iter(options))} is"):
            fedfv(**options)  # type: ignore[arg-type]
    with pytest.raises(EquipoiseError, match="losses"):
        run(replace(cohort(), losses=None))


def test_it_trains_with_absent_clients() -> None:
    sim = simulation(fedfv(), federation((9, 12, 15, 9, 8, 10)), participation=Participation(per_round=3))
    before = sim.evaluate("train")["global"].loss.mean()
    for _ in range(12):
        assert not sim.step().skipped
    assert sim.evaluate("train")["global"].loss.mean() < before
