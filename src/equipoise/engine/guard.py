"""What clients say about themselves, kept within what their cohort makes believable.

Methods that give more weight to whoever reports a large loss, a large size or a large gap hand the model to whoever
lies best: one client that reports a loss of 1e30 owns q-FFL's model. The guard stands between the reports and every
server rule, and no rule sees that it is there. With the median of a round's reports and their spread (1.4826 times the
median distance from it: the standard deviation, if they were normal), of m >= 3 clients, both taken again without the
reports that lie further than width times the spread from the median, and z_k spreads between the median and x_k:

    redescend   |z_k| <= width: x_k;  up to 3 width: falls in a line from there back to the median;  beyond: the median
    winsorise   x_k, no further from the median than width times the spread
    rank        median + spread Phi^-1((r_k + 1/2) / m),  r_k = 0 .. m-1 the rank; equal reports share theirs
    sizes       n_k <- min(n_k, width times the median size), in all cases: small sites tell no lie worth telling

All hold while fewer than half of a cohort lie. A report that cannot be believed says nothing, and redescending takes it
as if nothing had been said (Hampel, "The influence curve and its role in robust estimation", JASA 1974); an honest
report a little out of line still counts for more than the median. Winsorising and ranks leave of a lie the first place
in the order, round after round, and that is all that AFL and FedLF look at in the long run: `docs/guides/guard.md` has
the figures. Losses that were not negative stay so. Where most clients report the same to the bit, the spread is the
larger of that number and 1. Flags, which are not floating point numbers, pass as they are.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.engine.exchange import Replies

_NORMAL = 1.4826  # standard deviations in a median distance
_FEWEST = 3  # with two reports there is no telling who is out of line
_NOTHING = 3.0  # widths from the median from which on a report counts for nothing


def guarded(replies: Replies, how: str, width: float) -> tuple[Replies, Tensor]:
    """The replies with believable reports, and whose reports were out of bounds [K]."""
    out = torch.zeros(len(replies.ids), dtype=torch.bool, device=replies.ids.device)
    if how == "off" or len(replies.ids) < _FEWEST:
        return replies, out

    def believable(reports: Tensor) -> Tensor:
        x = reports.to(torch.float64).reshape(len(out), -1)
        held, beyond = _held(x, how, width)
        out.logical_or_(beyond.any(1))
        return held.reshape(reports.shape).to(reports.dtype)

    losses = None if replies.losses is None else believable(replies.losses)
    signals = {n: believable(s) if s.is_floating_point() else s for n, s in replies.signals.items()}
    most = (width * replies.sizes.to(torch.float64).median()).to(replies.sizes.dtype)
    out |= replies.sizes > most
    sizes = replies.sizes.clamp(max=most)
    return replace(replies, losses=losses, signals=signals, sizes=sizes), out


def probed(answers: Tensor, how: str, width: float) -> Tensor:
    """The losses [T, K] that K clients report of T trial models, guarded model by model.

    An answer that is not finite is taken as the median: one client must not stop a line search. Where that is true of
    more than half, the trial is at fault, and they stay infinite.
    """
    x = answers.to(torch.float64).T
    x = torch.where(torch.isfinite(x), x, torch.inf)
    middle = x.sort(0).values[(len(x) - 1) // 2]
    x = torch.where(torch.isfinite(x), x, middle)
    if how != "off" and len(x) >= _FEWEST:
        sound = torch.isfinite(middle)
        x[:, sound] = _held(x[:, sound], how, width)[0]
    return x.T.to(answers.dtype)


def _held(x: Tensor, how: str, width: float) -> tuple[Tensor, Tensor]:
    """Reports [m, c] as they are counted, column by column, and which of them were out of bounds."""
    middle, spread = _centre(x, width)
    low, high = middle - width * spread, middle + width * spread
    if how == "rank":
        held = middle + spread * _scores(x)
    elif how == "winsorise":
        held = x.clamp(low, high)
    else:
        left = (_NOTHING - (x - middle).abs() / (width * spread)).clamp(0.0, _NOTHING - 1) / (_NOTHING - 1)
        held = middle + left * (x.clamp(low, high) - middle)
        held = torch.where((x < low) | (x > high), held, x)  # what is believed stays as it is, to the bit
    held = torch.where((x >= 0).all(0), held.clamp(min=0.0), held)
    return held, (x < low) | (x > high)


def _centre(x: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """The median of every column and the spread around it, and both again without what is out of bounds."""
    middle, spread = _of_column(x)
    spread = torch.where(spread > 0, spread, middle.abs().clamp(min=1.0))
    within = torch.where((x - middle).abs() <= width * spread, x, torch.nan)  # at least half of a column
    again, closer = _of_column(within)
    return again, torch.where(closer > 0, closer, spread)


def _of_column(x: Tensor) -> tuple[Tensor, Tensor]:
    """The median and spread of the numbers in every column."""
    middle = _median(x)
    return middle, _NORMAL * _median((x - middle).abs())


def _median(x: Tensor) -> Tensor:
    """Of the numbers in every column, those that are NaN aside; of two middle values the mean. NaN where there is none.

    `nanquantile` gives the same, by five times as many operations, which a GPU takes its time to be told.
    """
    last = (x == x).sum(0, keepdim=True) - 1
    up = x.sort(0).values  # NaN comes last
    low, high = up.gather(0, (last.clamp(min=0) // 2)), up.gather(0, (last + 1) // 2)
    return torch.lerp(low, high, 0.5)[0]


def _scores(x: Tensor) -> Tensor:
    """Normal scores of every column; equal values get the mean of their ranks."""
    below = (x[None, :, :] < x[:, None, :]).sum(1, dtype=torch.float64)
    equal = (x[None, :, :] == x[:, None, :]).sum(1, dtype=torch.float64)
    rank = below + (equal - 1) / 2
    return torch.erfinv(2 * (rank + 0.5) / len(x) - 1) * 2**0.5
