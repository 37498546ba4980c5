"""The plain mean of the m - f updates that lie closest to their neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant gradient descent",
NIPS 2017, section 6 (Multi-Krum).

    score_k as in Krum: the sum of ||u_k - u_j||^2 over the m - f - 2 nearest others j, of m clients in the cohort
    w <- w - 1/(m - f) sum of the m - f updates u_k with the smallest scores; of equal ones the lowest client ids first

Scores are computed once, over the whole cohort. Needs m - f - 2 >= 1. `weights` says how those kept are averaged:
"uniform" as published; "capped" keeps what uniform weights promise for 2f in place of f; "size" promises nothing where
sizes are claims.

Departures: the paper leaves open how many updates to keep; m - f is the largest number that may all be honest. It has
no weights. As in Krum, cohorts with m <= 2f + 2 are accepted with a "warning" in the log, and f defaults to 1.
"""

from dataclasses import dataclass

from torch import Tensor

from equipoise.aggregators._rows import kept_shares, mixed
from equipoise.aggregators.krum import account, check_cohort, check_f, krum_scores
from equipoise.core import Cohort, Outcome, ServerRule, State
from equipoise.weighting import Weights, check_weights


@dataclass(frozen=True)
class MultiKrum(ServerRule):
    """f: how many malicious clients to expect in a cohort, from 0 to m - 3; 0 is the mean of all."""

    f: int = 1
    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        check_f("multi-krum", self.f)
        check_weights("multi-krum", self.weights)

    def check(self, n: int) -> None:
        check_cohort("multi-krum", n, self.f)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        self.check(len(cohort))
        scores = krum_scores(cohort.updates, self.f)
        chosen = scores.argsort(stable=True)[: len(cohort) - self.f].sort().values
        direction, weights = mean_of(cohort, chosen, self.weights)
        return Outcome(direction, state, info={**account(scores, chosen, self.f), "weights": weights})


def mean_of(cohort: Cohort, chosen: Tensor, way: Weights) -> tuple[Tensor, Tensor]:
    """The mean of the chosen updates, by the sizes of those chosen if `way` says so, and everyone's weight in it."""
    weights = kept_shares(cohort.sizes, chosen, way)
    return cohort.updates[chosen].mean(0) if way == "uniform" else mixed(weights, cohort.updates), weights
