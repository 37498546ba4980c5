"""Clients count in proportion to their loss.

Zhao, Joshi, "A dynamic reweighting strategy for fair federated learning" (DRFL), ICASSP 2022.

    w <- w - sum_k a_k u_k,   a_k = p_k F_k / sum_j p_j F_j
    p_k = 1/m ("uniform"), n_k / sum n ("size") or capped

Its direction is that of q-FFL with q = 1; only the step is longer, that of a weighted mean.

Departures: the text of the paper could not be checked, nor was a program of its authors found. Its abstract has weights
that change from round to round and a selection of clients that prefers some; the equation here is what the program
behind FedLF's comparison (Pan and others, AAAI 2024) computes, where weights are made to sum to 1. Clients are drawn as
the run says, without preference. Where all losses are 0, a_k = p_k, and the log has a `reason`; negative ones count as
0.
"""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core import SGD, Cohort, Method, normalised
from equipoise.methods._reweighting import Reweighting, counted
from equipoise.weighting import Weights, check_weights, shares


@dataclass(frozen=True)
class DRFL(Reweighting):
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        check_weights("drfl", self.weights)

    def weigh(self, losses: Tensor, cohort: Cohort) -> tuple[Tensor, str]:
        p = shares(cohort.sizes, self.weights)
        f = counted(losses, p)
        if not bool(f.any()):
            return p, "all losses are 0: weights as without them"
        return normalised(p * (f / f.max())), ""


def drfl(*, weights: Weights = "uniform") -> Method:
    return Method("drfl", SGD(), DRFL(weights))
