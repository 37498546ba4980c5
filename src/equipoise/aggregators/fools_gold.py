"""Turns down clients whose updates, added up over the rounds, point the same way: many names of one attacker.

Fung, Yoon, Beschastnikh, "The limitations of federated learning in sybil settings", RAID 2020, Algorithm 1 (first as
"Mitigating sybils in federated learning poisoning", 2018).

    H_k   <- H_k + u_k                        what client k has sent so far
    cs_ij  = cos(H_i, H_j), v_i = max_j cs_ij over the others, at least 0
    cs_ij <- cs_ij v_i / v_j where v_j > v_i  pardons i, which is less like the others than j is
    a_i    = 1 - max_j cs_ij, at least 0;     a_i <- a_i / max_j a_j
    a_i   <- kappa (ln(a_i / (1 - a_i)) + 1/2), cut to 0 and 1
    w     <- w - 1/m sum_i a_i u_i            over the m clients of the cohort

No number of attackers is assumed, but they must agree: a lone one is as distinct as an honest client and counts in
full, at any length, so put a clip in front. Honest clients with alike data are turned down as well; if all clients are
alike, nobody is left and the round has a `reason`. A client that has sent nothing but zeros is like nobody. The server
remembers d numbers for every client it has seen.

Departures: (1) the sum is divided by m, as in the authors' program; by the letter the step is m times as long. (2) v_i
is at least 0, as in that program: by the letter, pardoning turns negative cosines into similarity. (3) Only clients of
the same cohort are compared, each by its whole history; in the paper everyone takes part in every round. (4) All
parameters count the same: the paper's optional weights for indicative features, which it takes from the output layer,
are left out, as they are not defined for every model. (5) A history that would overflow stays at the largest number.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.aggregators._rows import cosines, mixed
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.errors import positive

_ALIKE = 1e-9  # copies of one update differ by rounding, which must not make one of them the most distinct


@dataclass(frozen=True)
class FoolsGold(ServerRule):
    """kappa: how sharply alike and distinct clients are told apart, above 0; large leaves weights of 0 and 1 only."""

    kappa: float = 1.0
    robust = True
    per_client = True

    def __post_init__(self) -> None:
        if not positive(self.kappa):
            raise EquipoiseError(f"fools-gold: kappa is {self.kappa}", "above 0; the paper uses 1")

    def init(self, w: Tensor) -> State:
        return {"ids": torch.empty(0, dtype=torch.int64, device=w.device), "history": w.new_empty((0, len(w)))}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        after, here = _added(state, cohort)
        history = after["history"][here]
        distinct = _distinct(cosines(history, history))
        weights = self._logit(distinct) / len(cohort)
        info: dict[str, Any] = {"weights": weights, "distinct": distinct}
        if not bool(weights.any()):
            info["reason"] = "every client is like another: nobody counts, and the model stays"
        return Outcome(mixed(weights, cohort.updates), after, info=info)

    def _logit(self, distinct: Tensor) -> Tensor:
        top = distinct.max()
        share = distinct / torch.where(top > 0, top, 1.0)
        return (self.kappa * (torch.logit(share) + 0.5)).clamp(0.0, 1.0)


def _added(state: State, cohort: Cohort) -> tuple[State, Tensor]:
    """The state after this round, by client id, and where the cohort is in it."""
    ids, history = state["ids"], state["history"]
    new = cohort.ids[~torch.isin(cohort.ids, ids)]
    if len(new):
        ids, order = torch.cat([ids, new]).sort()
        history = torch.cat([history, history.new_zeros((len(new), history.shape[1]))])[order]
    here = torch.searchsorted(ids, cohort.ids)
    most = torch.finfo(history.dtype).max
    return {
        "ids": ids,
        "history": history.index_copy(0, here, (history[here] + cohort.updates).clamp(-most, most)),
    }, here


def _distinct(cs: Tensor) -> Tensor:
    """[m]: 1 minus the largest similarity to another client, after pardoning."""
    cs = cs.clone().fill_diagonal_(0.0)
    v = cs.amax(1)
    pardon = torch.where(v > v[:, None], v[:, None] / torch.where(v > 0, v, 1.0), 1.0)
    found = 1.0 - (cs * pardon).amax(1)
    return torch.where(found > _ALIKE, found, 0.0)
