"""FedAvg whose clients are pulled back towards the model they received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks", MLSys 2020,
Algorithm 2 and Equation 2.

    client:  w_k <- w_k - lr * (grad F_k(w_k; b) + mu (w_k - w))     the gradient of F_k + mu/2 ||w_k - w||^2
    server:  as FedAvg

Departures: the paper lets each device solve its subproblem to an inexactness gamma_k of its own; here, as in its
experiments, everyone runs the given number of epochs or steps.
"""

from dataclasses import dataclass

from torch import Tensor

from equipoise.core import At, ClientRule, Mean, Method, Objective, ServerRule, State, WeightedMean
from equipoise.errors import not_negative, require


@dataclass(frozen=True)
class FedProx(ClientRule):
    """mu: strength of the pull, 0 or more; 0 is FedAvg. The paper tries 0.001, 0.01, 0.1 and 1."""

    mu: float = 0.1
    objective: Objective = Mean()

    def __post_init__(self) -> None:
        require(not_negative(self.mu), "fedprox: mu", self.mu, "0 or more; 0 is FedAvg")

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.grad(w) + self.mu * (w - at.received)), state


def fedprox(mu: float = 0.1, *, server: ServerRule = WeightedMean()) -> Method:
    return Method("fedprox", FedProx(mu), server)
