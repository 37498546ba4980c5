"""FedMGDA+: the shortest mixture of the clients' directions, with weights that stay close to those of the plain mean.

Hu, Shaloudegi, Zhang, Yu, "Federated learning meets multi-objective optimization", IEEE Transactions on Network Science
and Engineering 9, 2022, Algorithm 1.

    x_k = u_k / ||u_k||
    lam = the weights with the shortest sum_k lam_k x_k,  lam_k >= 0,  sum_k lam_k = 1,  |lam_k - lam0_k| <= eps
    server:  w <- w - server_lr * sum_k lam_k x_k             lam0_k = 1/m

With eps = 1 this is MGDA: no client's direction is opposed. With eps = 0 it is the mean of the directions. Since they
have length 1, a step is at most `server_lr` long, whatever the clients' step size: tune it, from the typical length of
an update on. `weights` sets lam0: "uniform" is as published; "capped" and "size" weigh by what clients claim to hold.

Departures: (1) updates of length zero are left out, and m counts the others: nobody can oppose them, and they have no
direction. (2) Where the shortest mixture is zero, to 1e-6, the model stays as it is, and the log says so. (3) The
server's step size is constant, and its default no recommendation: the paper tunes it for each dataset. (4) The paper's
lam0 is any point of the simplex; which one its experiments used could not be checked.
"""

from dataclasses import dataclass

import torch

from equipoise.core import SGD, Cohort, EquipoiseError, Method, Outcome, ServerRule, State
from equipoise.errors import positive
from equipoise.methods._directions import length, mixture, shortest_within, told
from equipoise.weighting import Weights, check_weights, shares


@dataclass(frozen=True)
class FedMGDA(ServerRule):
    """eps: how far a weight may be from that of the mean, from 0 (the mean of the directions) to 1 (MGDA); the paper:
    0.01 to 1. server_lr: length of a step in which all clients agree, above 0."""

    eps: float = 0.1
    server_lr: float = 1.0
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        check_weights("fedmgda", self.weights)
        if not 0 <= self.eps <= 1:
            raise EquipoiseError(f"fedmgda: eps is {self.eps}", "from 0, the mean of the directions, to 1, MGDA")
        if not positive(self.server_lr):
            raise EquipoiseError(f"fedmgda: server_lr is {self.server_lr}", "above 0; the longest possible step")

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        gram, sizes = told(cohort.updates, None, None, cohort.sizes)
        long = gram.diagonal().sqrt()
        real, lam = long > 0, torch.zeros_like(long)
        unit = gram[real][:, real] / long[real] / long[real, None]
        centre = shares(sizes[real], self.weights)
        if bool(real.any()):
            lam[real] = shortest_within(unit, (centre - self.eps).clamp(min=0.0), (centre + self.eps).clamp(max=1.0))
        norm = float(length(lam[real], unit))
        if norm == 0:
            reason = "Pareto stationary: some mixture of the directions is zero" if bool(real.any()) else "no update"
            info = {"weights": torch.zeros_like(lam), "length": norm, "reason": reason}
            return Outcome(torch.zeros_like(cohort.start), state, info=info)
        d = mixture(self.server_lr * lam / torch.where(real, long, 1.0), cohort.updates)
        return Outcome(d, state, info={"weights": lam, "length": norm})


def fedmgda(eps: float = 0.1, server_lr: float = 1.0, *, weights: Weights = "uniform") -> Method:
    return Method("fedmgda", SGD(), FedMGDA(eps, server_lr, weights))
