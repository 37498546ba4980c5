"""Every client trains alone on its own data: what a client has without a federation.

The baseline of every personalisation paper; "standalone" in Xu and Lyu, "A reputation mechanism is all you need:
collaborative fairness and adversarial robustness in federated learning", 2021.

    client:  v_k <- v_k - lr * grad F_k(v_k; b)       in the rounds in which it is drawn, from v_k = the initial model
    server:  nothing

Departures: none. A client trains only when it is drawn, so that methods are compared at the same amount of work.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import Aggregator, At, ClientRule, Cohort, Mean, Method, Objective, State


@dataclass(frozen=True)
class Alone(ClientRule):
    """Plain SGD on a model of one's own."""

    objective: Objective = Mean()
    personalised = True

    def init(self, w: Tensor) -> State:
        return {"own": w.clone()}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return state["own"], {}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.grad(w)), state

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, {**state, "own": w}

    def personal(self, w: Tensor, state: State) -> Tensor:
        return state["own"]


@dataclass(frozen=True)
class Nothing(Aggregator):
    """The model stays as it is, whatever clients send; so nothing they send can do harm."""

    robust = True

    def combine(self, cohort: Cohort) -> Tensor:
        return torch.zeros_like(cohort.start)


def local() -> Method:
    return Method("local", Alone(), Nothing())
