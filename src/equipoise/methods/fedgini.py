"""Clients count by the rank of their loss, so that no claim buys more than the last rank.

Li and others, FedGini, 2023, as cited and compared by Pan, Li, Yu, Wang, Wang, Tang, Zhao, "FedLF: layer-wise fair
federated learning", AAAI 2024, section "Baselines".

    clients in ascending order of loss, i = 0 .. m-1;   r_i = i (i+1) / [(m-1) m (m+1) / 3],  which sum to 1
    form = "added"   a_i = 1 + (1 - eps) r_i, divided by their sum
           "mixed"   a_i = eps / m + (1 - eps) r_i
    w <- w - sum_i a_i u_i

eps = 1 is the plain mean. "added" gives nobody more than 1 + 3 / (m+1) times the least; "mixed" with eps = 0 ignores
the client with the smallest loss.

Departures: the paper could not be read and no program of its authors was found; "added" is the weight in the program
behind FedLF's comparison, "mixed" that of another public program, which also waits until the model moves little. The
first looks weights up by sorting order in place of rank, the second gives the largest to the smallest loss; here a
larger loss has the larger weight. Clients with the same loss share the weights of their ranks equally, so that equal
losses give the plain mean. The default eps is the first program's.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.core import SGD, Cohort, EquipoiseError, Method, normalised
from equipoise.methods._reweighting import Reweighting, check_share

Form = Literal["added", "mixed"]


@dataclass(frozen=True)
class FedGini(Reweighting):
    """eps: how much everyone counts the same, from 0 to 1; 1 is the plain mean. form: "added", 1 for everyone and
    (1 - eps) r_i on top, or "mixed", eps / m and (1 - eps) r_i; r_i grows with the rank of the loss."""

    eps: float = 0.5
    form: Form = "added"

    def __post_init__(self) -> None:
        check_share("fedgini", "eps", self.eps, "from 0 to 1; 1 is the plain mean")
        if self.form not in ("added", "mixed"):
            raise EquipoiseError(f"fedgini: form is {self.form!r}", 'use "added" or "mixed"')

    def weigh(self, losses: Tensor, cohort: Cohort) -> tuple[Tensor, str]:
        m = len(losses)
        if m == 1:
            return torch.ones_like(losses), ""
        i = torch.arange(m, dtype=torch.float64, device=losses.device)
        base = 1.0 if self.form == "added" else self.eps / m
        by_rank = normalised(base + (1 - self.eps) * i * (i + 1) * 3 / ((m - 1) * m * (m + 1)))
        rank = losses.argsort(stable=True).argsort()
        same = (losses[:, None] == losses).to(torch.float64)
        return same @ by_rank[rank] / same.sum(1), ""


def fedgini(eps: float = 0.5, *, form: Form = "added") -> Method:
    return Method("fedgini", SGD(), FedGini(eps, form))
