"""Leaves out updates of unusual length and those whose signs are unlike most, and shortens what is left.

Xu, Huang, Song, Lan, "Byzantine-robust federated learning through collaborative malicious gradient filtering", ICDCS
2022 (SignGuard), Algorithm 2.

    bound = the median of ||u_1||, ..., ||u_m||
    A     = the k with low bound <= ||u_k|| <= high bound
    x_k   = the shares of positive, zero and negative numbers of u_k, among a share of coordinates drawn at random
    B     = the largest cluster of x_1, ..., x_m by mean shift
    w    <- w - mean over k in A and B of min(1, bound / ||u_k||) u_k

Mean shift (Comaniciu, Meer, "Mean shift: a robust approach toward feature space analysis", PAMI 2002) moves every point
to the mean of all x within a radius until it rests. The radius is the mean distance from a point to the nearest half of
all, its own among them. Resting places within the radius of one with more points are dropped. A point belongs to the
nearest place that is left, to none if that is beyond the radius. If nobody is in both A and B, the model stays as it
is, and the round has a `reason`.

`weights` says how those kept are averaged: "uniform" as published; "capped" keeps what uniform weights promise for 2f
in place of f; "size" promises nothing where sizes are claims.

Departures: the variants that add a cosine or a distance to the last step (SignGuard-Sim and -Dist) are left out. The
radius is that of the authors' program; the paper does not give one. That program also divides each of the three shares
by its largest value, draws coordinates in one block, and starts mean shift from a grid; here shares are as they are,
every coordinate is drawn by itself, and every point is a start. The text of the paper could not be checked on these.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.aggregators._distances import columns, norms
from equipoise.aggregators._rows import kept_shares, median, mixed, shortening, some_columns
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.weighting import Weights, check_weights

_STEPS = 300  # a flat kernel rests after a few
_ROUNDING = 1e-12  # by which the mean of equal points may miss them


@dataclass(frozen=True)
class SignGuard(ServerRule):
    """low, high: which lengths pass, as multiples of the median; 0 <= low <= 1 <= high. share: how many of the
    coordinates are looked at, above 0 up to 1 (all).
    """

    low: float = 0.1
    high: float = 3.0
    share: float = 0.1
    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        check_weights("sign-guard", self.weights)
        if not 0 <= self.low <= 1:
            raise EquipoiseError(f"sign-guard: low is {self.low}", "a multiple of the median length, from 0 to 1")
        if not self.high >= 1:
            raise EquipoiseError(f"sign-guard: high is {self.high}", "a multiple of the median length, 1 or more")
        if not 0 < self.share <= 1:
            raise EquipoiseError(f"sign-guard: share is {self.share}", "of the coordinates, above 0 up to 1")

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        length = norms(cohort.updates)
        bound = median(length)
        usual = (length >= self.low * bound) & (length <= self.high * bound)
        alike = largest_cluster(self._signs(cohort))
        kept = usual & alike
        weights = kept_shares(cohort.sizes, kept, self.weights) * shortening(length, bound)
        info: dict[str, Any] = {"weights": weights, "kept": int(kept.sum()), "bound": float(bound)}
        info |= {"length_refused": int((~usual).sum()), "signs_refused": int((~alike).sum())}
        if info["kept"] == 0:
            info["reason"] = "nobody has both a usual length and the signs of most: the model stays"
        elif bound == 0:
            info["reason"] = "the median length is 0: the model stays"
        return Outcome(mixed(weights, cohort.updates), state, info=info)

    def _signs(self, cohort: Cohort) -> Tensor:
        """[m, 3] float64: the shares of positive, zero and negative numbers."""
        m, d = cohort.updates.shape
        some = some_columns(cohort.rng.child("sign-guard"), d, round(self.share * d) or 1, cohort.updates.device)
        counts = torch.zeros((m, 3), dtype=torch.float64, device=some.device)
        for piece in columns(len(some), m, some.device):
            sign = cohort.updates[:, some[piece]].sign()
            counts += torch.stack([(sign == s).sum(1) for s in (1, 0, -1)], 1)
        return counts / len(some)


def radius(x: Tensor) -> Tensor:
    """The distance to the floor(m/2)-th nearest point, a point itself being the first, averaged over all points."""
    return _apart(x, x).sort(dim=1).values[:, max(1, len(x) // 2) - 1].mean()


def largest_cluster(x: Tensor) -> Tensor:
    """[m] bool: the cluster of most points; of equal ones that whose centre has more points around it."""
    within = radius(x) + _ROUNDING
    centre, around = _resting(x, within)
    order = sorted(range(len(x)), key=lambda i: (int(around[i]), centre[i].tolist()), reverse=True)
    centre = centre[order]
    near = _apart(centre, centre) <= within
    left: list[int] = []
    for i in range(len(centre)):
        if not bool(near[i, left].any()):
            left.append(i)
    distance, label = _apart(x, centre[left]).min(dim=1)
    label = torch.where(distance <= within, label, len(left))
    sizes = torch.bincount(label, minlength=len(left) + 1)[: len(left)]
    return label == sizes.argsort(descending=True, stable=True)[0]


def _resting(x: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """Where every point comes to rest, and how many points lie around that place."""
    centre, inside = x, _apart(x, x) <= within
    for _ in range(_STEPS):
        centre = inside.double() @ x / inside.sum(1, keepdim=True)
        now = _apart(centre, x) <= within
        if torch.equal(now, inside):
            break
        inside = now
    return centre, inside.sum(1)


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """[A, B]: distances from the differences themselves, so that equal points are at 0."""
    return (a[:, None] - b).square().sum(-1).sqrt()
