"""Lengths of updates and distances between them, in float64, without a float64 copy of them all.

    ||x_i - x_j||^2 = ||x_i||^2 + ||x_j||^2 - 2 x_i . x_j

is one matrix product, but where x_i and x_j lie close together compared with their lengths, the right-hand side is the
difference of two large numbers and holds nothing but rounding. So a row of middling length is subtracted from all of
them first (not the mean: one row at 1e30 would carry it away from all others), and what cancels even then is computed
again, from the differences themselves.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

_NUMBERS = 1 << 20  # float64 numbers in memory at a time
_CLOSE = 1e-3  # what is left of a difference that lost three of its sixteen digits


def columns(width: int, rows: int) -> Iterator[slice]:
    """Cuts `width` columns so that `rows` rows of one piece are about a million numbers."""
    step = max(1, _NUMBERS // max(1, rows))
    return (slice(start, min(start + step, width)) for start in range(0, width, step))


def norms(rows: Tensor) -> Tensor:
    """[K] float64: the length of every row; 1e30 squared has room here."""
    k, d = rows.shape
    total = torch.zeros(k, dtype=torch.float64, device=rows.device)
    for piece in columns(d, k):
        total += rows[:, piece].double().square().sum(1)
    return total.sqrt()


def squared_distances(rows: Tensor) -> Tensor:
    """[K, K] float64, symmetric to the bit, 0 on the diagonal; infinite, never NaN, beyond what float64 can hold."""
    k, d = rows.shape
    centre = rows[norms(rows).argsort(stable=True)[(k - 1) // 2]]
    gram = torch.zeros((k, k), dtype=torch.float64, device=rows.device)
    for piece in columns(d, k):
        x = rows[:, piece].double() - centre[piece].double()
        gram += x @ x.T
    own = gram.diagonal()
    together = own[:, None] + own[None, :]
    apart = together - (gram + gram.T)
    cancelled = ~(apart > _CLOSE * together) & (together != 0)  # ~(a > b) is true of NaN as well
    i, j = cancelled.triu(1).nonzero(as_tuple=True)
    apart[i, j] = apart[j, i] = _of_pairs(rows, i, j)
    return apart.fill_diagonal_(0.0)


def _of_pairs(rows: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """||rows_i - rows_j||^2 from the differences, for pairs of rows."""
    total = torch.zeros(len(i), dtype=torch.float64, device=rows.device)
    for piece in columns(rows.shape[1], len(rows) + len(i)):
        x = rows[:, piece].double()
        total += (x[i] - x[j]).square().sum(1)
    return total.nan_to_num(nan=torch.inf, posinf=torch.inf)
