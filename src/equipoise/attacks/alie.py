"""Malicious clients all send the honest mean shifted by as many deviations as go unnoticed among honest clients.

Baruch, Baruch, Goldberg, "A little is enough: circumventing defenses for distributed learning", NeurIPS 2019
(the attack that prevents convergence).

    u_k <- mu - z sigma      mu, sigma: mean and standard deviation of the honest updates, coordinate by coordinate
    z = Phi^-1((n - f - s) / (n - f)),   s = floor(n/2 + 1) - f      n clients in the round, f of them malicious

s honest clients further out than the forged update make it part of the majority. Updates are start - end: minus leads
uphill where mu is positive, as with the paper's gradients.

Departures: mu and sigma are those of the honest clients, which the paper's attacker estimates from its own; sigma
divides by the number of clients. The fraction is kept half a client away from 0 and 1, where z would be infinite: with
f > n/2, malicious clients are the majority already. With f = 1 or 2, z is 0 or a little below, as the equation has it.
search is not in the paper: the z, above 0, that leads the server's actual rule furthest along -sigma. The paper was not
at hand to give the number of the algorithm.
"""

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from equipoise.attacks._forging import Forging, Line, deviation, mean
from equipoise.errors import EquipoiseError


@dataclass(frozen=True, kw_only=True)
class ALIE(Forging):
    """z: the shift in deviations; nothing given: the equation's, from the numbers of the round. 0 sends the mean."""

    z: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.z is not None and not isfinite(self.z):
            raise EquipoiseError(f"alie: z is {self.z}", "a finite number, or leave it out")

    def line(self, rows: Tensor, f: int) -> Line:
        return Line(mean(rows), -deviation(rows), unnoticed(len(rows) + f, f) if self.z is None else self.z)


def unnoticed(n: int, f: int) -> float:
    """z for f malicious clients of n, at least one of them honest."""
    honest = n - f
    supporters = n // 2 + 1 - f
    share = min(max((honest - supporters) / honest, 0.5 / honest), 1 - 0.5 / honest)
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))
