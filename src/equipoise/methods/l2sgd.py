"""Every client keeps a model of its own; a coin decides when all of them move towards their mean.

Hanzely, Richtarik, "Federated learning of a mixture of global and local models", 2020, Algorithm 1 (L2GD), with batches
for full gradients; the objective is its Equation 2, mean_k F_k(x_k) + lam/2 mean_k ||x_k - mean x||^2.

    a round:  J local steps, then the mean:  P(J = j) = p (1 - p)^j, the same J for all clients
    client:   x_k <- x_k - lr * grad F_k(x_k; b)        J times
    server:   w   <- mean_k x_k
    client:   x_k <- x_k - min(1, lr lam (1 - p) / p) (x_k - w)
    variant = "local", as in Ditto's experiments: no coin, the given epochs or steps, and the pull within each of them
    client:   x_k <- x_k - lr * (grad F_k(x_k; b) + lam (x_k - w))       w: the mean at the start of the round

The paper throws a coin before every step, an aggregation with probability p; a round here is what lies between two
aggregations. Its step sizes are alpha/(n (1-p)) and alpha lam/(n p): with the first called lr, the second is
lr lam (1-p)/p, for any number n of clients. lr must be at most p / (2 lam (1-p)) for its convergence theorem.

Departures: the paper's second step is not cut at 1, where all models are their mean; beyond 2 it would diverge. All
clients take part in the paper; with fewer w is the mean of those drawn, and a client moves towards w when it is drawn
the next time (and before it is evaluated). The server takes the plain mean of models, or what `server` makes of
x_k - w. Ditto's released program moves w by the share of clients drawn times their mean instead. Variance reduction
(the paper's Algorithm 2, L2SGD+) is left out: it stores a gradient per sample.
"""

from dataclasses import dataclass, replace
from math import floor, log1p
from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.core import At, ClientRule, Mean, Method, Objective, Schedule, ServerRule, State, Stream, WeightedMean
from equipoise.errors import require
from equipoise.methods._personal import require_strength

Variant = Literal["coin", "local"]


@dataclass(frozen=True)
class L2SGD(ClientRule):
    """lam: strength of the pull towards the mean, 0 or more; 0 is local training, towards infinity all models are their
    mean. p: chance of an aggregation, above 0 and below 1; (1 - p) / p local steps lie between two of them. variant:
    "coin" draws how many local steps a round has, and models are pulled after them; "local" has those of the run, pulls
    in each, and needs no p."""

    lam: float = 1.0
    p: float = 0.1
    variant: Variant = "coin"
    objective: Objective = Mean()
    personalised = True

    def __post_init__(self) -> None:
        require_strength("l2sgd", self.lam, "local training")
        require(0 < self.p < 1, "l2sgd: p", self.p, "a chance above 0 and below 1")
        require(self.variant in get_args(Variant), "l2sgd: variant", self.variant, 'use "coin" or "local"')

    def init(self, w: Tensor) -> State:
        return {"own": w.clone(), "pull": w.new_zeros(len(w))}

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        if self.variant == "local":
            return given
        chance = float(stream.uniform(torch.zeros(1, dtype=torch.int64)))
        return replace(given, steps=floor(log1p(-chance) / log1p(-self.p)))

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received, {"own": self.personal(received, state)}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        own = state["own"]
        grad = at.grad(own) if self.variant == "coin" else at.grad(own) + self.lam * (own - w)
        return w, {**state, "own": at.descend(own, grad)}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        pull = min(1.0, at.lr * self.lam * (1 - self.p) / self.p) if self.variant == "coin" else 0.0
        return state["own"], {**state, "pull": torch.full_like(state["pull"], pull)}

    def personal(self, w: Tensor, state: State) -> Tensor:
        return state["own"] - state["pull"][:, None] * (state["own"] - w)


def l2sgd(
    lam: float = 1.0,
    p: float = 0.1,
    *,
    variant: Variant = "coin",
    server: ServerRule = WeightedMean("uniform"),
) -> Method:
    return Method("l2sgd", L2SGD(lam, p, variant), server)
