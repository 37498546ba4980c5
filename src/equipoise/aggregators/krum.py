"""Takes the one update that lies closest to its neighbours, and nothing of the others.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant gradient descent",
NIPS 2017, section 4.

    score_k = sum of ||u_k - u_j||^2 over the m - f - 2 nearest others j, of m clients in the cohort
    w <- w - u_k    with the smallest score; of equal ones that of the lowest client id

The distances are squared, and a client is not its own neighbour. Needs m - f - 2 >= 1. Every client counts the same,
however many samples it says it has: a claim costs an attacker nothing.

Departures: the paper's guarantee of resilience needs m > 2f + 2. Smaller cohorts with m - f - 2 >= 1 are accepted, and
each such round says so under "warning". The paper has no default for f; ours is 1, never 0 by itself.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.aggregators._distances import squared_distances
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State


@dataclass(frozen=True)
class Krum(ServerRule):
    """f: how many malicious clients to expect in a cohort, from 0 to m - 3; with 0 it is still one client's update."""

    f: int = 1
    robust = True

    def __post_init__(self) -> None:
        check_f("krum", self.f)

    def check(self, n: int) -> None:
        check_cohort("krum", n, self.f)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        self.check(len(cohort))
        scores = krum_scores(cohort.updates, self.f)
        best = scores.argsort(stable=True)[:1]
        return Outcome(cohort.updates[best[0]], state, info=account(scores, best, self.f))


def krum_scores(updates: Tensor, f: int) -> Tensor:
    """[m] float64: the sum of squared distances from each update to the m - f - 2 nearest others."""
    apart = squared_distances(updates).fill_diagonal_(torch.inf)
    return apart.sort(dim=1).values[:, : len(updates) - f - 2].sum(1)


def account(scores: Tensor, chosen: Tensor, f: int) -> dict[str, Any]:
    """What is told of a round: everyone's score and weight, and whether the cohort was too small for a guarantee."""
    m, weights = len(scores), torch.zeros_like(scores)
    weights[chosen] = 1.0 / len(chosen)
    few = {"warning": f"m = {m} is not above 2f + 2 = {2 * f + 2}: no guarantee"} if m <= 2 * f + 2 else {}
    return {"weights": weights, "scores": scores, **few}


def check_f(name: str, f: int) -> None:
    if not isinstance(f, int) or f < 0:
        raise EquipoiseError(f"{name}: f is {f}", "how many malicious clients to expect in a cohort, 0 or more")


def check_cohort(name: str, m: int, f: int) -> None:
    if m - f - 2 < 1:
        told = f"{name}: m = {m} clients in the cohort and f = {f} leave m - f - 2 = {m - f - 2} neighbours to compare"
        raise EquipoiseError(told, f"f = {f} needs {f + 3} clients or more in a round")
