"""FedAvg for a model that is good one gradient step later, on each client's own data.

Fallah, Mokhtari, Ozdaglar, "Personalized federated learning with theoretical guarantees: a model-agnostic meta-learning
approach", NeurIPS 2020, Algorithm 1 and section 5 for its two approximations.

    client:  g   =  grad F_k(w_k - alpha grad F_k(w_k; b'); b)                  three batches in every step
             w_k <- w_k - lr * (g - alpha H_k g)                                lr is the paper's beta
             H_k g = (grad F_k(w_k + delta g; b'') - grad F_k(w_k - delta g; b'')) / (2 delta)     variant "hf"
             H_k g = 0                                                          variant "fo": two batches in every step
    server:  the plain mean
    after:   v_k = w - alpha grad F_k(w)                                        over all of the client's data

Until then clients use w.

Departures: none known. The last step is the one that the paper's objective, mean_k F_k(w - alpha grad F_k(w)), is
about; Ditto's authors finetune for many epochs instead.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.core import At, ClientRule, Mean, Method, Objective, Schedule, ServerRule, State, Stream, WeightedMean
from equipoise.errors import not_negative, positive, require
from equipoise.methods._personal import Adapted

Variant = Literal["hf", "fo"]


@dataclass(frozen=True)
class PerFedAvg(ClientRule):
    """alpha: size of the step that clients will take, 0 or more; 0 is FedAvg with a plain mean. The paper: 0.01, 0.001.
    variant: "hf" has the term with second derivatives, from two gradients more; "fo" leaves it out. delta: how far from
    w_k the two gradients of "hf" are taken, above 0; towards 0 the term is exact, but for rounding."""

    alpha: float = 0.01
    variant: Variant = "hf"
    delta: float = 1e-3
    objective: Objective = Mean()

    def __post_init__(self) -> None:
        require(not_negative(self.alpha), "perfedavg: alpha", self.alpha, "0 or more; 0 is FedAvg")
        require(self.variant in get_args(Variant), "perfedavg: variant", self.variant, 'use "hf" or "fo"')
        require(positive(self.delta), "perfedavg: delta", self.delta, "above 0, such as 1e-3")
        self.__dict__.update(batches=3 if self.variant == "hf" else 2)

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        grad = at.grad(w - self.alpha * at.grad(w, batch=1))
        if self.variant == "fo":
            return at.descend(w, grad), state
        ahead, behind = (at.grad(w + sign * self.delta * grad, batch=2) for sign in (1, -1))
        return at.descend(w, grad - self.alpha * (ahead - behind) / (2 * self.delta)), state


@dataclass(frozen=True)
class OneStep(ClientRule):
    """w - alpha grad F_k(w): the gradient over all of a client's data, gathered batch by batch."""

    alpha: float = 0.01

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return Schedule(epochs=1, batch=given.batch)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received, {"total": torch.zeros_like(received)}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        share = at.mask.sum(-1).to(w.dtype) / at.size().clamp(min=1)
        return w, {**state, "total": state["total"] + share[:, None] * at.grad(w)}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w - self.alpha * state["total"], state


def perfedavg(
    alpha: float = 0.01, *, variant: Variant = "hf", delta: float = 1e-3, server: ServerRule = WeightedMean("uniform")
) -> Method:
    return Method("perfedavg", Adapted(PerFedAvg(alpha, variant, delta), OneStep(alpha)), server)
