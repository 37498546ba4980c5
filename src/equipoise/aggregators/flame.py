"""Keeps the majority of models that point the same way, shortens what is long, and adds a little noise.

Nguyen, Rieger, Chen, Yalame, Möllering, Fereidooni, Marchal, Miettinen, Mirhoseini, Zeitouni, Koushanfar, Sadeghi,
Schneider, "FLAME: taming backdoors in federated learning", USENIX Security 2022, Algorithm 1.

    c_ij  = 1 - cos(w_i, w_j)                                   of the clients' models w_k = w - u_k
    A     = the cluster that HDBSCAN finds in c with min_cluster_size = floor(m/2) + 1 and min_samples = 1
    bound = the median of ||u_1||, ..., ||u_m||                 over all m clients of the cohort
    w    <- w - mean over k in A of min(1, bound / ||u_k||) u_k  +  (lam bound) N(0, 1)

With more than half of the clients in it there is only one cluster, and it has a short definition: join clients in the
order of their distances until some group is more than half of all. That group is A, with all that join it at the same
distance. Those who are not in it are left out, also if nobody is malicious: often nearly half of the honest. With one
sample as smallest neighbourhood the mutual reachability of HDBSCAN is the distance itself.

`weights` says how those kept are averaged: "uniform" as published; "capped" keeps what uniform weights promise for 2f
in place of f; "size" promises nothing where sizes are claims.

Departures: HDBSCAN is to return a single cluster (`allow_single_cluster` in its programs), without which it never finds
any; the paper does not say so. `of = "update"` measures the angles between updates, as many programs do; models that
have barely moved all point nearly the same way. A zero vector is at distance 1 from every other. Every parameter gets
noise of the same size, and how lam follows from a privacy budget is left to the user. Algorithm 1 and its lam for
images are given from the record of the paper in other programs; its own text could not be checked.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.aggregators._distances import norms
from equipoise.aggregators._rows import cosines, kept_shares, median, mixed, shortening
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.errors import not_negative, require
from equipoise.weighting import Weights, check_weights


@dataclass(frozen=True)
class FLAME(ServerRule):
    """lam: the noise, as a multiple of the median length, 0 or more; 0 adds none. of: whose angles are compared,
    those of a "model" or of an "update".
    """

    lam: float = 0.001
    of: Literal["model", "update"] = "model"
    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        check_weights("flame", self.weights)
        require(not_negative(self.lam), "flame: lam", self.lam, "a multiple of the median length, 0 or more")
        if self.of not in ("model", "update"):
            raise EquipoiseError(f"flame: of is {self.of!r}", 'use "model" or "update"')

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        rows = cohort.updates if self.of == "update" else cohort.start - cohort.updates
        kept = majority(1.0 - cosines(rows, rows))
        length = norms(cohort.updates)
        bound = median(length)
        weights = kept_shares(cohort.sizes, kept, self.weights) * shortening(length, bound)
        direction = mixed(weights, cohort.updates)
        if self.lam > 0:
            at = torch.arange(len(direction), device=direction.device)
            noise = self.lam * bound * cohort.rng.child("flame").normal(at)
            direction = direction - noise.to(direction.dtype)
        return Outcome(direction, state, info={"weights": weights, "kept": int(kept.sum()), "bound": float(bound)})


def majority(apart: Tensor) -> Tensor:
    """[m] bool: the first group of more than half of all that appears when points are joined in order of distance.

    Two points are in one group at height h if a chain of steps of at most h leads from one to the other. The lowest
    such h for every pair is found as shortest paths are (Floyd and Warshall), with the largest step for the sum.
    """
    m = len(apart)
    height = torch.maximum(apart, apart.T).fill_diagonal_(0.0)
    for k in range(m):
        height = torch.minimum(height, torch.maximum(height[:, k, None], height[k]))
    reached = height.sort(dim=1).values[:, m // 2]  # where a point's group has floor(m/2) + 1 members
    first = reached.argsort(stable=True)[0]
    return height[first] <= reached[first]
