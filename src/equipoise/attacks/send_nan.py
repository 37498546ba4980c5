"""Malicious clients send NaN or infinity, which would spoil any sum it got into.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant gradient descent",
NeurIPS 2017: a Byzantine client may send anything. No paper names this attack.

    u_k[j] <- value     NaN or infinity; for all j, or for one of them

Whoever sends it is to be turned away before any rule computes with it, and the round to go on without.

Departures: there is nothing to depart from; with everywhere = false, the one place is drawn anew for every client and
round.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class SendNaN(Attack):
    """value: what is sent. everywhere: in place of every number; otherwise of one, and the rest is honest."""

    turned_away = True
    value: Literal["nan", "inf", "-inf"] = "nan"
    everywhere: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value not in ("nan", "inf", "-inf"):
            raise EquipoiseError(f"send-nan: value is {self.value!r}", 'use "nan", "inf" or "-inf"')

    def corrupt(self, seen: Forgery) -> Tensor:
        bad = float(self.value)
        if self.everywhere:
            return torch.full_like(seen.own, bad)
        place = seen.stream.integers(seen.own.shape[1], seen.ids)
        return seen.own.scatter(1, place[:, None], bad)
