"""What clients say about themselves, kept within what their cohort makes believable.

Methods that give more weight to whoever reports a large loss, a large size or a large gap hand the model to whoever
lies best: one client that reports a loss of 1e30 owns q-FFL's model. The guard stands between the reports and every
server rule, and no rule sees that it is there. With the median of a round's reports and their spread (1.4826 times the
median distance from it: the standard deviation, if they were normal), of m >= 3 clients:

    winsorise   x_k <- x_k, no further from the median than width times the spread
    rank        x_k <- median + spread Phi^-1((r_k + 1/2) / m),  r_k = 0 .. m-1 the rank; equal reports share theirs
    sizes       n_k <- min(n_k, width times the median size), in both cases: small sites tell no lie worth telling

Both hold while fewer than half of a cohort lie. Winsorising leaves honest reports as they are, except the farthest out;
a liar counts as one of those. Ranks change every report, and leave of a lie only its place in the order. Losses that
were not negative stay so. Where most clients report the same to the bit, the spread is the larger of that number and 1.
Flags, which are not floating point numbers, pass as they are.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.engine.exchange import Replies

_NORMAL = 1.4826  # standard deviations in a median distance
_FEWEST = 3  # with two reports there is no telling who is out of line


def guarded(replies: Replies, how: str, width: float) -> tuple[Replies, tuple[int, ...]]:
    """The replies with believable reports, and the clients whose reports were out of bounds."""
    if how == "off" or len(replies.ids) < _FEWEST:
        return replies, ()
    out = torch.zeros(len(replies.ids), dtype=torch.bool, device=replies.ids.device)

    def believable(reports: Tensor) -> Tensor:
        nonlocal out
        x = reports.to(torch.float64).reshape(len(out), -1)
        middle, spread = _centre(x)
        low, high = middle - width * spread, middle + width * spread
        out |= ((x < low) | (x > high)).any(1)
        held = x.clamp(low, high) if how == "winsorise" else middle + spread * _scores(x)
        held = torch.where((x >= 0).all(0), held.clamp(min=0.0), held)
        return held.reshape(reports.shape).to(reports.dtype)

    losses = None if replies.losses is None else believable(replies.losses)
    signals = {n: believable(s) if s.is_floating_point() else s for n, s in replies.signals.items()}
    most = (width * replies.sizes.to(torch.float64).median()).to(replies.sizes.dtype)
    out |= replies.sizes > most
    sizes = replies.sizes.clamp(max=most)
    return replace(replies, losses=losses, signals=signals, sizes=sizes), tuple(replies.ids[out].tolist())


def _centre(x: Tensor) -> tuple[Tensor, Tensor]:
    """The median of every column and the spread around it; of two middle values the mean."""
    middle = torch.quantile(x, 0.5, dim=0)
    spread = _NORMAL * torch.quantile((x - middle).abs(), 0.5, dim=0)
    return middle, torch.where(spread > 0, spread, middle.abs().clamp(min=1.0))


def _scores(x: Tensor) -> Tensor:
    """Normal scores of every column; equal values get the mean of their ranks."""
    below = (x[None, :, :] < x[:, None, :]).sum(1, dtype=torch.float64)
    equal = (x[None, :, :] == x[:, None, :]).sum(1, dtype=torch.float64)
    rank = below + (equal - 1) / 2
    return torch.erfinv(2 * (rank + 0.5) / len(x) - 1) * 2**0.5
