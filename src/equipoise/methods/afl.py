"""The worst mixture of clients decides: weights climb towards those with the largest losses.

Mohri, Sivek, Suresh, "Agnostic federated learning" (AFL), ICML 2019, algorithm Stochastic-AFL, with the whole simplex
as the set of mixtures.

    w   <- w - sum_{k in S} lam_k u_k / s           S: this round's cohort,  s = sum_{k in S} lam_k
    lam_S <- the nearest point to lam_S + eta_lam F_S among those >= 0 that sum to s;    lam_k = 1/N at the start

With all N clients in the round s = 1, and this is lam <- Proj_simplex(lam + eta_lam F). One client alone keeps its lam.

Departures: u_k comes from local training, as in most comparisons; variant = "fedsgd" is the paper's gradient step.
Partial participation is ours: absent clients keep their lam, and those present share what they held together, so that
lam stays in the simplex. A cohort that holds nothing (s = 0) takes a plain mean, and the log has a `reason`. The paper
returns the mean of all iterates; here it is the last, as everywhere. It ties eta_lam to the number of rounds; ours is
fixed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise import history
from equipoise.core import Cohort, Method, Outcome, ServerRule, State
from equipoise.errors import not_negative, require
from equipoise.methods._reweighting import (
    EVERYONE,
    HUGE,
    Variant,
    client,
    equal,
    recalled,
    reported,
    weighed,
)
from equipoise.solvers import project_simplex


@dataclass(frozen=True)
class AFL(ServerRule):
    """eta_lam: how fast weights climb, 0 or more; 0 is the plain mean for good."""

    eta_lam: float = 0.1
    per_client = True

    def __post_init__(self) -> None:
        require(not_negative(self.eta_lam), "afl: eta_lam", self.eta_lam, "0 or more; 0 is the plain mean")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses"})

    def init(self, w: Tensor) -> State:
        return history.blank(lam=w.new_zeros((), dtype=torch.float64))

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        losses = reported(cohort, "afl")
        lam = recalled(state, "lam", cohort.ids, 1.0 / max(cohort.n_clients, len(cohort), 1))
        held = float(lam.sum())
        if held == 0:
            return weighed(cohort, equal(cohort), state, "nobody here has any weight: equal weights")
        climb = (self.eta_lam * losses / held).clamp(max=HUGE)
        new = held * project_simplex(lam / held + climb)
        after = history.remember(state, cohort.ids, cohort.round, EVERYONE, lam=new)
        return weighed(cohort, lam / held, after)


def afl(eta_lam: float = 0.1, *, variant: Variant = "fedavg") -> Method:
    """variant: "fedavg", local training, or "fedsgd", the paper's single step on all of a client's data."""
    return Method("afl", client("afl", variant), AFL(eta_lam))
