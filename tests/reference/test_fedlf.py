"""FedLF against a slow, literal transcription in numpy: one client, one layer, one round at a time."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from equipoise.core import Cohort
from equipoise.layout import Layout
from equipoise.methods.fedlf import FedLF
from equipoise.streams import Stream

LAYOUT = Layout.of({n: torch.empty(s) for n, s in {"a.weight": 9, "a.bias": 2, "b.weight": 14, "b.bias": 3}.items()})
CLIENTS, ROUNDS = 9, 4
Rows = np.ndarray


def shortest(rows: list[Rows]) -> Rows:
    """Problem (8): the dual QP, solved to machine precision by an active set method on the rows themselves."""
    x = np.array(rows)
    a = np.vstack([x.T / np.linalg.norm(x, axis=1).mean(), np.ones(len(x))])
    z, _ = nnls(a, np.r_[np.zeros(x.shape[1]), 1.0], maxiter=1000)
    return (z / z.sum()) @ x


def fair_weights(losses: Rows, fair: str, theta: float) -> Rows | None:
    """Equation (5), term by term; FedMDFG's h is minus the normalised projection of 1 onto the plane normal to F."""
    one, norm = np.ones(len(losses)), np.linalg.norm
    if fair == "cos":
        first = (losses @ one) * losses / (norm(one) * norm(losses))
        return (first - one * norm(losses) / norm(one)) / norm(losses) ** 2
    angle = math.acos(losses @ one / (norm(losses) * norm(one)))
    if fair == "none" or angle <= theta:
        return None
    projection = one / norm(one) - (losses @ one) / norm(one) * losses / norm(losses) ** 2
    return -projection / norm(projection)


def layer_direction(online: list[Rows], absent: list[Rows], h: Rows | None, normalise: bool) -> tuple[Rows, float]:
    """Equation (7), d_l with our sign, and the mean length of the online rows."""
    mean = float(np.mean([np.linalg.norm(r) for r in online]))

    def scaled(row: Rows) -> Rows:
        return row / np.linalg.norm(row) * mean if normalise else row

    hull = [scaled(r) for r in online]
    if h is not None:
        hull.append(scaled(sum(h[k] * hull[k] for k in range(len(online)))))
    return shortest(hull + [scaled(r) for r in absent]), mean


class Literal:
    """Algorithm 1, with what the server has to remember."""

    def __init__(self, rule: FedLF) -> None:
        self.rule, self.last = rule, {}

    def pieces(self) -> list[list[int]]:
        """The coordinates of each layer, in the model's order."""
        d, kind = LAYOUT.size, self.rule.layer
        if kind == "module":
            return [list(range(0, 11)), list(range(11, 28))]
        if kind == "tensor":
            return [list(range(0, 9)), list(range(9, 11)), list(range(11, 25)), list(range(25, 28))]
        if kind == "model":
            return [list(range(d))]
        n = self.rule.fragments or 2
        return [[i for i in range(d) if math.floor(j * d / n) <= i < math.floor((j + 1) * d / n)] for j in range(n)]

    def absent(self, ids: list[int], t: int) -> list[Rows]:
        rounds = {"recent": len({*self.last, *ids}) / len(ids), "last": 1, "all": math.inf, "none": 0}
        oldest = t - rounds[self.rule.absent]
        away = sorted(i for i in self.last if i not in ids)
        return [self.last[i][1] for i in away if self.last[i][0] >= oldest]

    def round(self, ids: list[int], updates: Mapping[int, Rows], losses: Rows, t: int, lr: float) -> Rows:
        rule = self.rule
        g = {i: updates[i] / lr for i in ids}
        absent = self.absent(ids, t)
        h = fair_weights(losses, rule.fair, rule.theta)
        groups = self.pieces()

        def solve(at: list[int]) -> tuple[Rows, bool]:
            d, mean = layer_direction([g[i][at] for i in ids], [a[at] for a in absent], h, rule.normalise_rows)
            return d, bool(np.linalg.norm(d) <= 1e-6 * mean)

        found = [solve(at) for at in groups]
        while len(groups) > 1 and any(zero for _, zero in found):
            i = next(i for i, (_, zero) in enumerate(found) if zero)
            i = i - 1 if i == len(groups) - 1 else i
            groups[i : i + 2] = [groups[i] + groups[i + 1]]
            found[i : i + 2] = [solve(groups[i])]
        self.last |= {i: (t, g[i]) for i in ids}
        d = np.zeros(LAYOUT.size)
        if found[0][1]:
            return d
        for at, (part, _) in zip(groups, found, strict=True):
            d[at] = part
        return lr * d / np.linalg.norm(d) * np.linalg.norm(sum(g[i] for i in ids) / len(ids))


def cohorts(seed: int) -> list[Cohort]:
    """Rounds of changing cohorts; the step size shrinks, rows have very different lengths."""
    g, out = Stream(seed).torch(), []
    common = torch.randn(LAYOUT.size, generator=g, dtype=torch.float64)
    for t in range(ROUNDS):
        k = int(torch.randint(2, 6, (), generator=g))
        ids = torch.randperm(CLIENTS, generator=g)[:k]
        rows = torch.randn((k, LAYOUT.size), generator=g, dtype=torch.float64) + 0.8 * common
        rows *= 10 ** (2 * torch.rand((k, 1), generator=g, dtype=torch.float64) - 3)
        losses = 0.05 + 2 * torch.rand(k, generator=g, dtype=torch.float64)
        sizes, start = torch.ones(k, dtype=torch.int64), torch.zeros(LAYOUT.size, dtype=torch.float64)
        lr = 0.1 * 0.7**t
        out.append(Cohort(ids, start, lr * rows, sizes, losses, layout=LAYOUT, round=t, lr=lr, n_clients=CLIENTS))
    return out


def compare(seed: int, **options: Any) -> list[dict[str, Any]]:
    rule = FedLF(**options)
    literal, state, infos = Literal(rule), rule.init(torch.zeros(LAYOUT.size, dtype=torch.float64)), []
    for c in cohorts(seed):
        ids = c.ids.tolist()
        updates = {i: u.numpy() for i, u in zip(ids, c.updates, strict=True)}
        assert c.losses is not None
        expected = literal.round(ids, updates, c.losses.numpy(), c.round, c.lr)
        outcome = rule(c, state)
        away = np.linalg.norm(outcome.direction.numpy() - expected)
        assert away <= 1e-9 * np.linalg.norm(c.updates.numpy().mean(0)), f"round {c.round}"
        state = outcome.state
        infos.append(dict(outcome.info))
    return infos


@pytest.mark.parametrize("absent", ["recent", "last", "all", "none"])
@pytest.mark.parametrize("layer", ["module", "tensor", "model", "fragments"])
@settings(max_examples=4)
@given(seed=st.integers(0, 10**6), fair=st.sampled_from(["cos", "fedmdfg", "none"]), normalise=st.booleans())
def test_every_option_is_the_equations(layer: str, absent: str, seed: int, fair: str, normalise: bool) -> None:
    compare(seed, layer=layer, absent=absent, fair=fair, normalise_rows=normalise)


@pytest.mark.parametrize("fragments", [1, 3, 7, 28])
def test_any_number_of_fragments_is_the_equations(fragments: int) -> None:
    compare(fragments, layer="fragments", fragments=fragments)


@pytest.mark.parametrize("theta", [0.0, 0.4, 1.5])
def test_any_threshold_of_fedmdfg_is_the_equations(theta: float) -> None:
    assert any(compare(1, fair="fedmdfg", theta=theta)[t]["fair_row"] for t in range(ROUNDS)) == (theta < 1.5)


def test_the_comparison_covers_merging_and_absent_clients() -> None:
    infos = [i for seed in range(6) for i in compare(seed, layer="tensor")]
    assert any(i["merged"] for i in infos) and any(not i["merged"] for i in infos)
    assert max(i["absent"] for i in infos) > 2
    assert any(i["fair_row"] for i in infos)
