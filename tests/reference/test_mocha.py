"""MOCHA against a slow, literal transcription in numpy, and the closed form of its convex problem."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.attacks.send_nan import SendNaN
from equipoise.core import Cohort, Method
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.settings import Admission, Run
from equipoise.errors import EquipoiseError
from equipoise.methods.local import local
from equipoise.methods.mocha import OwnTask, Relations, mocha, related
from equipoise.streams import Stream
from tests.reference._regression import DECAY, LR, START, ByHand, Vector, models, problem, simulate
from tests.small import cohort as some_cohort
from tests.small import simulation


def root_of(w: Vector, eps: float) -> Vector:
    """(W'W + eps m I)^(1/2) / tr, for W [d, n], through the eigenvalues of W'W."""
    gram = w.T @ w
    values, vectors = np.linalg.eigh(gram)
    root = sum(
        np.sqrt(max(value, 0) + eps * np.trace(gram) / len(gram)) * np.outer(u, u)
        for value, u in zip(values, vectors.T, strict=True)
    )
    return np.asarray(root / np.trace(root))


def literal(hand: ByHand, lam: float, every: int, eps: float, steps: int, rounds: int) -> tuple[Vector, Vector]:
    n = len(hand.clients)
    w, s = np.stack([START] * n, axis=1), np.eye(n) / n
    for t in range(rounds):
        lr = LR * DECAY**t
        for k in hand.clients:
            for _ in range(steps):
                w[:, k] = w[:, k] - lr * hand.gradient(w[:, k], hand.samples(k))
        w = w @ np.linalg.inv(np.eye(n) + steps * lr * lam * np.linalg.inv(s))
        if (t + 1) % every == 0:
            s = root_of(w, eps)
    return w.mean(1), w.T


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10**6),
    lam=st.floats(0, 1),
    every=st.integers(1, 3),
    eps=st.sampled_from([1e-3, 1e-1, 1.0]),
    steps=st.integers(1, 3),
)
def test_mocha_is_its_equations(seed: int, lam: float, every: int, eps: float, steps: int) -> None:
    hand = ByHand(problem(seed))
    w, own = literal(hand, lam, every, eps, steps, rounds=5)
    found, personal = models(simulate(mocha(lam, every=every, eps=eps, steps=steps), hand.fed, rounds=5))
    assert found == pytest.approx(w, rel=1e-8, abs=1e-11)
    assert personal == pytest.approx(own, rel=1e-8, abs=1e-11)


def minimum(hand: ByHand, lam: float, s: Vector) -> Vector:
    """argmin_W sum_k F_k(w_k) + lam/2 tr(W S^-1 W') of a regression: one linear system for all models together."""
    a, c = hand.normal()
    return np.linalg.solve(a + lam * np.kron(np.linalg.inv(s), np.eye(3)), c).reshape(-1, 3)


BIG = (30, 20, 40, 25)  # so many samples that no direction is flat, and few rounds are enough


def test_with_given_relations_it_converges_to_the_minimum_of_the_convex_problem() -> None:
    hand = ByHand(problem(1, BIG))
    sim = simulate(mocha(0.05, every=10**9), hand.fed, rounds=100, lr=0.5, decay=1.0)
    assert models(sim)[1] == pytest.approx(minimum(hand, 0.05, np.eye(4) / 4), rel=1e-6)


def test_with_learned_relations_models_and_relations_are_each_the_best_for_the_other() -> None:
    hand = ByHand(problem(2, BIG))
    sim = simulate(mocha(0.05, every=15, eps=0.1), hand.fed, rounds=300, lr=0.5, decay=1.0)
    s = sim.server.state["relations"].numpy()
    assert models(sim)[1] == pytest.approx(minimum(hand, 0.05, s), rel=1e-5)
    assert s == pytest.approx(root_of(models(sim)[1].T, 0.1), rel=1e-9)
    assert np.trace(s) == pytest.approx(1.0, rel=1e-12)


def test_absent_clients_keep_their_models_and_the_minimum_is_the_same() -> None:
    hand, rule = ByHand(problem(3, BIG)), Relations(0.05, every=10**9)
    own, w = torch.from_numpy(np.stack([START] * 4)), torch.from_numpy(START)
    state, rng = rule.init(w), np.random.default_rng(0)
    for t in range(300):
        drawn = list(range(4)) if t == 0 else sorted(rng.choice(4, 2, replace=False).tolist())
        updates = np.stack([0.5 * hand.gradient(own[k].numpy(), hand.samples(k)) for k in drawn])
        ids, sizes = torch.tensor(drawn), torch.ones(len(drawn))
        out = rule(Cohort(ids, w, torch.from_numpy(updates), sizes, lr=0.5, round=t, n_clients=4), state)
        assert out.downloads is not None
        absent = [k for k in range(4) if k not in drawn]
        before, own, state, w = own.clone(), own.clone(), out.state, w - out.direction
        own[ids] += out.downloads
        assert torch.equal(own[absent], before[absent]) and torch.equal(own, state["models"])
    assert own.numpy() == pytest.approx(minimum(hand, 0.05, np.eye(4) / 4), rel=1e-6)
    assert w.numpy() == pytest.approx(own.numpy().mean(0), rel=1e-12)


def test_lam_0_is_local_training() -> None:
    coupled = simulate(mocha(0.0, steps=2), problem(4))  # two epochs of one full batch
    assert models(coupled)[1] == pytest.approx(models(simulate(local(), problem(4), batch=0))[1], rel=1e-12)


def test_clients_of_the_same_kind_become_related_and_others_do_not() -> None:
    g = Stream(6).torch()
    truth = torch.tensor([[2.0, 0, 1], [2.0, 0, 1], [0, -2.0, 0.5], [0, -2.0, 0.5]], dtype=torch.float64)
    x = torch.randn((80, 3), generator=g, dtype=torch.float64)
    y = (x * truth.repeat_interleave(20, 0)).sum(1, keepdim=True)
    parts = Split.of(list(torch.split(torch.arange(80), 20)))
    fed = Federation(Dataset("r", x, y, 0), dict.fromkeys(("train", "validation", "test"), parts))
    s = simulate(mocha(0.01), fed, rounds=100, lr=0.3, decay=1.0).server.state["relations"]
    correlation = s / s.diagonal().sqrt()[:, None] / s.diagonal().sqrt()
    assert min(correlation[0, 1], correlation[2, 3]) > 0.7
    assert correlation[:2, 2:].abs().max() < 0.3


def test_related_clients_learn_from_each_other() -> None:
    """A client with two samples for three weights, and one of the same kind with many."""
    g, truth = Stream(7).torch(), torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    x = torch.randn((62, 3), generator=g, dtype=torch.float64)
    parts = Split.of([torch.arange(2), torch.arange(2, 32), torch.arange(32, 62)])
    fed = Federation(Dataset("r", x, (x @ truth)[:, None], 0), dict.fromkeys(("train", "validation", "test"), parts))
    away = []
    for method in (mocha(0.01, steps=2), local()):
        own = models(simulate(method, fed, rounds=120, batch=0, lr=0.3, decay=1.0))[1]
        away.append(np.linalg.norm(own[0] - truth.numpy()))
    assert away[0] < 0.5 * away[1]


def test_the_servers_copies_are_the_clients_models_to_the_bit() -> None:
    sim = simulation(mocha(0.1, every=2), run=Run(dtype="float32"))
    for _ in range(5):
        sim.step()
    found = sim.personal()
    assert found is not None and torch.equal(found[1], sim.server.state["models"])


def test_a_newcomer_starts_from_the_initial_model_and_is_related_to_nobody() -> None:
    rule, full = Relations(0.1, every=1), some_cohort(5, 6, seed=1)
    start = full.start
    early = replace(full, ids=full.ids[:3], updates=full.updates[:3], sizes=full.sizes[:3], losses=None)
    state = rule(early, rule.init(start)).state
    late = replace(full, ids=full.ids[3:], updates=full.updates[3:], sizes=full.sizes[3:], losses=None, round=1)
    out = Relations(0.1, every=10**9)(late, state)
    assert out.downloads is not None
    s = out.state["relations"]
    assert torch.equal(s[:3, 3:], torch.zeros((3, 2), dtype=s.dtype))
    assert float(s.trace()) == pytest.approx(1.0, rel=1e-12)
    shrunk = (start - full.updates[3:]) / (1 + 0.1 * 0.1 * 5)
    assert torch.allclose(start + out.downloads, shrunk, rtol=1e-12)


def test_relations_have_no_scale_and_are_defined_for_models_that_are_all_zero() -> None:
    w = torch.randn((4, 6), generator=Stream(3).torch(), dtype=torch.float64)
    assert torch.allclose(related(w, 1e-3), related(1e30 * w, 1e-3), rtol=1e-9)
    assert torch.allclose(related(0 * w, 1e-3), torch.eye(4, dtype=torch.float64) / 4)
    assert bool(torch.isfinite(related((1e30 * w).float(), 1e-3)).all())


def test_huge_updates_and_a_single_client_stay_finite() -> None:
    one = some_cohort(1, 6, dtype=torch.float32)
    for cohort in (one, replace(some_cohort(5, 6, dtype=torch.float32), updates=torch.full((5, 6), 1e30))):
        out = Relations(every=1)(cohort, Relations().init(cohort.start))
        assert out.downloads is not None
        assert bool(torch.isfinite(out.direction).all()) and bool(torch.isfinite(out.downloads).all())
        assert all(bool(torch.isfinite(t).all()) for t in out.state.values())


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_models_with_hidden_layers_are_refused_if_asked_and_otherwise_told_of(executor: str) -> None:
    run = Run(dtype="float64", executor=executor)  # type: ignore[arg-type]
    with pytest.raises(EquipoiseError, match="mocha: the model has hidden layers"):
        simulation(mocha(models="convex"), model="mlp", hidden=(4,), run=run).step()
    assert "not convex" in simulation(mocha(), model="mlp", hidden=(4,), run=run).step().info["reason"]
    assert "reason" not in simulation(mocha(models="convex"), run=run).step().info


def test_a_round_that_the_server_skips_is_forgotten_by_clients_too() -> None:
    sim = simulation(mocha(0.1), attack=SendNaN(count=1), admission=Admission(quorum=4))
    assert sim.step().skipped
    found = sim.personal()
    assert found is not None and torch.equal(found[1], sim.simulator.w0.expand_as(found[1]))


def test_what_makes_no_sense_is_refused() -> None:
    for bad, what in (({"lam": -1.0}, "lam"), ({"every": 0}, "every"), ({"eps": 0.0}, "eps"), ({"steps": 0}, "steps")):
        with pytest.raises(EquipoiseError, match=f"mocha: {what} is"):
            mocha(**bad)
    with pytest.raises(EquipoiseError, match="mocha: models is 'deep'"):
        Method("m", OwnTask(models="deep"))  # type: ignore[arg-type]
