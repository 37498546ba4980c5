"""Looks for the direction in which updates differ most, and leaves out those that stand out in it.

Shejwalkar, Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses for federated
learning", NDSS 2021, Algorithm 2 (divide and conquer, DnC).

    as often as `iterations` says, on b coordinates drawn at random:
        x_k   = those coordinates of u_k, less their mean over the m clients of the cohort
        v     = the top right singular vector of the rows x_1, ..., x_m
        keep the m - ceil(c f) clients with the smallest scores (x_k . v)^2; of equal ones the lowest ids
    w <- w - mean of u_k over the clients that were kept every time

If no client was kept every time, the model stays as it is, and the round has a `reason`. Needs m > ceil(c f).

`weights` says how those kept are averaged: "uniform" as published; "capped" keeps what uniform weights promise for 2f
in place of f; "size" promises nothing where sizes are claims.

Departures: c f is rounded up where it is not whole; the paper leaves that open, and what happens if nobody is left. The
defaults of b, c and iterations are those in common use; they could not be checked against the paper's tables. The paper
has no default for f; ours is 1.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.aggregators._rows import kept_shares, mixed, some_columns
from equipoise.aggregators.krum import check_f
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.errors import positive
from equipoise.weighting import Weights, check_weights


@dataclass(frozen=True)
class DnC(ServerRule):
    """f: how many malicious clients to expect in a cohort; 0 is the mean. c: how many clients are left out each time,
    as a multiple of f, above 0. b: how many coordinates are looked at, 1 or more. iterations: how often that is done, 1
    or more.
    """

    f: int = 1
    c: float = 1.0
    b: int = 10_000
    iterations: int = 1
    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        check_f("dnc", self.f)
        check_weights("dnc", self.weights)
        if not positive(self.c):
            raise EquipoiseError(f"dnc: c is {self.c}", "how many to leave out, as a multiple of f, above 0")
        for name, value in (("b", self.b), ("iterations", self.iterations)):
            if not isinstance(value, int) or value < 1:
                raise EquipoiseError(f"dnc: {name} is {value}", "1 or more")

    @property
    def dropped(self) -> int:
        """How many clients are left out each time."""
        return math.ceil(round(self.c * self.f, 9))  # 0.1 * 30 is a little more than 3

    def check(self, n: int) -> None:
        if n <= self.dropped:
            told = f"dnc: m = {n} clients in the cohort, and {self.dropped} to leave out for f = {self.f}, c = {self.c}"
            raise EquipoiseError(told, f"needs {self.dropped + 1} clients or more in a round")

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        self.check(len(cohort))
        (m, d), device = cohort.updates.shape, cohort.updates.device
        kept = torch.ones(m, dtype=torch.bool, device=device)
        for i in range(self.iterations):
            some = some_columns(cohort.rng.child("dnc", i), d, self.b, device)
            scores = outlier_scores(cohort.updates[:, some])
            kept[scores.argsort(stable=True)[m - self.dropped :]] = False
        info: dict[str, Any] = {"weights": kept_shares(cohort.sizes, kept, self.weights), "kept": int(kept.sum())}
        if info["kept"] == 0:
            info["reason"] = "no client was kept every time: the model stays"
        return Outcome(mixed(info["weights"], cohort.updates), state, info=info)


def outlier_scores(rows: Tensor) -> Tensor:
    """[m] float64: the squared parts of the centred rows along their top singular vector, up to a common factor.

    With X v = sigma u they are sigma^2 u_k^2, and u is the top eigenvector of the m x m matrix X X'.
    """
    x = rows.double()
    x = x / x.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)  # so that squares fit
    x = x - x.mean(0)
    values, vectors = torch.linalg.eigh(x @ x.T)
    scores: Tensor = values[-1].clamp(min=0.0) * vectors[:, -1].square()
    return scores
