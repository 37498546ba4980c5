"""The middle value of what clients send, for every parameter by itself.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018,
Definition 1 and Algorithm 1, option I.

    w_i <- w_i - median of u_1i, ..., u_mi    for every coordinate i; with an even m the mean of the two middle values

With weights p_k the median is weighted: the mean of the smallest value with at least half of the weight at or below it
and of the largest with at least half at or above it. It holds as long as the honest have more than half of the weight:
uniform, as in the paper, for any f < m/2; capped for any f < m/4; size for none if sizes may be false.

Under "weights" the log says how much of the step came from whom: the share of coordinates in which a client's value was
the middle one, halved where there are two; equal values share.

Departures: none with uniform weights, the default. The paper has no others.
"""

from dataclasses import dataclass

from torch import Tensor

from equipoise.aggregators._order import ascending, coordinatewise, kept_of, middle, weighted_middle
from equipoise.core import Cohort, Outcome, ServerRule, State
from equipoise.weighting import Weights, check_weights, shares


@dataclass(frozen=True)
class CoordinateMedian(ServerRule):
    """Holds as long as more than half of the cohort is honest."""

    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        check_weights("coordinate-median", self.weights)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        p = shares(cohort.sizes, self.weights)
        of = _plain if self.weights == "uniform" else lambda x: _halfway(*weighted_middle(x, p))
        direction, weights = coordinatewise(cohort.updates, of)
        return Outcome(direction, state, info={"weights": weights})


def _plain(x: Tensor) -> tuple[Tensor, Tensor]:
    """The median of every column, and [m]: in how many columns each row was the middle one."""
    low, high = middle(ascending(x))
    kept = 2 - len(x) % 2
    return _halfway(low, high, kept_of(x, low, high, (len(x) - 1) // 2, kept) / kept)


def _halfway(low: Tensor, high: Tensor, whose: Tensor) -> tuple[Tensor, Tensor]:
    return (low + high) / 2, whose
