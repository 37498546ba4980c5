"""Malicious clients train honestly and then multiply what they send.

Bernstein, Zhao, Azizzadenesheli, Anandkumar, "signSGD with majority vote is communication efficient and fault
tolerant", ICLR 2019 (blind multiplicative adversaries), with the factor of Xu, Lyu, "Towards building a robust and fair
federated learning system", 2020.

    u_k <- factor * u_k

Departures: none. The program that the latter authors released draws a factor of its own for every element, between
-100 and 100; the paper's text has the one factor -100.
"""

from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class Rescale(Attack):
    """factor: what updates are multiplied with; 1 is honest."""

    factor: float = -100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isfinite(self.factor):
            raise EquipoiseError(f"rescale: factor is {self.factor}", "a finite number")

    def corrupt(self, seen: Forgery) -> Tensor:
        return self.factor * seen.own
