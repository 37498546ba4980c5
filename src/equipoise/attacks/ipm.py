"""Malicious clients all send the honest mean the wrong way round.

Xie, Koyejo, Gupta, "Fall of empires: breaking Byzantine-tolerant SGD by inner product manipulation", UAI 2019.

    u_k <- -epsilon mu      mu: mean of the honest updates

The server's direction then has a negative inner product with mu as soon as epsilon f > n - f under a plain mean; a
small epsilon hides among the honest, and makes the steps of selecting rules go backwards.

Departures: none; epsilon is 0.1 (against Krum) and 100 in later comparisons. search is not in the paper: the epsilon
that leads the server's actual rule furthest along -mu, from epsilon / 100 to 100 epsilon. The paper was not at hand to
give the number of the equation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.attacks._forging import Forging, Line, mean
from equipoise.errors import not_negative, require


@dataclass(frozen=True, kw_only=True)
class IPM(Forging):
    """epsilon: size of the forged update relative to the honest mean, 0 or more; 0 sends nothing learned at all."""

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not_negative(self.epsilon), "ipm: epsilon", self.epsilon, "0 or more; 0.1 hides, 100 does not")

    def line(self, rows: Tensor, f: int) -> Line:
        mu = mean(rows)
        return Line(torch.zeros_like(mu), -mu, self.epsilon)
