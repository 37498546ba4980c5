"""Clients vote on the sign of every parameter's step; all steps have the same size.

Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with majority vote is communication efficient and fault
tolerant", ICLR 2019, Algorithm 1.

    v_k <- (1 - beta) u_k + beta v_k                  the momentum of each client, at first 0
    w   <- w - server_lr sign(sum_k p_k sign(v_k))    for every coordinate; a tie, or no vote at all, is no step

With p_k = 1/m (uniform) nobody has more than a vote, and the honest decide every coordinate on which they agree as long
as they are more than half. Capped weights: more than three quarters; size weights promise nothing where sizes are
claims. beta = 0 is signSGD without momentum; then rows may also be mixtures of clients.

Under "weights" the log says how much of the step came from whom: every coordinate that moves counts for those who voted
for it, by their weights. "decided" is the share of coordinates that move.

Departures: the server keeps the momentum, from what clients send, which is the same as long as all take part in all
rounds; whoever is absent keeps the old one, and at most `cap` clients, the newest, are remembered. Messages are not
compressed to signs on their way. The paper's weight decay is left out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise import history
from equipoise.aggregators._order import coordinatewise
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.errors import positive
from equipoise.weighting import Weights, check_weights, shares

_TIE = 1e-12  # weights that sum to 1 are this exact


@dataclass(frozen=True)
class SignSGD(ServerRule):
    """server_lr: the size of every step, above 0. beta: momentum, from 0 (none) to below 1. cap: how many clients are
    remembered, 1 or more.
    """

    server_lr: float = 1e-4
    beta: float = 0.9
    cap: int = 200
    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        if not positive(self.server_lr):
            raise EquipoiseError(f"sign-sgd: server_lr is {self.server_lr}", "the size of every step, above 0")
        if not 0 <= self.beta < 1:
            raise EquipoiseError(f"sign-sgd: beta is {self.beta}", "momentum, from 0 (none) to below 1")
        if not isinstance(self.cap, int) or self.cap < 1:
            raise EquipoiseError(f"sign-sgd: cap is {self.cap}", "clients to remember, 1 or more")
        check_weights("sign-sgd", self.weights)
        self.__dict__["per_client"] = self.beta > 0

    def init(self, w: Tensor) -> State:
        return history.blank(rows=w) if self.beta > 0 else {}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        v = (1.0 - self.beta) * cohort.updates + self.beta * self._remembered(cohort, state)
        if self.beta > 0:
            state = history.remember(state, cohort.ids, cohort.round, self.cap, rows=v)
        p = shares(cohort.sizes, self.weights)
        moves, weights = coordinatewise(v, lambda x: _vote(x.sign().double(), p))
        info = {"weights": weights, "decided": float((moves != 0).double().mean())}
        return Outcome(self.server_lr * moves, state, info=info)

    def _remembered(self, cohort: Cohort, state: State) -> Tensor:
        """[m, d]: the momentum of the cohort, 0 for whoever is new."""
        if self.beta == 0 or len(state["ids"]) == 0:
            return torch.zeros_like(cohort.updates)
        at, known = history.recall(state, cohort.ids)
        return torch.where(known[:, None], state["rows"][at], 0.0)


def _vote(votes: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The sign of every column's sum, and [m]: in how many columns each row decided it, shared with those who agree."""
    total = p @ votes
    won = torch.where(total.abs() > _TIE, total.sign(), 0.0)
    winners = ((votes == won) & (won != 0)).double() * p[:, None]
    return won, (winners / winners.sum(0).clamp(min=_TIE)).sum(1)
