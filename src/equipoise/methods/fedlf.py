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
from dataclasses import dataclass, replace
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
from equipoise.methods._hulls import Hulls, merged, shortest
from equipoise.methods._rows import ZERO, Table, whole
from equipoise.methods.fedsgd import FedSGD
from equipoise.questions import Later, answer, near, sent
from equipoise.solvers import Floats, solves_there

Layer = Literal["module", "tensor", "model", "fragments"]
Fair = Literal["cos", "fedmdfg", "none"]
Absent = Literal["recent", "last", "all", "none"]
Kind = tuple[tuple[tuple[int, int], ...], ...]
"""Where the layers lie: from and to, of each of their parts."""
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

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        """Where to go is decided in host memory, where all but the rows stays. A GPU is asked once, and what needs no
        answer comes before that."""
        facts = self._facts(cohort, state)
        table = Table(cohort.updates, state["rows"])
        asked = table.products(facts.slices), _norm(cohort.updates.mean(0)), *self._losses(cohort)
        new, size, *losses = (torch.from_numpy(x) for x in answer(*asked))
        gram, fair = whole(new, state["gram"].cpu()), [self._h(f) for f in losses]
        hulls = Hulls(gram * facts.scale[:, None] * facts.scale, len(cohort), self.normalise_rows, *fair)
        groups, found = merged(hulls)
        after = {**self._remembered(cohort, facts), "gram": _among(gram, facts.stay)}
        told = facts.told(groups, found.against.tolist(), bool(fair and fair[0][1]))
        if size == 0 or found.zero.any():
            zero, reason = torch.zeros_like(cohort.start), "Pareto stationary: some mixture of the updates is zero"
            return Outcome(zero, after, stop=reason if self.stop else None, info={**told, "reason": reason})
        weights = found.weights[[g for g, group in enumerate(groups) for _ in group]] * facts.scale
        return Outcome(_scaled(table.mixture(facts.slices, weights), size), after, info=told)

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        """The same on a GPU, which is not asked at all, as far as no layers need be merged and hulls are small."""
        rows, where = 1 + len(cohort) + len(state["ids"]), cohort.updates.device
        if where.type == "cpu" or not solves_there(where, rows):
            return Later(self(cohort, state))
        facts = self._facts(cohort, state)
        given = cohort.updates, state["rows"], sent(state["gram"], cohort.updates), *self._losses(cohort)
        small = (sent(t, cohort.updates) for t in (facts.scale, facts.stay))
        kind = tuple(tuple((p.start, p.stop) for p in parts) for parts in facts.slices)
        d, gram, *asked = cohort.again(self._decided, kind, *small, *given)
        outcome = Outcome(d, {**self._remembered(cohort, facts), "gram": gram})  # while that is being worked out

        def settle(size: Floats, zero: Floats, exact: Floats, against: Floats, fair: Floats) -> Outcome:
            if size == 0 or zero.any() or not exact.all():
                return self(cohort, state)
            groups = [[layer] for layer in range(len(zero))]
            return replace(outcome, info=facts.told(groups, against.astype(int).tolist(), bool(fair)))

        return Later(outcome, tuple(asked), settle)

    def _decided(self, kind: Kind, scale: Tensor, stay: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """The direction, the products to remember, and what `settle` asks for."""
        updates, past, known, *losses = given
        table, slices = Table(updates, past), [[slice(*p) for p in parts] for parts in kind]
        gram, size = whole(table.products(slices), known), _norm(updates.mean(0))
        fair = [self._h(f) for f in losses]
        found = shortest(Hulls(gram * scale[:, None] * scale, len(updates), self.normalise_rows, *fair))
        d = _scaled(table.mixture(slices, found.weights * scale), size)
        used = fair[0][1] if fair else torch.zeros_like(found.zero[0])
        return d, _among(gram, stay), size, found.zero, found.exact, found.against, used

    def _facts(self, cohort: Cohort, state: State) -> _Facts:
        """What is known of a round in host memory."""
        ids, known = near(cohort.ids), {n: t if n in ("rows", "gram") else t.cpu() for n, t in state.items()}
        seen = history.joint(known["seen"], ids)
        absent = history.absent(known, ids, self._since(cohort, len(seen))).numpy()
        scale = np.concatenate([np.ones(len(ids)), np.where(absent, cohort.lr / known["lr"].numpy(), 0.0)])
        cap, since = (0 if self.absent == "none" else self.cap), (cohort.round if self.absent == "last" else 0)
        stay = history.kept(known, ids, cohort.round, cap, since)
        return _Facts(self._layers(cohort), ids, known, torch.from_numpy(scale), stay, seen, int(absent.sum()))

    def _remembered(self, cohort: Cohort, facts: _Facts) -> State:
        """Updates as they were sent, so that their products with each other need not be computed again."""
        lr = facts.known["lr"].new_full((len(cohort),), cohort.lr)
        memory = history.moved(facts.known, facts.ids, cohort.round, facts.stay, rows=cohort.updates, lr=lr)
        return {**memory, "seen": facts.seen}

    def _layers(self, cohort: Cohort) -> dict[str, list[slice]]:
        d = len(cohort.start)
        if self.layer == "model" or cohort.layout.size == 0:
            return {"model": [slice(0, d)]}
        if self.layer != "fragments":
            return {name: joined(parts) for name, parts in cohort.layout.layers(self.layer).items()}
        n = min(d, self.fragments or len(cohort.layout.layers()))
        return {f"fragment{i + 1}": [slice(i * d // n, (i + 1) * d // n)] for i in range(n)}

    def _losses(self, cohort: Cohort) -> list[Tensor]:
        """Those of the clients, if they count."""
        if self.fair == "none":
            return []
        if cohort.losses is None:
            raise EquipoiseError("fedlf: the cohort has no losses", 'fair = "none" does without')
        return [cohort.losses]

    def _h(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """[K]: how the fairness objective's gradient is made of the clients'; and whether it has one."""
        f, p = losses.double(), len(losses) ** -0.5
        length = _norm(f)
        cos = f.sum() * p / length
        off = cos * f / length - p
        sin = _norm(off)
        there = (length > 0) & (sin > ZERO)
        if self.fair == "fedmdfg":
            there &= torch.atan2(sin, cos) > self.theta
        return torch.where(there, off / (length if self.fair == "cos" else sin), 0.0), there

    def _since(self, cohort: Cohort, seen: int) -> float:
        """The round from which on an absent client counts."""
        return {"recent": cohort.round - seen / len(cohort), "last": cohort.round - 1}.get(self.absent, 0)


class _Facts(NamedTuple):
    """What is known of a round before anything is computed; rows are [updates; remembered ones]."""

    layers: dict[str, list[slice]]
    ids: Tensor
    """Whose updates these are,"""
    known: State
    """and the rule's state before them: all but its rows and products in host memory."""
    scale: Tensor
    """[n]: what makes the lr of a remembered update this round's; 0 where it does not count."""
    stay: Tensor
    """Which rows are remembered from now on."""
    seen: Tensor
    """The ids of all clients that were ever heard."""
    absent: int

    @property
    def slices(self) -> list[list[slice]]:
        return list(self.layers.values())

    def told(self, groups: list[list[int]], against: list[int], fair: bool) -> dict[str, Any]:
        """For the log: what came of the layers, and how many clients oppose each direction."""
        names = ["+".join(list(self.layers)[i] for i in group) for group in groups]
        return {
            "absent": self.absent,
            "fair_row": fair,
            "merged": [name for name, group in zip(names, groups, strict=True) if len(group) > 1],
            "group_conflicts": dict(zip(names, against, strict=True)),
        }


def _among(gram: Tensor, at: Tensor) -> Tensor:
    """The products [L, m, m] of the rows `at` with each other."""
    return gram.index_select(1, at).index_select(2, at)


def _scaled(d: Tensor, size: Tensor) -> Tensor:
    """As long as that; what rounds to zero is zero."""
    length = _norm(d)
    return d * torch.where(length > 0, size / length, 1.0)


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
