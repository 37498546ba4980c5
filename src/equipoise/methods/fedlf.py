"""A direction that no client has reason to oppose in any layer of the model, and that evens out clients' losses.

Pan, Li, Yu, Wang, Wang, Tang, Zhao, "FedLF: layer-wise fair federated learning", AAAI 2024, Algorithm 1 and
Equations 4 to 8.

    client:  u_k = w - w_k after local training, a pseudo-gradient; F_k, its loss at w
    row P:   u_P = sum_k h_k u_k,  h = the gradient of -cos(1, F) by F = (cos(1, F) F/||F|| - 1/sqrt(K)) / ||F||
    absent:  u_j = lr g_j,  g_j = j's last update / the lr of that round, for every j that is not in this round t but
             was in one of t - tau .. t - 1;  tau = M / K, M clients seen so far (this round's too), K in this round
    layer l: d_l = the shortest vector in the convex hull of all u_k,l, u_P,l and u_j,l
    merge:   while some ||d_l|| <= 1e-6 mean_k ||u_k,l||: join l with the next layer, the last one with the one before
    server:  w <- w - d ||mean_k u_k|| / ||d||,  d = all d_l

Then u_k,l . d_l > 0 wherever u_k,l is not zero, for every client in every layer or group of merged layers; within a
merged group the guarantee is the group's, not each layer's. If all layers are merged and d is still zero, the model is
Pareto stationary for this cohort and stays as it is. `stop` then ends the run, as the paper does; any one client could
bring that about, by sending minus the mean of the others.

The paper's ablations are `ablation = "M1"` to `"M8"`. They set: M1 direction = "mean"; M2 layer = "model"; M3 layer =
"fragments"; M4 fair = "none"; M5 fair = "fedmdfg"; M6 absent = "none"; M7 absent = "last"; M8 absent = "all".

Departures: (1) `normalise_rows`, on by default: in each layer or group, the hull's rows are first scaled to the mean
length of the cohort's rows, the row P being made of scaled ones. The equations do not say so, but the authors' program
does it and the published numbers need it. (2) Rows of length zero are left out: no direction can oppose them, and by
the letter a client without data would stop everyone. So is the row P where losses are equal, or all zero, to 1e-6.
(3) At most `cap` clients, the newest, are remembered: a row of d numbers each. (4) FedMDFG's objective (M5) is FedLF's
h at length 1, used only where the angle between F and 1 is above `theta`; with normalise_rows that threshold is all
that sets it apart. (5) The fragments of M3 are equal pieces of the parameter vector; the paper gives no number of them,
ours is that of the layers. (6) `grad = "full"`, one step along the exact gradient, is what the authors' program does in
place of a local epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise import history
from equipoise.core import (
    SGD,
    Cohort,
    EquipoiseError,
    Method,
    Outcome,
    ServerRule,
    State,
    WeightedMean,
)
from equipoise.layout import joined
from equipoise.methods._rows import ZERO, Table, whole
from equipoise.methods.fedsgd import FedSGD
from equipoise.questions import answer, near
from equipoise.solvers import Bools, Floats, Ints, min_norm

Layer = Literal["module", "tensor", "model", "fragments"]
Fair = Literal["cos", "fedmdfg", "none"]
Absent = Literal["recent", "last", "all", "none"]
Ablation = Literal["M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8"]

_ABLATIONS: Mapping[Ablation, Mapping[str, Any]] = {
    **{"M1": {"direction": "mean"}, "M2": {"layer": "model"}, "M3": {"layer": "fragments"}, "M4": {"fair": "none"}},
    **{"M5": {"fair": "fedmdfg"}, "M6": {"absent": "none"}, "M7": {"absent": "last"}, "M8": {"absent": "all"}},
}


@dataclass(frozen=True)
class FedLF(ServerRule):
    """layer: what gets a direction of its own: a "module", a "tensor", the "model", or each of some "fragments" of
    equal size. fragments: how many with layer = "fragments", 1 or more; left out: as many as modules. normalise_rows:
    whether updates are scaled to their mean length, layer by layer, before the search. fair: the objective beside the
    clients': "cos", the angle between the losses and equal ones; "fedmdfg", likewise, but only where it is above theta;
    or "none". theta: the angle that "fedmdfg" tolerates, in radians from 0 to pi/2. absent: whose last update counts
    too: "recent", those of clients drawn in the last M/K rounds (M clients seen, K in a round); "last", in the last
    one; "all" or "none". cap: how many clients are remembered, 0 or more. stop: whether the run ends at a Pareto
    stationary model.
    """

    layer: Layer = "module"
    fragments: int | None = None
    normalise_rows: bool = True
    fair: Fair = "cos"
    theta: float = math.pi / 16
    absent: Absent = "recent"
    cap: int = 200
    stop: bool = False
    per_client = True
    early = True

    def __post_init__(self) -> None:
        _one_of("layer", self.layer, ("module", "tensor", "model", "fragments"))
        _one_of("fair", self.fair, ("cos", "fedmdfg", "none"))
        _one_of("absent", self.absent, ("recent", "last", "all", "none"))
        if self.fragments is not None and self.fragments < 1:
            raise EquipoiseError(f"fedlf: fragments is {self.fragments}", "1 or more; leave it out for one per layer")
        if not 0 <= self.theta <= math.pi / 2:
            raise EquipoiseError(f"fedlf: theta is {self.theta}", "radians from 0 to pi/2; 0 always evens losses out")
        if self.cap < 0:
            raise EquipoiseError(f"fedlf: cap is {self.cap}", "clients to remember, 0 or more; 0 is absent = none")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self.fair == "none" else frozenset({"losses"})

    def init(self, w: Tensor) -> State:
        memory = history.blank(lr=torch.ones((), dtype=torch.float64))
        gram = torch.empty((0, 0, 0), dtype=torch.float64)
        return {**memory, "rows": w.new_empty((0, *w.shape)), "gram": gram, "seen": memory["ids"]}

    @np.errstate(all="ignore")  # what is not a number loses every comparison, as in torch
    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        layers, k = self._layers(cohort), len(cohort)
        table, slices = Table(cohort.updates, state["rows"]), list(layers.values())
        asked = table.products(slices), _norm(cohort.updates.mean(0)), self._losses(cohort)
        # Who is who and where to go is decided in host memory, where all but the rows stays. A GPU is asked once, and
        # what needs no answer comes before that.
        known, ids = {n: t if n == "rows" else t.cpu() for n, t in state.items()}, near(cohort.ids)
        seen = _joint(known["seen"], ids)
        absent = history.absent(known, ids, self._since(cohort, len(seen))).numpy().nonzero()[0]
        stay, memory = self._remembered(cohort, ids, known)
        new, size, losses = answer(*asked)
        gram, h = whole(new, known["gram"].numpy()), self._h(losses)
        after = {**memory, "gram": torch.from_numpy(_among(gram, stay)), "seen": seen}
        at = np.concatenate([np.arange(k), k + absent])
        scale = np.concatenate([np.ones(k), cohort.lr / known["lr"].numpy()[absent]])
        among = _among(gram, at) * scale[:, None] * scale
        groups, shortest = _joined(among, k, h, self.normalise_rows)
        names = ["+".join(list(layers)[i] for i in group) for group in groups]
        info = {
            "absent": len(absent),
            "fair_row": h is not None,
            "merged": [name for name, group in zip(names, groups, strict=True) if len(group) > 1],
            "group_conflicts": dict(zip(names, shortest.against.tolist(), strict=True)),
        }
        if size == 0 or shortest.zero.any():
            zero, reason = torch.zeros_like(cohort.start), "Pareto stationary: some mixture of the updates is zero"
            return Outcome(zero, after, stop=reason if self.stop else None, info={**info, "reason": reason})
        weights = np.zeros(gram.shape[:2])
        weights[:, at] = shortest.weights[[g for g, group in enumerate(groups) for _ in group]] * scale
        d = table.mixture(slices, torch.from_numpy(weights))
        length = _norm(d)
        d *= torch.where(length > 0, float(size) / length, 1.0)  # what rounds to zero is zero
        return Outcome(d, after, info=info)

    def _layers(self, cohort: Cohort) -> dict[str, list[slice]]:
        d = len(cohort.start)
        if self.layer == "model" or cohort.layout.size == 0:
            return {"model": [slice(0, d)]}
        if self.layer != "fragments":
            return {name: joined(parts) for name, parts in cohort.layout.layers(self.layer).items()}
        n = min(d, self.fragments or len(cohort.layout.layers()))
        return {f"fragment{i + 1}": [slice(i * d // n, (i + 1) * d // n)] for i in range(n)}

    def _losses(self, cohort: Cohort) -> Tensor:
        if self.fair == "none":
            return cohort.updates.new_empty(0)
        if cohort.losses is None:
            raise EquipoiseError("fedlf: the cohort has no losses", 'fair = "none" does without')
        return cohort.losses

    def _h(self, f: Floats) -> Floats | None:
        """[K]: how the fairness objective's gradient is made of the clients'; None where it has none."""
        length = float(np.linalg.norm(f))
        if length == 0:
            return None
        p = np.full_like(f, len(f) ** -0.5)
        cos = float(f @ p) / length
        off: Floats = cos * f / length - p
        sin = float(np.linalg.norm(off))
        if sin <= ZERO or (self.fair == "fedmdfg" and math.atan2(sin, cos) <= self.theta):
            return None
        return off / (length if self.fair == "cos" else sin)

    def _since(self, cohort: Cohort, seen: int) -> float:
        """The round from which on an absent client counts."""
        return {"recent": cohort.round - seen / len(cohort), "last": cohort.round - 1}.get(self.absent, 0)

    def _remembered(self, cohort: Cohort, ids: Tensor, known: State) -> tuple[Ints, State]:
        """Updates as they were sent, so that their products with each other need not be computed again; and which."""
        cap, since = (0 if self.absent == "none" else self.cap), (cohort.round if self.absent == "last" else 0)
        lr = known["lr"].new_full((len(cohort),), cohort.lr)
        at = history.kept(known, ids, cohort.round, cap, since)
        return at.numpy(), history.moved(known, ids, cohort.round, at, rows=cohort.updates, lr=lr)


# ------------------------------------------------------------------------------------------------ the shortest vectors


class _Shortest(NamedTuple):
    """The shortest vectors of g hulls: weights [g, n] of the rows, whether it is zero, how many clients oppose it."""

    weights: Floats
    zero: Bools
    against: Ints


def _shortest(gram: Floats, k: int, h: Floats | None, normalise: bool) -> _Shortest:
    """For g hulls of n rows, of which the first k are online clients and make the fair row: gram [g, n, n]."""
    length = np.sqrt(np.maximum(gram.diagonal(axis1=1, axis2=2), 0.0))
    mean, real = length[:, :k].mean(-1, keepdims=True), length > 0
    scale = np.where(real, mean / np.where(real, length, 1.0), 0.0) if normalise else np.ones_like(length)
    hull = gram * scale[..., None] * scale[:, None]
    fair = np.zeros((len(gram), k))
    if h is not None:
        fair = h * scale[:, :k]
        along = np.einsum("gk,gkn->gn", fair, gram[:, :k])
        long = np.sqrt(np.maximum((along[:, :k] * fair).sum(-1, keepdims=True), 0.0))
        real = long > ZERO * (np.abs(fair) * length[:, :k]).sum(-1, keepdims=True)
        fit = np.where(real, mean / np.where(real, long, 1.0) if normalise else 1.0, 0.0)
        fair, first = fair * fit, np.concatenate([(long * fit) ** 2, along * fit * scale], -1)
        hull = whole(first[:, None], hull)
    w = min_norm(torch.from_numpy(hull), torch.from_numpy(hull.diagonal(axis1=1, axis2=2) > 0)).numpy()
    products = np.einsum("gmn,gn->gm", hull, w)
    square = np.maximum((w * products).sum(-1), 0.0)
    rows = slice(w.shape[1] - length.shape[1], None)  # all but the fair one, if there is one
    weights = w[:, rows] * scale
    weights[:, :k] += w[:, :1] * fair
    return _Shortest(weights, np.sqrt(square) <= ZERO * mean[:, 0], (products[:, rows][:, :k] < 0).sum(-1))


def _joined(gram: Floats, k: int, h: Floats | None, normalise: bool) -> tuple[list[list[int]], _Shortest]:
    """Layers, merged until none is zero or all are one; the products of merged layers are the sums of theirs."""
    groups = [[layer] for layer in range(len(gram))]
    found = _shortest(gram, k, h, normalise)
    while len(groups) > 1 and found.zero.any():
        at = min(int(found.zero.argmax()), len(groups) - 2)
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
        new = _shortest(gram[groups[at]].sum(0, keepdims=True), k, h, normalise)
        found = _Shortest(*(np.concatenate([a[:at], b, a[at + 2 :]]) for a, b in zip(found, new, strict=True)))
    return groups, found


def _among(gram: Floats, at: Ints) -> Floats:
    """The products [L, m, m] of the rows `at` with each other."""
    return gram.take(at, 1).take(at, 2)


def _joint(seen: Tensor, ids: Tensor) -> Tensor:
    """All clients seen so far, ascending."""
    old, new = seen.numpy(), ids.numpy()
    return seen if history.among(new, old).all() else torch.from_numpy(np.union1d(old, new))


def _norm(x: Tensor) -> Tensor:
    """The length, in float64 and where x is: to ask for the number makes a GPU wait."""
    length: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return length


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise EquipoiseError(f"fedlf: {name} is {value!r}", f"one of {', '.join(known)}")


def fedlf(
    grad: Literal["pseudo", "full"] = "pseudo",
    *,
    direction: Literal["hull", "mean"] = "hull",
    layer: Layer = "module",
    fragments: int | None = None,
    normalise_rows: bool = True,
    fair: Fair = "cos",
    theta: float = math.pi / 16,
    absent: Absent = "recent",
    cap: int = 200,
    stop: bool = False,
    ablation: Ablation | None = None,
) -> Method:
    """grad: what clients send: "pseudo", updates of local training, or "full", one step on all of their data.
    direction: "hull", the paper's, or "mean", the plain mean of updates, whatever else is set. ablation: one of the
    paper's, which overrides the option that it is about (direction, layer, fair or absent)."""
    _one_of("grad", grad, ("pseudo", "full"))
    _one_of("direction", direction, ("hull", "mean"))
    if ablation is not None:
        _one_of("ablation", ablation, tuple(_ABLATIONS))
    chosen: dict[str, Any] = {"direction": direction, "layer": layer, "fair": fair, "absent": absent}
    chosen |= _ABLATIONS[ablation] if ablation else {}
    mean = chosen.pop("direction") == "mean"
    rule = FedLF(fragments=fragments, normalise_rows=normalise_rows, theta=theta, cap=cap, stop=stop, **chosen)
    return Method("fedlf", FedSGD() if grad == "full" else SGD(), WeightedMean("uniform") if mean else rule)
