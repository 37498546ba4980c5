"""The middle value of what clients send, for every parameter by itself.

Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018,
Definition 1 and Algorithm 1, option I.

    w_i <- w_i - median of u_1i, ..., u_mi    for every coordinate i; with an even m the mean of the two middle values

Under "weights" the log says how much of the step came from whom: the share of coordinates in which a client's value was
the middle one, halved where there are two; equal values share.

Departures: none. Clients count the same, as in the paper, whatever sizes they report.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.aggregators._distances import columns
from equipoise.core import Cohort, Outcome, ServerRule, State


@dataclass(frozen=True)
class CoordinateMedian(ServerRule):
    """Holds as long as more than half of the cohort is honest; nothing to set."""

    robust = True

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        m, d = cohort.updates.shape
        direction = torch.empty_like(cohort.start, dtype=cohort.updates.dtype)
        weights = torch.zeros(m, dtype=torch.float64, device=cohort.updates.device)
        for piece in columns(d, m):
            x = cohort.updates[:, piece]
            low, high = middle(ascending(x))
            direction[piece] = (low + high) / 2
            weights += (_shares(x, low) + _shares(x, high)) / (2 * d)
        return Outcome(direction, state, info={"weights": weights})


def ascending(x: Tensor) -> Tensor:
    """Every column of x sorted. On a CPU numpy's sort is several times as fast as torch's."""
    return torch.from_numpy(np.sort(x.numpy(), axis=0)) if x.device.type == "cpu" else x.sort(dim=0).values


def middle(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """The two middle rows of sorted ones; the same one twice if their number is odd."""
    m = len(ordered)
    return ordered[(m - 1) // 2], ordered[m // 2]


def _shares(x: Tensor, value: Tensor) -> Tensor:
    """[m] float64: in how many columns each row has the value, shared with the other rows that have it."""
    has = x == value
    return has.double() @ (1.0 / has.sum(0).clamp(min=1).double())
