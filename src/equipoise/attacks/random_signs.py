"""Malicious clients train honestly and then give every number that they send a random sign.

Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with majority vote is communication efficient and fault
tolerant", ICLR 2019 (blind multiplicative adversaries); sign-randomising adversaries of Xu, Lyu, "Towards building a
robust and fair federated learning system", 2020.

    u_k[j] <- s_kj u_k[j],   s_kj = 1 or -1 with equal chances, anew in every round

Departures: none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class RandomSigns(Attack):
    def corrupt(self, seen: Forgery) -> Tensor:
        place = torch.arange(seen.own.shape[1], device=seen.own.device)
        flip = seen.stream.bits(seen.ids[:, None], place[None]) < 0
        return torch.where(flip, -seen.own, seen.own)
