"""Columns in order: their sorted values, which of them are kept, and whose those are.

What a coordinate-wise rule keeps of a column is a stretch of its sorted values. With weights p_k that sum to 1 every
value takes up p_k of the line from 0 to 1, in sorted order, and a part of that line is kept: with equal weights the
two are the same.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.aggregators._distances import columns

_APART = 16  # numbers between the rows of a buffer: rows a power of two apart would share a few lines of the cache
_ROUNDING = 1e-12  # weights that sum to 1 are this exact; a smaller piece of one is none


def coordinatewise(rows: Tensor, of: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """What `of` makes of every column [d], and [m] float64: how much of it was each row's, over all columns.

    `of` is given all rows of a few columns at a time, and answers with a value and a sum over columns of rows' shares.
    """
    m, d = rows.shape
    made, whose, buffer = rows.new_empty(d), torch.zeros(m, dtype=torch.float64, device=rows.device), None
    for piece in columns(d, m, rows.device):
        width = piece.stop - piece.start
        buffer = rows.new_empty((m, width + _APART)) if buffer is None else buffer
        made[piece], share = of(buffer[:, :width].copy_(rows[:, piece]))
        whose += share / d
    return made, whose


def ascending(x: Tensor) -> Tensor:
    """Every column of x sorted. On a CPU numpy's sort of columns laid out as rows is ten times as fast as torch's."""
    if x.device.type != "cpu":
        return x.sort(dim=0).values
    turned = np.array(x.numpy().T, order="C")
    turned.sort(axis=-1)
    return torch.from_numpy(turned.T)


def middle(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """The two middle rows of sorted ones; the same one twice if their number is odd."""
    m = len(ordered)
    return ordered[(m - 1) // 2], ordered[m // 2]


def kept_of(x: Tensor, low: Tensor, high: Tensor, first: Tensor | int, kept: int) -> Tensor:
    """[m] float64: in how many columns each row's value was kept; rows with the same value share.

    In each column the sorted values number `first` to `first + kept - 1` were kept, from `low` to `high`.
    """
    inside, found = _between(x, low, high)
    if int(found.sum()) == kept * x.shape[1]:
        return found.double()
    tied = inside.sum(0, dtype=torch.int32) > kept
    single = inside[:, ~tied].sum(1, dtype=torch.int32).double()
    return single + _shared(x[:, tied], low[tied], high[tied], first if isinstance(first, int) else first[tied], kept)


def _between(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Which values are from low to high, and [m]: how many of each row. On a CPU numpy does it four times as fast."""
    if x.device.type != "cpu":
        inside = (x >= low) & (x <= high)
        return inside, inside.sum(1)
    m, n = x.shape
    flags = np.zeros((m, n + -n % 8), dtype=bool)
    values, within = x.numpy(), flags[:, :n]
    np.greater_equal(values, low.contiguous().numpy(), out=within)  # contiguous: rows of turned columns have gaps
    within &= values <= high.contiguous().numpy()
    return torch.from_numpy(within), _counted(flags)


def _counted(flags: NDArray[np.bool_]) -> Tensor:
    """[m]: how many are true in each row. Eight flags are one word, whose bytes count up to 255 by themselves."""
    words = flags.view(np.uint64)
    eights = [words[:, i : i + 255].sum(1).view(np.uint8) for i in range(0, words.shape[1], 255)]
    return torch.from_numpy(np.stack(eights).reshape(-1, len(flags), 8).sum((0, 2), dtype=np.int64))


def _shared(x: Tensor, low: Tensor, high: Tensor, first: Tensor | int, kept: int) -> Tensor:
    """The same for columns in which more rows than were kept have a value from `low` to `high`."""
    at_low, between, at_high = (x == low), (x > low) & (x < high), (x == high) & (high > low)
    of_low = ((x <= low).sum(0) - first).clamp(max=kept)
    of_high = kept - of_low - between.sum(0)
    each_low, each_high = of_low.double() / at_low.sum(0), of_high.double() / at_high.sum(0).clamp(min=1)
    return between.sum(1).double() + at_low.double() @ each_low + at_high.double() @ each_high


def weighted_middle(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The lower and the upper weighted median of every column, and [m]: in how many columns each row was the median.

    At least half of the weight is at or below the lower one, and at least half at or above the upper one.
    """
    order = x.argsort(dim=0, stable=True)
    reached = p[order].cumsum(0)
    ends = [(reached < 0.5 - _ROUNDING).sum(0), (reached <= 0.5 + _ROUNDING).sum(0).clamp(max=len(x) - 1)]
    rows = [order.gather(0, at[None])[0] for at in ends]
    whose = sum(torch.bincount(row, minlength=len(x)).double() / 2 for row in rows)
    low, high = (x.gather(0, row[None])[0] for row in rows)
    return low, high, torch.as_tensor(whose)


def weighted_rest(x: Tensor, p: Tensor, trim: float) -> tuple[Tensor, Tensor]:
    """The mean of every column without a share `trim` of the weight at either end, and [m]: how much was each row's."""
    order = x.argsort(dim=0, stable=True)
    reached = p[order].cumsum(0)
    kept = reached.clamp(max=1.0 - trim) - (reached - p[order]).clamp(min=trim)
    kept = torch.where(kept > _ROUNDING, kept, 0.0)  # a rounding error of 1e-17 times 1e30 would be no small number
    kept = torch.zeros_like(kept).scatter(0, order, kept / kept.sum(0))
    return (kept * x).sum(0).to(x.dtype), kept.sum(1)
