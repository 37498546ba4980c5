"""Takes the one update whose client has the largest loss that is not among the f largest.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, section 4.2
("k-loss": the gradient of the k-th largest loss, k being the expected number of malicious clients).

    w <- w - u_k    with the (m - f)-th smallest loss F_k at w; of equal losses the lowest client ids come first

`keep = "rest"` takes the mean of the m - f updates up to that one instead. Needs f < m. It is no robust rule: malicious
clients are dropped only if their losses are the largest, as with wrong labels, and whoever says otherwise decides the
step. `weights` is for "rest": "uniform", "size" or "capped", the sizes being claims as well.

Departures: the paper says "the k-th largest loss", which with k malicious clients of the largest losses would be one of
theirs; the (m - f)-th smallest is the next one. "rest" is ours, for comparison with k-norm. f defaults to 1.
"""

from dataclasses import dataclass
from typing import Literal

from equipoise.aggregators.k_norm import check_left
from equipoise.aggregators.krum import check_f
from equipoise.aggregators.multi_krum import mean_of
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.weighting import Weights, check_weights


@dataclass(frozen=True)
class KLoss(ServerRule):
    """f: how many of the largest losses to pass over, from 0 (the largest is taken) to m - 1. keep: "one", the next
    client's update, or "rest", the mean of it and all with smaller losses, by `weights`."""

    f: int = 1
    keep: Literal["one", "rest"] = "one"
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        check_f("k-loss", self.f)
        check_weights("k-loss", self.weights)
        if self.keep not in ("one", "rest"):
            raise EquipoiseError(f"k-loss: keep is {self.keep!r}", 'use "one" or "rest"')

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses"})

    def check(self, n: int) -> None:
        check_left("k-loss", n, self.f)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        self.check(len(cohort))
        if cohort.losses is None:
            raise EquipoiseError("k-loss: the cohort has no losses", "clients report them where a rule needs them")
        ordered = cohort.losses.argsort(stable=True)[: len(cohort) - self.f]
        kept = ordered[-1:] if self.keep == "one" else ordered.sort().values
        direction, weights = mean_of(cohort, kept, self.weights)
        return Outcome(direction, state, info={"weights": weights, "dropped": len(cohort) - len(kept)})
