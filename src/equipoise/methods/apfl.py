"""Every client uses a mixture of the global model and one of its own, which it trains at the mixture.

Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", 2020, Algorithm 1, and Equation 10 for alpha.

    client:  mix_k   =  alpha_k v_k + (1 - alpha_k) w_k                  v_k and alpha_k are kept between rounds
             v_k     <- v_k - lr * alpha_k grad F_k(mix_k; b)            the gradient of F_k(mix_k) in v_k
             w_k     <- w_k - lr * grad F_k(w_k; b)                      from w_k = w; this alone is sent
             alpha_k <- alpha_k - lr * <v_k - w_k, grad F_k(mix_k; b)>   with adaptive = true, in the first step of a
                                                                         round, cut to [0, 1]
    server:  the plain mean;   clients use alpha_k v_k + (1 - alpha_k) w

All three steps start from the same v_k, w_k and alpha_k.

Departures: the paper writes alpha's step with the index of a local step; as in the authors' released program it is
taken once a round. That program adds 0.02 alpha to alpha's gradient, for which the paper has no word: left out. With
the first step of a round the mixture is already one with the w that was just received.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import SGD, At, ClientRule, Mean, Method, Objective, ServerRule, State, WeightedMean
from equipoise.errors import require


@dataclass(frozen=True)
class APFL(ClientRule):
    """alpha: share of the own model in the mixture, 0 to 1; 0 is FedAvg (with a plain mean), 1 is local training. The
    paper: 0.25, 0.5 and 0.75. adaptive: whether clients learn alpha, each its own, from this one on."""

    alpha: float = 0.5
    adaptive: bool = False
    objective: Objective = Mean()
    personalised = True

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "apfl: alpha", self.alpha, "from 0 (FedAvg) to 1 (local training)")

    def init(self, w: Tensor) -> State:
        return {"v": w.clone(), "alpha": w.new_full((len(w),), self.alpha)}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received, {"first": torch.ones_like(state["alpha"])} if self.adaptive else {}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        v, alpha = state["v"], state["alpha"]
        grad = at.grad(_mixed(v, w, alpha))
        new = {**state, "v": at.descend(v, alpha[:, None] * grad)}
        if self.adaptive:
            slope = ((v - w).to(torch.float64) * grad.to(torch.float64)).sum(-1)
            new["alpha"] = (alpha - at.lr * state["first"] * slope).clamp(0.0, 1.0).to(alpha.dtype)
            new["first"] = torch.zeros_like(state["first"])
        return at.descend(w, at.grad(w)), new

    def outward(self) -> ClientRule:
        return SGD(self.objective)

    def personal(self, w: Tensor, state: State) -> Tensor:
        return _mixed(state["v"], w, state["alpha"])


def _mixed(v: Tensor, w: Tensor, alpha: Tensor) -> Tensor:
    return alpha[:, None] * v + (1 - alpha[:, None]) * w


def apfl(alpha: float = 0.5, *, adaptive: bool = False, server: ServerRule = WeightedMean("uniform")) -> Method:
    return Method("apfl", APFL(alpha, adaptive), server)
