"""What rules that call themselves robust must stand, over every such rule there is. A new one joins by being there.

Without an entry in CLAIMS a robust rule claims that a few rows at 1e30 leave its step no longer than ten times the
longest honest update. An entry claims more, or less and then says why. The constants kappa are those of Allouah,
Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by mixing: a recipe for optimal Byzantine ML under
heterogeneity", AISTATS 2023: for every set S of n - f clients, whoever the others are,

    ||F(u) - mean_S||^2 <= kappa 1/(n - f) sum_{k in S} ||u_k - mean_S||^2
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import contract, registry
from equipoise.core import Chain, Cohort, ServerRule, chain
from equipoise.streams import Stream


@dataclass(frozen=True)
class Claim:
    """What a rule stands. within: "range", the smallest and largest honest value of every coordinate; "ball", ten times
    the longest honest update; or "" and why not. kappa: its constant, given n and f, and `least` clients for an f.
    equivariant: shifted or scaled updates give a shifted or scaled step.
    """

    within: str = "ball"
    why: str = ""
    kappa: Callable[[int, int], float] | None = None
    least: Callable[[int], int] = lambda f: 2 * f + 1
    equivariant: bool = False


def ratio(n: int, f: int) -> float:
    return f / (n - 2 * f)


def of_medians(n: int, f: int) -> float:
    return 4 * (1 + ratio(n, f)) ** 2


def of_trimming(n: int, f: int) -> float:
    return 6 * ratio(n, f) * (1 + ratio(n, f))


def of_krum(n: int, f: int) -> float:
    """6 (1 + f/(n-2f)) = 6 (n-f)/(n-2f) is for n - f neighbours, oneself included. Of Blanchard's n - f - 2 others and
    oneself at least n - 2f - 1 are in S, and the same proof ends with that number in place of n - 2f.
    """
    return 6 * (n - f) / (n - 2 * f - 1)


CLAIMS = {
    "coordinate-median": Claim("range", kappa=of_medians, equivariant=True),
    "trimmed-mean": Claim("range", kappa=of_trimming, equivariant=True),
    "krum": Claim("range", kappa=of_krum, least=lambda f: 2 * f + 3, equivariant=True),
    "multi-krum": Claim("range", least=lambda f: 2 * f + 3, equivariant=True),
    "bulyan": Claim("range", least=lambda f: 4 * f + 3, equivariant=True),
    "geometric-median": Claim(kappa=of_medians, equivariant=True),
    "fools-gold": Claim("", "one malicious client is as distinct as an honest one, and counts at any length"),
}
ROBUST = {n: e for n, e in registry.rules().items() if e.make().robust}
FIRM = [n for n in ROBUST if CLAIMS.get(n, Claim()).within]
WITH_KAPPA = [n for n, c in CLAIMS.items() if c.kappa]
PATTERNS = ["together", "apart", "opposite", "one coordinate"]


def made(name: str, f: int, **options: Any) -> ServerRule:
    """The rule for f malicious clients; a rule that has no f is as it is."""
    takes = {p.name for p in ROBUST[name].parameters}
    rule: ServerRule = ROBUST[name].make(**({"f": f} if "f" in takes else {}), **options)
    return rule


def exact(name: str, f: int) -> ServerRule:
    """As `made`, and iterated to the end."""
    return made(name, f, **({"iterations": 2000, "tolerance": 1e-10} if name == "geometric-median" else {}))


def direction(rule: ServerRule, updates: Tensor) -> Tensor:
    m, d = updates.shape
    seen = Cohort(torch.arange(m), updates.new_zeros(d), updates, torch.full((m,), 5))
    return rule(seen, rule.init(seen.start)).direction


def forged(f: int, d: int, pattern: str, size: float, g: torch.Generator) -> Tensor:
    shape = {
        "together": torch.ones((f, d)),
        "apart": torch.randn((f, d), generator=g),
        "opposite": torch.tensor([1.0, -1.0]).repeat(f)[:f, None].expand(f, d),
        "one coordinate": torch.eye(d)[:1].expand(f, d),
    }[pattern]
    return size * shape


def rounds(name: str, f: int, seed: int, size: float, pattern: str) -> list[tuple[Tensor, Tensor]]:
    """Three rounds of 4f + 3 clients or more, f of them malicious: what was done, and the honest updates."""
    m = max(4 * f + 3, 9)
    rule, g, out = made(name, f), Stream(seed).torch(), []
    bad = torch.randperm(m, generator=g)[:f]
    state = rule.init(contract.sample_cohort(seed, k=m, dtype=torch.float32).start)
    for r in range(3):
        cohort = contract.sample_cohort(seed + r, k=m, dtype=torch.float32)
        updates = cohort.updates.clone()
        updates[bad] = forged(f, updates.shape[1], pattern, size, g)
        ids = torch.arange(m)
        found = rule(replace(cohort, ids=ids, updates=updates, round=r, n_clients=m), state)
        state = found.state
        assert all(bool(torch.isfinite(t).all()) for t in state.values()), "state: not finite"
        out.append((found.direction, updates[~torch.isin(ids, bad)]))
    return out


@pytest.mark.parametrize("name", FIRM)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    f=st.integers(1, 3),
    size=st.sampled_from([1e30, -1e30, 1e12]),
    pattern=st.sampled_from(PATTERNS),
)
def test_f_rows_at_1e30_do_not_carry_the_step_away(name: str, seed: int, f: int, size: float, pattern: str) -> None:
    for found, honest in rounds(name, f, seed, size, pattern):
        assert bool(torch.isfinite(found).all()), name
        assert float(found.double().norm()) <= 10 * float(honest.double().norm(dim=1).max()), name
        if CLAIMS.get(name, Claim()).within == "range":
            assert bool((found >= honest.min(0).values - 1e-5).all() and (found <= honest.max(0).values + 1e-5).all())


@pytest.mark.parametrize("name", [n for n in ROBUST if n not in FIRM])
def test_a_rule_that_claims_less_does_break(name: str) -> None:
    assert CLAIMS[name].why
    assert float(rounds(name, 1, 0, 1e30, "together")[0][0].double().norm()) > 1e20, "CLAIMS could say more of it"


def test_every_claim_is_that_of_a_robust_rule_there_is() -> None:
    assert set(CLAIMS) <= set(ROBUST)


# ------------------------------------------------------------------------------------------ (f, kappa)-robustness


@st.composite
def small_cohorts(draw: st.DrawFn, least: Callable[[int], int]) -> tuple[Tensor, int]:
    """Few clients in few dimensions: spread out, on a lattice, in two groups, or with f of them far away."""
    f = draw(st.integers(0, 2))
    n, d = least(f) + draw(st.integers(0, 3)), draw(st.integers(1, 4))
    g = Stream(draw(st.integers(0, 10**6))).torch()
    updates = torch.randn((n, d), generator=g, dtype=torch.float64)
    kind = draw(st.sampled_from(["spread", "lattice", "groups", "far"]))
    if kind == "lattice":
        updates = updates.round()
    if kind == "groups":
        updates = 0.1 * updates + (torch.arange(n) % 2)[:, None] * draw(st.sampled_from([1.0, 10.0]))
    if kind == "far":
        updates[:f] += draw(st.sampled_from([3.0, 30.0, 1e6]))
    return updates, f


def excess(found: Tensor, updates: Tensor, f: int, kappa: float) -> float:
    """How far the inequality is from holding for the worst set of honest clients, relative to its scale."""
    worst = -torch.inf
    for honest in combinations(range(len(updates)), len(updates) - f):
        u = updates[list(honest)]
        spread = float((u - u.mean(0)).square().sum(1).mean())
        away = float((found - u.mean(0)).square().sum())
        worst = max(worst, away - kappa * spread - 1e-8 * (1 + spread))
    return worst


@pytest.mark.parametrize("name", WITH_KAPPA)
@settings(max_examples=60)
@given(data=st.data())
def test_kappa_bounds_the_error_whoever_the_honest_are(name: str, data: st.DataObject) -> None:
    claim = CLAIMS[name]
    updates, f = data.draw(small_cohorts(claim.least))
    assert claim.kappa is not None
    kappa = claim.kappa(len(updates), f)
    assert excess(direction(exact(name, f), updates), updates, f, kappa) <= 0, f"kappa = {kappa}"


@pytest.mark.parametrize("name", WITH_KAPPA)
@settings(max_examples=40)
@given(data=st.data())
def test_behind_nearest_neighbour_mixing_kappa_shrinks_with_the_share_of_the_malicious(
    name: str, data: st.DataObject
) -> None:
    claim = CLAIMS[name]
    updates, f = data.draw(small_cohorts(claim.least))
    n = len(updates)
    assert claim.kappa is not None
    kappa = 8 * f / (n - f) * (claim.kappa(n, f) + 1)
    rule = chain(registry.filters()["nnm"].make(f=f), exact(name, f))
    assert isinstance(rule, Chain)
    assert excess(direction(rule, updates), updates, f, kappa) <= 0, f"kappa = {kappa}"


def test_the_mean_has_no_kappa() -> None:
    updates = torch.randn((5, 3), generator=Stream(0).torch(), dtype=torch.float64)
    updates[0] += 1e6
    mean = direction(registry.rules()["weighted-mean"].make(weights="uniform"), updates)
    assert excess(mean, updates, 1, 1000.0) > 0


# --------------------------------------------------------------------------------------------------- equivariance


@pytest.mark.parametrize("name", [n for n, c in CLAIMS.items() if c.equivariant])
@settings(max_examples=25)
@given(data=st.data(), scale=st.sampled_from([0.25, 4.0, 1024.0]), shift=st.sampled_from([0.0, -3.0, 64.0]))
def test_shifted_and_scaled_updates_give_a_shifted_and_scaled_step(
    name: str, data: st.DataObject, scale: float, shift: float
) -> None:
    f = data.draw(st.integers(0, 2))
    m = 4 * f + 3 + data.draw(st.integers(0, 3))
    g = Stream(data.draw(st.integers(0, 10**6))).torch()
    updates = torch.randn((m, 5), generator=g, dtype=torch.float64)
    plain, moved = direction(exact(name, f), updates), direction(exact(name, f), scale * updates + shift)
    assert moved.tolist() == pytest.approx((scale * plain + shift).tolist(), rel=1e-6, abs=1e-6 * scale)
    turned = direction(exact(name, f), -updates)
    assert turned.tolist() == pytest.approx((-plain).tolist(), rel=1e-6, abs=1e-6)
