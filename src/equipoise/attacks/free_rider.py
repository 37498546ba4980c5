"""Malicious clients do not train: they send noise, to receive what the others have learned.

Xu, Lyu, "Towards building a robust and fair federated learning system", 2020, section "Experimental Setup".

    u_k[j] ~ Uniform[-1, 1]     anew in every round

Free riders that are added to a federation hold no data and say that they have as much as the median client.

Departures: none; the paper does not say what size a free rider claims.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class FreeRider(Attack):
    holds_data = False

    def corrupt(self, seen: Forgery) -> Tensor:
        place = torch.arange(seen.own.shape[1], device=seen.own.device)
        return (2 * seen.stream.uniform(seen.ids[:, None], place[None]) - 1).to(seen.own.dtype)
