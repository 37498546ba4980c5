"""Clients with larger losses count for more, and the step is as long as the resulting objective allows.

Li, Sanjabi, Beirami, Smith, "Fair resource allocation in federated learning" (q-FFL), ICLR 2020, Equation 2, Algorithm
1 (q-FedSGD) and Algorithm 2 (q-FedAvg).

    objective:  sum_k F_k^{q+1} / (q+1)                         f_k = F_k + 1e-10,  g_k = u_k / lr,  L = 1 / lr
    D_k = f_k^q g_k
    h_k = q f_k^{q-1} ||g_k||^2 + L f_k^q
    w  <- w - sum_k D_k / sum_k h_k
    variant = "fedavg"   u_k from local training
              "fedsgd"   u_k = lr * grad F_k(w), one step on all of a client's data

That is sum_k a_k u_k with a_k = f_k^q / sum_j f_j^q (1 + q ||u_j||^2 / (lr f_j)), and so it is computed, with all
losses relative to the largest. q = 0 is the plain mean; towards infinity only the largest loss counts, and steps
vanish.

Departures: the 1e-10 is the authors' program's. The paper draws devices with probabilities p_k = n_k / n and then
counts them the same; here the run draws, and weights = "size" counts them by p_k, in D_k and h_k alike. Negative losses
count as 0. Where all losses are 0 there is nothing left to even out: the equation then makes steps that are all but
zero.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.aggregators._distances import norms
from equipoise.core import Cohort, Method
from equipoise.errors import not_negative, require
from equipoise.methods._reweighting import HUGE, Reweighting, Variant, client, counted
from equipoise.weighting import Weights, check_weights, shares

_LEAST = 1e-10


@dataclass(frozen=True)
class QFFL(Reweighting):
    """q: how much large losses count, 0 or more; 0 is the plain mean. The paper: 0.001 to 5 (and 10, 15 in sweeps)."""

    q: float = 1.0
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        require(not_negative(self.q), "qffl: q", self.q, "0 or more; 0 is the plain mean")
        check_weights("qffl", self.weights)

    def weigh(self, losses: Tensor, cohort: Cohort) -> tuple[Tensor, str]:
        p = shares(cohort.sizes, self.weights)
        f = counted(losses, p) + _LEAST
        power = p * torch.exp(self.q * (f / f.max()).log())
        squares = norms(cohort.updates).square().clamp(max=HUGE)
        longer = (self.q * squares / max(cohort.lr, 1e-300) / f).clamp(max=HUGE)
        nothing = self.q > 0 and not bool(losses.any())
        return power / (power * (1 + longer)).sum(), "all losses are 0: next to no step" if nothing else ""


def qffl(q: float = 1.0, *, variant: Variant = "fedavg", weights: Weights = "uniform") -> Method:
    """variant: "fedavg" (q-FedAvg), local training, or "fedsgd" (q-FedSGD), one step on all of a client's data."""
    return Method("qffl", client("qffl", variant), QFFL(q, weights))
