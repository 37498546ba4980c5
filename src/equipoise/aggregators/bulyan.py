"""Chooses updates one by one with Krum; then, for every parameter, the mean of the chosen values near their median.

El Mhamdi, Guerraoui, Rouault, "The hidden vulnerability of distributed learning in Byzantium", ICML 2018, section 4
(Bulyan of Krum).

    R = all m clients; m - 2f times: move the k in R with Krum's smallest score within R from R to S
    score_k = sum of ||u_k - u_j||^2 over the |R| - f - 2 nearest others j in R
    w_i <- w_i - mean of the m - 4f values u_ki, k in S, that are closest to their median, for every coordinate i

Needs m >= 4f + 3. Of equal scores the lowest client id is chosen first; of two values as far from the median the
smaller one stays. f = 0 is the mean. Every client counts the same: the numbers that the rule selects by are numbers of
clients.

Under "weights" the log says how much of the step came from whom: the share of coordinates in which a client's value was
kept, over m - 4f; equal values at the edge share.

Departures: towards the end of the selection |R| - f - 2 falls below 1 for f <= 1, where Krum has no score; there one
neighbour is compared, and the last one left is taken. f defaults to 1, as in Krum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.aggregators._distances import squared_distances
from equipoise.aggregators._order import ascending, coordinatewise, kept_of, middle
from equipoise.aggregators.krum import check_f
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State


@dataclass(frozen=True)
class Bulyan(ServerRule):
    """f: how many malicious clients to expect in a cohort, from 0 to (m - 3)/4; 0 is the mean."""

    f: int = 1
    robust = True
    by_id = True  # where one neighbour is left to compare, two that are each other's nearest are always equal

    def __post_init__(self) -> None:
        check_f("bulyan", self.f)

    def check(self, n: int) -> None:
        if n < 4 * self.f + 3:
            told = (
                f"bulyan: m = {n} clients in the cohort and f = {self.f}, but it needs m >= 4f + 3 = {4 * self.f + 3}"
            )
            raise EquipoiseError(told, f"m = {n} allows f up to {(n - 3) // 4}" if n >= 3 else "3 clients or more")

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        m = len(cohort)
        self.check(m)
        chosen = select(squared_distances(cohort.updates), m - 2 * self.f, self.f)

        def of(x: Tensor) -> tuple[Tensor, Tensor]:
            near, whose = near_the_median(x[chosen], m - 4 * self.f)
            return near, whose.new_zeros(m).index_copy(0, chosen, whose)

        direction, weights = coordinatewise(cohort.updates, of)
        return Outcome(direction, state, info={"weights": weights, "chosen": len(chosen)})


def select(apart: Tensor, count: int, f: int) -> Tensor:
    """The clients that Krum chooses one after the other, ascending; `apart` are all squared distances."""
    apart = apart.clone().fill_diagonal_(torch.inf)
    left = torch.arange(len(apart), device=apart.device)
    for n in range(len(apart), len(apart) - count, -1):
        scores = apart[left[:, None], left].sort(dim=1).values[:, : max(1, n - f - 2)].sum(1)
        best = scores.argsort(stable=True)[0]
        left = torch.cat([left[:best], left[best + 1 :]])
    every = torch.arange(len(apart), device=apart.device)
    return every[~torch.isin(every, left)]


def near_the_median(x: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The mean of the `kept` values of every column next to its median, and how much of it was each row's.

    They are a stretch of the sorted values: it begins one further as long as that trades a value for a closer one.
    """
    ordered = ascending(x)
    low, high = middle(ordered)
    centre = (low + high) / 2
    first = (ordered[kept:] - centre < centre - ordered[: len(x) - kept]).sum(0)
    number = torch.arange(len(x), device=x.device)[:, None]
    inside = (number >= first) & (number < first + kept)
    low, high = (ordered.gather(0, at[None])[0] for at in (first, first + kept - 1))
    return torch.where(inside, ordered, 0.0).sum(0) / kept, kept_of(x, low, high, first, kept) / kept
