"""Participants keep models of their own and are paid with a share of the common update, instead of their own update.

Xu, Lyu, Ma, Miao, Foo, Low, "Gradient driven rewards to guarantee fairness in collaborative machine learning", NeurIPS
2021: the cosine gradient Shapley value (CGSV) and the training-time gradient reward built on it.

    u_k    = gamma (start_k - end_k) / ||start_k - end_k||       k's own model before and after training
    u      = sum_k p_k u_k                                       p_k: last round's r_k; in the first round n_k / sum n
    r_k    <- alpha r_k + (1 - alpha) cos(u, u_k), at least 0.001, then divided by their sum
    q_k    = tanh(beta r_k) / max_j tanh(beta r_j)
    own_k  <- start_k - largest(u, q_k)                          the share q_k of u that is largest in magnitude
    w      <- w - u                                              the server's own model

With q_k = 1 a participant ends at start_k - u. As r sums to 1, tanh is nearly linear unless beta is well above the
number of participants; beta towards infinity gives everyone all of u.

Departures: the definition was checked against the program that the authors released, not against the text of the paper.
As there, shares are taken in each tensor and rounded up (over the whole model as an option), but quota 1 gives
everything, and of equal magnitudes the first counts as larger; the program never gives a tensor's smallest element. A
zero update stays zero. A zero aggregate agrees with nobody: cosines are 0, and the log has a `reason`. Partial
participation is ours: reputations are divided by their sum over everyone known, the absent keep theirs, and the update
of a newcomer has no weight until it has been judged.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import Cohort, Method, Outcome, ServerRule, State, normalised
from equipoise.errors import positive, require
from equipoise.methods.rffl import (
    Largest,
    OwnModel,
    Standing,
    aggregated,
    enrolled,
    largest,
    ledger,
    no_reputations,
    standing,
    told,
)
from equipoise.questions import Later, near
from equipoise.solvers import Floats

LEAST = 1e-3
"""No reputation is smaller, before they are divided by their sum."""


@dataclass(frozen=True)
class Rewarded(OwnModel):
    """SGD on a model of one's own; the server's delta replaces what was learned in the round."""

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        return {**state, "own": state["own"] + download}


@dataclass(frozen=True)
class CGSV(ServerRule):
    """alpha: how much of the old reputation stays, from 0 up to (not including) 1; 0 forgets.

    gamma: the norm that every update is given (the authors: 0.5 on MNIST, 0.15 on CIFAR-10, 1 on text). beta: altruism,
    above 0; large gives everyone everything (the authors try 0.5 to 2, and 1e7). largest: shares of each "tensor" or of
    the whole "model".
    """

    alpha: float = 0.95
    gamma: float = 0.5
    beta: float = 2.0
    largest: Largest = "tensor"
    per_client = True
    early = True

    def __post_init__(self) -> None:
        require(0 <= self.alpha < 1, "cgsv: alpha", self.alpha, "from 0 up to (not including) 1")
        require(positive(self.gamma), "cgsv: gamma", self.gamma, "a norm above 0")
        require(positive(self.beta), "cgsv: beta", self.beta, "above 0; 1e7 gives everyone everything")
        require(self.largest in ("tensor", "model"), "cgsv: largest", self.largest, 'use "tensor" or "model"')

    def init(self, w: Tensor) -> State:
        return no_reputations()

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        return self.ahead(cohort, state).now()

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        ids, old, here = enrolled(state, near(cohort.ids).numpy())
        u, downloads, *asked = cohort.again(self._paid, None, *standing(cohort, old, here, self.largest))

        def settle(reputation: Floats, quota: Floats, weight: Floats, zero: Floats) -> Outcome:
            reason = {"reason": "the aggregate is zero: nobody agrees with it"} if zero else {}
            info = {**told(reputation[here], quota, weight), **reason}
            return Outcome(u, ledger(ids, reputation), downloads, info=info)

        return Later(Outcome(u, state, downloads), tuple(asked), settle)

    def _paid(self, _: None, *given: Tensor) -> tuple[Tensor, ...]:
        """The common update, what each is sent, and what `settle` asks for."""
        begun = Standing(*given)
        found, here = aggregated(begun, lambda lengths: self.gamma / lengths), begun.here
        new = begun.old.index_copy(0, here, self.alpha * begun.old[here] + (1 - self.alpha) * found.cos)
        reputation = normalised(new.clamp(min=LEAST))
        wish = torch.tanh(self.beta * reputation)
        quota = (wish / wish.max())[here]
        return found.u, largest(-found.u, found.place, quota), reputation, quota, found.weight, found.zero


def cgsv(alpha: float = 0.95, gamma: float = 0.5, beta: float = 2.0, *, largest: Largest = "tensor") -> Method:
    return Method("cgsv", Rewarded(), CGSV(alpha, gamma, beta, largest))
