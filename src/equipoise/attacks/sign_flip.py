"""Malicious clients train honestly and then send the opposite, `scale` times as large.

Li, Xu, Chen, Giannakis, Ling, "RSA: Byzantine-robust stochastic aggregation methods for distributed learning from
heterogeneous datasets", AAAI 2019 (sign-flipping attack).

    u_k <- -scale * u_k

Departures: none; the paper's magnitude is an experiment's choice, ours defaults to 1.
"""

from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """scale: size of the forged update relative to the honest one; 1 keeps the norm."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isfinite(self.scale):
            raise EquipoiseError(f"sign-flip: scale is {self.scale}", "a finite number; 1 keeps the norm")

    def corrupt(self, seen: Forgery) -> Tensor:
        return -self.scale * seen.own
