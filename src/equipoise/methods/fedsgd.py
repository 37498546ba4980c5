"""Every client takes a single step per round, on all of its data, and the server averages; with momentum if wanted.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from decentralized
data", AISTATS 2017, section 2 (FederatedSGD); for momentum Karimireddy, He, Jaggi, "Learning from history for Byzantine
robust optimization", ICML 2021, Algorithm 2 (worker momentum).

    client:  g_k = grad F_k(w; b)                               b: all of its data, or `batch` samples of it
             m_k <- momentum m_k + (1 - momentum) g_k           m_k = g_k in its first round; kept between rounds
             w_k <- w - lr * m_k                                without momentum m_k = g_k
    server:  as FedAvg, or any rule

Momentum on the client's side averages noise away before the server looks, so that robust rules can tell it from malice.

Departures: the first m_k is g_k, not (1 - momentum) g_k, so that no client starts with a short step. With `damped =
false` the factor 1 - momentum is left out, as in that paper's program: steps are then up to 1 / (1 - momentum) times as
long. A client that is not drawn keeps its m_k as it is; the paper has everyone in every round.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core import (
    At,
    ClientRule,
    EquipoiseError,
    Mean,
    Method,
    Objective,
    Schedule,
    ServerRule,
    State,
    Stream,
    WeightedMean,
)


@dataclass(frozen=True)
class FedSGD(ClientRule):
    """batch: samples in the step, 1 or more; left out: all. momentum: from 0 up to (not including) 1; 0 is plain
    FedSGD. damped: whether a new gradient counts 1 - momentum; else it counts in full, and steps get longer."""

    batch: int | None = None
    momentum: float = 0.0
    damped: bool = True
    objective: Objective = Mean()

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise EquipoiseError(f"fedsgd: batch is {self.batch}", "1 or more; leave it out for all of a client's data")
        if not 0 <= self.momentum < 1:
            raise EquipoiseError(f"fedsgd: momentum is {self.momentum}", "from 0 up to (not including) 1")

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return replace(given, steps=1, batch=self.batch)

    def init(self, w: Tensor) -> State:
        if self.momentum == 0:
            return {}
        return {"m": torch.zeros_like(w), "moving": torch.zeros(len(w), dtype=torch.bool, device=w.device)}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        g = at.grad(w)
        if self.momentum == 0:
            return at.descend(w, g), state
        new = self.momentum * state["m"] + ((1 - self.momentum) * g if self.damped else g)
        m = torch.where(state["moving"][:, None], new, g)
        return at.descend(w, m), {"m": m, "moving": torch.ones_like(state["moving"])}


def fedsgd(
    batch: int | None = None, momentum: float = 0.0, *, damped: bool = True, server: ServerRule = WeightedMean()
) -> Method:
    return Method("fedsgd", FedSGD(batch, momentum, damped), server)
