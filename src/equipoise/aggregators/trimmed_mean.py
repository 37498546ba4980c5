"""The mean of what clients send without the f largest and the f smallest values, for every parameter by itself.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018,
Definition 2 and Algorithm 1, option II.

    w_i <- w_i - 1/(m - 2f) sum of u_ki over the clients k whose value is neither among the f largest
                 nor among the f smallest of u_1i, ..., u_mi, for every coordinate i

Needs 2f < m; f = 0 is the mean. With weights p_k that sum to 1, values in ascending order take up p_k each of the line
from 0 to 1, and the part from f/m to 1 - f/m is kept: the same thing where all weights are 1/m. The rule holds as long
as the malicious have at most f/m of the weight: uniform, as in the paper, if they are at most f; capped if they are at
most f/2; size for none if sizes may be false.

Under "weights" the log says how much of the step came from whom: the share of coordinates in which a client's value was
kept, over m - 2f; equal values at the edge share.

Departures: the paper trims a share beta of the clients; f = beta m is the same as a whole number. It has no weights.
f defaults to 1, never 0 by itself.
"""

from dataclasses import dataclass

from torch import Tensor

from equipoise.aggregators._order import ascending, coordinatewise, kept_of, weighted_rest
from equipoise.aggregators.krum import check_f
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.weighting import Weights, check_weights, shares


@dataclass(frozen=True)
class TrimmedMean(ServerRule):
    """f: values to drop at either end, below m/2; 0 is the mean."""

    f: int = 1
    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        check_f("trimmed-mean", self.f)
        check_weights("trimmed-mean", self.weights)

    def check(self, n: int) -> None:
        if 2 * self.f >= n:
            told = (
                f"trimmed-mean: m = {n} clients in the cohort and f = {self.f} leave m - 2f = {n - 2 * self.f} values"
            )
            raise EquipoiseError(told, f"f = {self.f} needs {2 * self.f + 1} clients or more in a round")

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        m = len(cohort)
        self.check(m)
        p = shares(cohort.sizes, self.weights)
        uniform = self.weights == "uniform"
        direction, weights = coordinatewise(
            cohort.updates, lambda x: _plain(x, self.f) if uniform else weighted_rest(x, p, self.f / m)
        )
        return Outcome(direction, state, info={"weights": weights})


def _plain(x: Tensor, f: int) -> tuple[Tensor, Tensor]:
    """The trimmed mean of every column, and [m]: in how many columns each row was kept, over m - 2f."""
    kept = len(x) - 2 * f
    rest = ascending(x)[f : f + kept]
    return rest.mean(0), kept_of(x, rest[0], rest[-1], f, kept) / kept
