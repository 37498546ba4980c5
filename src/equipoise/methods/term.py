"""Clients count by the exponential of their loss: one number leans the mean towards the worst off, or away from them.

Li, Beirami, Sanjabi, Smith, "Tilted empirical risk minimization" (TERM), ICLR 2021, Equation 2 between clients, and
Equation 4 for tilts at two levels.

    objective:  (1/t) log sum_k p_k exp(t F_k)
    w <- w - sum_k a_k u_k,   a_k = p_k exp(t F_k) / sum_j p_j exp(t F_j)
    p_k = 1/m ("uniform"), n_k / sum n ("size") or capped
    tau: clients descend (1/tau) log mean_i exp(tau l_i) over the samples i of a batch; 0 is their mean

t > 0 leans to large losses, t < 0 to small ones, 0 is the mean; towards infinity only the largest loss counts. Equation
4 has p_k = n_k / sum n.

Departures: u_k comes from local training, where the paper takes gradients. F_k is the client's mean loss also with tau:
what it reports does not depend on how it trains. Negative losses count as 0.
"""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core import SGD, Cohort, Mean, Method, normalised
from equipoise.methods._reweighting import Reweighting, counted
from equipoise.objectives import Tilted, check_tilt, tilts
from equipoise.weighting import Weights, check_weights, shares


@dataclass(frozen=True)
class TERM(Reweighting):
    """t: the tilt between clients, any sign; 0 is the mean. Usual: 0.1, 1, 2, 5."""

    t: float = 1.0
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        check_tilt("term", "t", self.t)
        check_weights("term", self.weights)

    def weigh(self, losses: Tensor, cohort: Cohort) -> tuple[Tensor, str]:
        p = shares(cohort.sizes, self.weights)
        f = counted(losses, p)
        heaviest = f.max() if self.t > 0 else f.min()  # no exponent is above 0, so none overflows
        return normalised(p * tilts(f - heaviest, self.t)), ""


def term(t: float = 1.0, tau: float = 0.0, *, weights: Weights = "uniform") -> Method:
    """tau: the tilt between the samples of a batch on the client's side, any sign; 0 is their mean."""
    return Method("term", SGD(Tilted(tau) if tau else Mean()), TERM(t, weights))
