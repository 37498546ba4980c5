"""Replaces every update by the mean of those nearest to it, itself included, which draws the honest ones together.

Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by mixing: a recipe for optimal Byzantine ML under
heterogeneity", AISTATS 2023, Algorithm 2 (nearest neighbour mixing).

    N_i = the m - f clients j with the smallest ||u_i - u_j||, i itself first, of equal ones the lowest ids
    u_i <- 1/(m - f) sum over j in N_i of u_j

A filter: the rule behind it gives the guarantee, against the same f. Needs m > 2f. Under "scale" the log says how much
of an update is left: the part it has in all mixtures together, at most 1; an outlier keeps 1/(m - f), in its own.

Departures: none. The paper has no default for f; ours is 1. Clients count the same, whatever sizes they report.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from equipoise.aggregators._distances import squared_distances
from equipoise.aggregators._rows import mixed
from equipoise.aggregators.krum import check_f
from equipoise.core import Cohort, EquipoiseError, Filter


@dataclass(frozen=True)
class NNM(Filter):
    """f: how many malicious clients to expect in a cohort, from 0 to less than half; 0 gives everyone the mean."""

    f: int = 1

    def __post_init__(self) -> None:
        check_f("nnm", self.f)

    def check(self, n: int) -> int:
        check_minority("nnm", n, self.f)
        return n

    def __call__(self, cohort: Cohort) -> tuple[Cohort, Mapping[str, Any]]:
        m = self.check(len(cohort))
        apart = squared_distances(cohort.updates).fill_diagonal_(-1.0)  # nobody is nearer than oneself
        near = apart.argsort(dim=1, stable=True)[:, : m - self.f]
        weights = torch.zeros_like(apart).scatter_(1, near, 1.0 / (m - self.f))
        return cohort.with_updates(mixed(weights, cohort.updates)), {"scale": weights.sum(0).clamp(max=1.0)}


def check_minority(name: str, m: int, f: int) -> None:
    if m <= 2 * f:
        told = f"{name}: f = {f} malicious of m = {m} clients in the cohort are no minority"
        raise EquipoiseError(told, f"f = {f} needs {2 * f + 1} clients or more in a round")
