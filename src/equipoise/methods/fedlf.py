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
from equipoise.solvers import min_norm

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
    """layer: what gets a direction of its own; fragments: how many pieces with layer = "fragments" (None: as many as
    layers). fair: the objective beside the clients'; theta: where "fedmdfg" uses it, in radians. absent: who counts
    without being there; cap: how many clients are remembered. stop: end the run at a Pareto stationary model.
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
        memory = history.blank(rows=w, lr=w.new_ones((), dtype=torch.float64))
        return {**memory, "gram": w.new_empty((0, 0, 0), dtype=torch.float64), "seen": memory["ids"]}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        layers, h, k = self._layers(cohort), self._h(cohort), len(cohort)
        # Who is who is decided in host memory, where all but the rows stays: a GPU would wait for every answer.
        known, ids = {name: t if name == "rows" else t.cpu() for name, t in state.items()}, cohort.ids.cpu()
        seen = torch.unique(torch.cat([known["seen"], ids]))
        absent = torch.nonzero(history.absent(known, ids, self._since(cohort, len(seen)))).flatten()
        table, slices = Table(cohort.updates, known["rows"]), list(layers.values())
        gram, size = _gram(table, slices, known["gram"])
        after = {**self._remembered(cohort, ids, known, gram), "seen": seen}

        at = torch.cat([torch.arange(k), k + absent])
        scale = torch.cat([known["lr"].new_ones(k), cohort.lr / known["lr"][absent]])
        groups, shortest = _joined(_among(gram, at) * scale[:, None] * scale, k, h, self.normalise_rows)
        names = ["+".join(list(layers)[i] for i in group) for group in groups]
        info = {
            "absent": len(absent),
            "fair_row": h is not None,
            "merged": [name for name, group in zip(names, groups, strict=True) if len(group) > 1],
            "group_conflicts": dict(zip(names, shortest.against.tolist(), strict=True)),
        }
        if size == 0 or bool(shortest.zero.any()):
            zero, reason = torch.zeros_like(cohort.start), "Pareto stationary: some mixture of the updates is zero"
            return Outcome(zero, after, stop=reason if self.stop else None, info={**info, "reason": reason})
        weights = gram.new_zeros(gram.shape[:2])
        weights[:, at] = shortest.weights[[g for g, group in enumerate(groups) for _ in group]] * scale
        d = table.mixture(slices, weights)
        length = _norm(d)
        return Outcome(d * torch.where(length > 0, size / length, 1.0), after, info=info)  # what rounds to zero is zero

    def _layers(self, cohort: Cohort) -> dict[str, list[slice]]:
        d = len(cohort.start)
        if self.layer == "model" or cohort.layout.size == 0:
            return {"model": [slice(0, d)]}
        if self.layer != "fragments":
            return {name: joined(parts) for name, parts in cohort.layout.layers(self.layer).items()}
        n = min(d, self.fragments or len(cohort.layout.layers()))
        return {f"fragment{i + 1}": [slice(i * d // n, (i + 1) * d // n)] for i in range(n)}

    def _h(self, cohort: Cohort) -> Tensor | None:
        """[K]: how the fairness objective's gradient is made of the clients'; None where it has none."""
        if self.fair == "none":
            return None
        if cohort.losses is None:
            raise EquipoiseError("fedlf: the cohort has no losses", 'fair = "none" does without')
        f = cohort.losses.cpu().to(torch.float64)
        length = float(_norm(f))
        if length == 0:
            return None
        p = torch.full_like(f, len(f) ** -0.5)
        cos = float(f @ p) / length
        off = cos * f / length - p
        sin = float(_norm(off))
        if sin <= ZERO or (self.fair == "fedmdfg" and math.atan2(sin, cos) <= self.theta):
            return None
        return off / (length if self.fair == "cos" else sin)

    def _since(self, cohort: Cohort, seen: int) -> float:
        """The round from which on an absent client counts."""
        return {"recent": cohort.round - seen / len(cohort), "last": cohort.round - 1}.get(self.absent, 0)

    def _remembered(self, cohort: Cohort, ids: Tensor, known: State, gram: Tensor) -> State:
        """Updates as they were sent, so that their products with each other need not be computed again."""
        cap, since = (0 if self.absent == "none" else self.cap), (cohort.round if self.absent == "last" else 0)
        lr = known["lr"].new_full((len(cohort),), cohort.lr)
        at = history.kept(known, ids, cohort.round, cap, since)
        memory = history.moved(known, ids, cohort.round, at, rows=cohort.updates, lr=lr)
        return {**memory, "gram": _among(gram, at)}


# ------------------------------------------------------------------------------------------------ the shortest vectors


class _Shortest(NamedTuple):
    """The shortest vectors of g hulls: weights [g, n] of the rows, whether it is zero, how many clients oppose it."""

    weights: Tensor
    zero: Tensor
    against: Tensor


def _shortest(gram: Tensor, k: int, h: Tensor | None, normalise: bool) -> _Shortest:
    """For g hulls of n rows, of which the first k are online clients and make the fair row: gram [g, n, n]."""
    length = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()
    mean = length[:, :k].mean(-1, keepdim=True)
    scale = torch.where(length > 0, mean / length, 0.0) if normalise else torch.ones_like(length)
    hull, fair = gram * scale[..., None] * scale[:, None], None
    if h is not None:
        fair = torch.zeros_like(length)
        fair[:, :k] = h * scale[:, :k]
        long = (fair[:, None] @ gram @ fair[..., None])[..., 0].clamp(min=0.0).sqrt()
        real = long > ZERO * (fair.abs() * length).sum(-1, keepdim=True)
        fair = torch.where(real, fair * mean / torch.where(real, long, 1.0) if normalise else fair, 0.0)
        along = fair[:, None] @ gram
        hull = torch.cat([hull, along * scale[:, None]], 1)
        hull = torch.cat([hull, torch.cat([hull[:, -1:], along @ fair[..., None]], -1).mT], -1)
    w = min_norm(hull, hull.diagonal(dim1=-2, dim2=-1) > 0)
    square = (w[:, None] @ hull @ w[..., None])[:, 0, 0].clamp(min=0.0)
    weights = w[:, : length.shape[1]] * scale
    weights = weights if fair is None else weights + w[:, -1:] * fair
    against = ((gram[:, :k] @ weights[..., None])[..., 0] < 0).sum(-1)
    return _Shortest(weights, square.sqrt() <= ZERO * mean[:, 0], against)


def _joined(gram: Tensor, k: int, h: Tensor | None, normalise: bool) -> tuple[list[list[int]], _Shortest]:
    """Layers, merged until none is zero or all are one; the products of merged layers are the sums of theirs."""
    groups = [[layer] for layer in range(len(gram))]
    found = _shortest(gram, k, h, normalise)
    while len(groups) > 1 and bool(found.zero.any()):
        at = min(int(found.zero.int().argmax()), len(groups) - 2)
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
        new = _shortest(gram[groups[at]].sum(0, keepdim=True), k, h, normalise)
        found = _Shortest(*(torch.cat([a[:at], b, a[at + 2 :]]) for a, b in zip(found, new, strict=True)))
    return groups, found


# ------------------------------------------------------------------------------------------------ rows of d numbers


def _gram(table: Table, layers: Sequence[Sequence[slice]], known: Tensor) -> tuple[Tensor, float]:
    """[L, n, n] in host memory: the products of all rows, layer by layer; those of the past ones are `known`.

    And the length of the mean update, in the same answer of a GPU.
    """
    new = table.products(layers)
    told = torch.cat([new.flatten(), _norm(table.updates.mean(0))[None]]).cpu()
    return whole(told[:-1].view(new.shape), known), float(told[-1])


def _among(gram: Tensor, at: Tensor) -> Tensor:
    """The products [L, m, m] of the rows `at` with each other."""
    return gram.index_select(1, at).index_select(2, at)


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
    """`ablation` overrides the option that it is about."""
    _one_of("grad", grad, ("pseudo", "full"))
    _one_of("direction", direction, ("hull", "mean"))
    if ablation is not None:
        _one_of("ablation", ablation, tuple(_ABLATIONS))
    chosen: dict[str, Any] = {"direction": direction, "layer": layer, "fair": fair, "absent": absent}
    chosen |= _ABLATIONS[ablation] if ablation else {}
    mean = chosen.pop("direction") == "mean"
    rule = FedLF(fragments=fragments, normalise_rows=normalise_rows, theta=theta, cap=cap, stop=stop, **chosen)
    return Method("fedlf", FedSGD() if grad == "full" else SGD(), WeightedMean("uniform") if mean else rule)
