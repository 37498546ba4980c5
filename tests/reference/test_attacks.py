"""Forged, marked and claimed numbers against the equations written out with loops, in float64 and to 1e-9."""

from collections.abc import Mapping
from dataclasses import replace
from math import floor, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from equipoise.attacks.alie import ALIE
from equipoise.attacks.backdoor import Backdoor
from equipoise.attacks.free_rider import FreeRider
from equipoise.attacks.ipm import IPM
from equipoise.attacks.lie_loss import LieLoss
from equipoise.attacks.lie_size import LieSize
from equipoise.attacks.mimic import Mimic
from equipoise.attacks.min_max import MinMax
from equipoise.attacks.min_sum import MinSum
from equipoise.streams import Stream
from equipoise.threat import Attack, Claims, Forgery, Samples

Rows = NDArray[np.float64]
NUMBERS = {"h": st.integers(2, 9), "f": st.integers(1, 6), "d": st.integers(1, 7), "seed": st.integers(0, 10**6)}
P = st.sampled_from(["unit", "std", "sign"])


def updates(h: int, d: int, seed: int) -> Rows:
    return 0.3 + np.random.default_rng(seed).normal(size=(h, d)) * np.random.default_rng(seed + 1).uniform(0.1, 5, d)


def forgery(x: Rows, f: int, round: int = 0) -> Forgery:
    honest = torch.from_numpy(x)
    own = torch.zeros((f, x.shape[1]), dtype=torch.float64)
    mean = lambda sent: torch.cat([honest, sent]).mean(0)  # noqa: E731
    return Forgery(torch.arange(f), own, honest, round, 0.1, Stream(0), mean, f + torch.arange(len(x)))


def next_round(attack: Attack, seen: Forgery, memory: Mapping[str, torch.Tensor]) -> Forgery:
    """What `corrupt` sees in a round after which `memory` was all that was known."""
    return replace(seen, memory=attack.remember(replace(seen, memory=memory)))


def close(sent: torch.Tensor, f: int, row: Rows) -> None:
    assert sent.shape == (f, len(row))
    assert np.allclose(sent.numpy(), np.tile(row, (f, 1)), rtol=1e-9, atol=1e-9)


def mean_and_deviation(x: Rows) -> tuple[Rows, Rows]:
    h, d = x.shape
    mu, sigma = np.zeros(d), np.zeros(d)
    for j in range(d):
        mu[j] = sum(x[i, j] for i in range(h)) / h
        sigma[j] = sqrt(sum((x[i, j] - mu[j]) ** 2 for i in range(h)) / h)
    return mu, sigma


def perturbation(x: Rows, kind: str) -> Rows:
    mu, sigma = mean_and_deviation(x)
    if kind == "unit":
        return -mu / sqrt(sum(m * m for m in mu))
    return -sigma if kind == "std" else np.array([-1.0 if m > 0 else 1.0 for m in mu])


def squared(v: Rows) -> float:
    return float(sum(n * n for n in v))


def halved(fits: Any) -> float:
    """The largest gamma for which it fits, by doubling and then by halving the interval, as the paper looks for it."""
    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# ------------------------------------------------------------------------------------------------------------- forged


@given(**NUMBERS)
def test_alie(h: int, f: int, d: int, seed: int) -> None:
    x, n = updates(h, d, seed), h + f
    mu, sigma = mean_and_deviation(x)
    s = floor(n / 2 + 1) - f
    share = (n - f - s) / (n - f)
    share = 0.5 / h if share <= 0 else 1 - 0.5 / h if share >= 1 else share
    z = NormalDist().inv_cdf(share)
    close(ALIE(count=1).corrupt(forgery(x, f)), f, mu - z * sigma)
    close(ALIE(count=1, z=1.5).corrupt(forgery(x, f)), f, mu - 1.5 * sigma)


@given(**NUMBERS, epsilon=st.sampled_from([0.0, 0.1, 1.0, 100.0]))
def test_ipm(h: int, f: int, d: int, seed: int, epsilon: float) -> None:
    x = updates(h, d, seed)
    close(IPM(count=1, epsilon=epsilon).corrupt(forgery(x, f)), f, -epsilon * mean_and_deviation(x)[0])


@given(**NUMBERS, kind=P)
def test_min_max(h: int, f: int, d: int, seed: int, kind: Any) -> None:
    x = updates(h, d, seed)
    mu, p = mean_and_deviation(x)[0], perturbation(x, kind)
    largest = max(squared(x[i] - x[j]) for i in range(h) for j in range(h))
    gammas = []
    for i in range(h):
        a, b, c = squared(p), float((mu - x[i]) @ p), squared(mu - x[i])
        gammas.append((-b + sqrt(max(0.0, b * b - a * (c - largest)))) / a)
    close(MinMax(count=1, perturbation=kind).corrupt(forgery(x, f)), f, mu + min(gammas) * p)
    found = halved(lambda g: max(squared(mu + g * p - x[i]) for i in range(h)) <= largest)
    assert min(gammas) == pytest.approx(found, rel=1e-6, abs=1e-6)


@given(**NUMBERS, kind=P)
def test_min_sum(h: int, f: int, d: int, seed: int, kind: Any) -> None:
    x = updates(h, d, seed)
    mu, p = mean_and_deviation(x)[0], perturbation(x, kind)
    most = max(sum(squared(x[i] - x[j]) for j in range(h)) for i in range(h))
    gamma = sqrt((most - sum(squared(mu - x[i]) for i in range(h))) / (h * squared(p)))
    close(MinSum(count=1, perturbation=kind).corrupt(forgery(x, f)), f, mu + gamma * p)
    found = halved(lambda g: sum(squared(mu + g * p - x[i]) for i in range(h)) <= most)
    assert gamma == pytest.approx(found, rel=1e-6, abs=1e-6)


@given(
    h=st.integers(3, 9), f=st.integers(1, 6), d=st.integers(2, 7), seed=st.integers(0, 10**6), warmup=st.integers(1, 4)
)
def test_mimic(h: int, f: int, d: int, seed: int, warmup: int) -> None:
    attack, memory = Mimic(count=1, warmup=warmup), dict[str, torch.Tensor]()
    mu, v, copied = np.zeros(d), Stream(0).normal(torch.arange(d)).numpy(), -1
    for t in range(6):
        x = updates(h, d, seed + 10 * t)
        if t < warmup:
            now = mean_and_deviation(x)[0]
            mu = t / (1 + t) * mu + now / (1 + t)
            s = np.zeros(d)
            for i in range(h):
                s += float((x[i] - mu) @ v) * (x[i] - mu)
            s /= sqrt(squared(s))
            v = s if t == 0 else t / (1 + t) * v + s / (1 + t)
            v = v / sqrt(squared(v))
            out = [abs(float((x[i] - now) @ v)) for i in range(h)]
            copied = out.index(max(out))
        seen = next_round(attack, forgery(x, f, t), memory)
        memory = dict(seen.memory)
        assert np.allclose(memory["v"].numpy(), v, rtol=1e-9, atol=1e-9)
        assert int(memory["client"]) == f + copied
        assert ("mu" in memory) == (t + 1 < warmup)
        close(attack.corrupt(seen), f, x[copied])


@settings(max_examples=20)
@given(h=st.integers(3, 9), d=st.integers(2, 7), seed=st.integers(0, 10**6))
def test_mimic_finds_the_top_principal_direction_in_a_long_warm_up(h: int, d: int, seed: int) -> None:
    """The same updates again and again: then it is power iteration, and v the first eigenvector of their scatter."""
    x = updates(h, d, seed)
    mu = mean_and_deviation(x)[0]
    values, vectors = np.linalg.eigh(sum(np.outer(x[i] - mu, x[i] - mu) for i in range(h)))
    assume(values[-1] > 4 * values[-2])
    attack, memory = Mimic(count=1, warmup=60), dict[str, torch.Tensor]()
    for t in range(60):
        memory = dict(next_round(attack, forgery(x, 1, t), memory).memory)
    assert abs(float(memory["v"].numpy() @ vectors[:, -1])) > 0.95


@given(**NUMBERS)
def test_free_riders_that_disguise_themselves(h: int, f: int, d: int, seed: int) -> None:
    unit = FreeRider(count=1, kind="disguised", sigma=1.0).corrupt(forgery(updates(h, d, seed), f, round=1))
    attack, memory = FreeRider(count=1, kind="disguised", gamma=0.5), dict[str, torch.Tensor]()
    level = 0.0
    for round in range(5):
        x = updates(h, d, seed + 10 * round)
        if round == 0:
            level = sum(abs(sum(x[i, j] for i in range(h)) / (h + f)) for j in range(d)) / d
        seen = next_round(attack, forgery(x, f, round), memory)
        memory = dict(seen.memory)
        sigma = level * round**-0.5 if round else 0.0
        assert torch.allclose(attack.corrupt(seen), sigma * unit, rtol=1e-9)
    x = updates(h, d, seed)
    for round, expected in ((0, 3.0), (1, 3.0), (4, 3.0 * 4**-0.5)):
        sent = FreeRider(count=1, kind="disguised", sigma=3.0, gamma=0.5).corrupt(forgery(x, f, round))
        assert torch.allclose(sent, expected * unit, rtol=1e-9)
    assert not FreeRider(count=1, kind="unchanged").corrupt(forgery(x, f)).any()


# ------------------------------------------------------------------------------------------------------------- marked


@given(
    shape=st.sampled_from([(3, 4, 5), (1, 8, 8), (6, 6), (9,)]),
    size=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 1000),
)
def test_backdoor(shape: tuple[int, ...], size: int, share: float, seed: int) -> None:
    g = np.random.default_rng(seed)
    x, y = g.uniform(0, 0.9, (12, *shape)), g.integers(0, 4, 12)
    number = torch.arange(12)
    samples = Samples(torch.from_numpy(x), torch.from_numpy(y), number // 5, number, 4)
    attack, stream = Backdoor(count=1, label=2, size=size, share=share), Stream(seed)
    coin = stream.uniform(samples.client, samples.index).tolist()

    def marked(image: Rows) -> Rows:
        out = image.copy()
        for place in np.ndindex(*shape):
            sides = list(zip(place, shape, strict=True))[-2:]
            if all(at >= length - size for at, length in sides):
                out[place] = 1.0
        return out

    poisoned = attack.poison(samples, stream)
    for i in range(12):
        chosen = coin[i] < share
        assert np.array_equal(poisoned.x[i].numpy(), marked(x[i]) if chosen else x[i])
        assert int(poisoned.y[i]) == (2 if chosen else y[i])
    aimed = attack.target(samples)
    others = [i for i in range(12) if y[i] != 2]
    assert aimed.index.tolist() == others and set(aimed.y.tolist()) <= {2}
    assert all(np.array_equal(aimed.x[k].numpy(), marked(x[i])) for k, i in enumerate(others))


# ------------------------------------------------------------------------------------------------------------ claimed


@given(
    claim=st.sampled_from(["huge", "zero"]) | st.floats(0, 1e6),
    sizes=st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
)
def test_claims(claim: Any, sizes: list[int]) -> None:
    losses = [0.5 * n + 0.1 for n in sizes]
    truth = Claims(
        torch.tensor(sizes),
        torch.tensor(losses, dtype=torch.float64),
        {n: torch.tensor(losses) for n in ("gap", "other")},
    )
    of_loss = LieLoss(count=1, claim=claim).lie(truth, Stream(0))
    of_size = LieSize(count=1, claim=claim).lie(truth, Stream(0))
    assert of_loss.losses is not None
    for k in range(len(sizes)):
        expected = 1e30 if claim == "huge" else 0.0 if claim == "zero" else claim * losses[k]
        assert float(of_loss.losses[k]) == pytest.approx(expected, rel=1e-9)
        assert float(of_loss.signals["gap"][k]) == pytest.approx(expected, rel=1e-5)
        size = 2**53 if claim == "huge" else 0 if claim == "zero" else round(claim * sizes[k])
        assert int(of_size.sizes[k]) == pytest.approx(size, rel=1e-9)
    assert torch.equal(of_loss.sizes, truth.sizes) and torch.equal(of_loss.signals["other"], truth.signals["other"])
    assert of_size.losses is truth.losses and of_size.signals is truth.signals
