"""FedAvg, after which every client trains on its own data, held back where the global model is sure of itself.

Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 114, 2017, Equation 3 (elastic weight
consolidation); used on clients by Yu, Bagdasaryan, Shmatikov, "Salvaging federated learning by local adaptation", 2020,
and as a baseline of Ditto (Li, Hu, Beirami, Smith, ICML 2021, section 4.4).

    rounds:  as the base method, by default FedAvg
    after:   I_i = mean_z (d loss_z(w) / d w_i)^2             the Fisher information's diagonal at w, over k's data z
             v_k <- v_k - lr * (grad F_k(v_k; b) + lam I (v_k - w))     for `epochs` epochs, from v_k = w: the gradient
                                                                       of F_k + lam/2 sum_i I_i (v_i - w_i)^2
    fisher = "batch":  I_i = mean_b (d mean_{z in b} loss_z(w) / d w_i)^2

Until then clients use w. "sample" costs a backward pass for each sample, over its whole batch, once; "batch" costs one
for each batch, but makes I smaller, about as many times as a batch has samples.

Departures: I is the empirical Fisher information (the data's labels, not labels drawn from the model), on the client's
own training data; Kirkpatrick et al. leave open how labels are drawn, and take the old task's data, which here would be
everyone's. Ditto's authors average the squares of four batches' gradients: "batch" does so over an epoch. I takes an
epoch more than `epochs`. The two papers' texts could not be looked up again: from memory, and from the program that
Ditto's authors released.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.core import At, Forward, Mean, Method, Schedule, ServerRule, State, Stream
from equipoise.errors import require
from equipoise.methods._personal import Tuning, adapted, require_strength

Fisher = Literal["sample", "batch"]


@dataclass(frozen=True)
class EWC(Tuning):
    """lam: strength of the pull, 0 or more; 0 is plain finetuning, towards infinity weights with I_i > 0 stay. Steps
    diverge once lr * lam * I_i > 2. epochs: how long clients train, 1 or more. fisher: squares of the gradients of a
    single "sample", as it is defined, or of a "batch".
    """

    lam: float = 1.0
    fisher: Fisher = "sample"

    def __post_init__(self) -> None:
        require_strength("ewc", self.lam, "plain finetuning")
        require(self.epochs >= 1, "ewc: epochs", self.epochs, "1 or more")
        require(self.fisher in get_args(Fisher), "ewc: fisher", self.fisher, 'use "sample" or "batch"')

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return replace(given, epochs=self.epochs + 1, steps=None)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received, {"information": torch.zeros_like(received), "seen": torch.zeros_like(at.size())}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        """In its first epoch a client measures, then it trains; clients need not have the same number of batches."""
        measures = state["seen"] < at.size()
        new = {**state, "seen": state["seen"] + at.mask.sum(-1)}
        if bool(measures.any()):
            share = measures.to(w.dtype) / at.size().clamp(min=1)
            new["information"] = state["information"] + share[:, None] * self._squares(at)
        moved = at.descend(w, at.grad(w) + self.lam * state["information"] * (w - at.received))
        return torch.where(measures[:, None], w, moved), new

    def _squares(self, at: At) -> Tensor:
        """[K, d]: squared gradients at w, summed over the samples of a batch."""
        if self.fisher == "batch":
            count = at.mask.sum(-1, keepdim=True)
            return count * at.grad(at.received, lambda seen: Mean()(seen.losses, at.y, at.mask)).square()
        total = torch.zeros_like(at.received)
        for j in range(at.mask.shape[1]):
            total += at.grad(at.received, _One(j, at.mask)).square()
        return total


@dataclass(frozen=True)
class _One:
    """The loss of each client's j-th sample of a batch; 0 where there is none."""

    j: int
    mask: Tensor

    def __call__(self, seen: Forward) -> Tensor:
        return torch.where(self.mask[:, self.j], seen.losses[:, self.j], 0.0)


def ewc(
    lam: float = 1.0,
    *,
    epochs: int = 50,
    fisher: Fisher = "sample",
    base: Method | None = None,
    server: ServerRule | None = None,
) -> Method:
    """`base` gives client and server rule of the global model (FedAvg); `server` overrides."""
    return adapted("ewc", EWC(epochs, lam, fisher), base, server)
