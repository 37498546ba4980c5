"""Malicious clients train honestly and then send the reciprocal of a random half of their numbers.

Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with majority vote is communication efficient and fault
tolerant", ICLR 2019 (blind multiplicative adversaries); value-inverting adversaries of Xu, Lyu, "Towards building a
robust and fair federated learning system", 2020.

    u_k[j] <- 1 / u_k[j]     for each j with a chance of 1/2, anew in every round

Departures: the papers leave 1/0 open. Here 0 stays 0, and a magnitude below 1e-10 counts as 1e-10, so that what is sent
is finite: admission would otherwise turn the client away before any rule meets it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class ValueInvert(Attack):
    def corrupt(self, seen: Forgery) -> Tensor:
        place = torch.arange(seen.own.shape[1], device=seen.own.device)
        chosen = seen.stream.bits(seen.ids[:, None], place[None]) < 0
        return torch.where(chosen, seen.own.sign() / seen.own.abs().clamp(min=1e-10), seen.own)
