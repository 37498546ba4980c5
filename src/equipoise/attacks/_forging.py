"""What attacks share that forge one update for all malicious clients, from the mean and the spread of the honest ones.

    u_k <- origin + s * p      for every malicious client k

An update is start - end, and the server subtracts what it makes of the updates: like a gradient, mu leads downhill, and
a p with <p, mu> < 0 works against learning. With search, s is the scale for which the server's own rule goes furthest
along p from the honest mean:

    s* = argmax_s <F(s) - mu, p> / ||p||      F(s): the direction that the server would take

Honest updates that are not finite are left out, as admission will. In a round without honest clients, what its own
clients learned stands in for them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.aggregators._distances import columns
from equipoise.attacks._line_search import check_evaluations, line_search
from equipoise.threat import Attack, Forgery


class Line(NamedTuple):
    """Where forged updates lie, origin [d] and p [d] in float64, and which of them the equation names."""

    origin: Tensor
    p: Tensor
    scale: float


@dataclass(frozen=True, kw_only=True)
class Forging(Attack, ABC):
    """search: look in every round for the scale that leads the server's actual rule furthest astray; otherwise that of
    the equation. evaluations: how many scales a search tries, 3 or more; each asks the rule once."""

    search: bool = False
    evaluations: int = 17

    def __post_init__(self) -> None:
        super().__post_init__()
        check_evaluations(type(self).__name__, self.evaluations)

    @abstractmethod
    def line(self, rows: Tensor, f: int) -> Line:
        """From the honest updates [h, d], one at least, and the number of malicious clients of the round."""

    def corrupt(self, seen: Forgery) -> Tensor:
        rows = known(seen)
        if len(rows) == 0:
            return seen.own
        line = self.line(rows, len(seen.own))
        scale = line.scale if isfinite(line.scale) else 0.0
        length = float(line.p.norm())
        if self.search and length > 0:
            mu = mean(rows)

            def gain(s: float) -> float:
                went = seen.oracle(sent(line.origin + s * line.p, seen)).to(torch.float64)
                return float((went - mu) @ line.p) / length

            scale = line_search(gain, abs(scale) or 1.0, self.evaluations)
        return sent(line.origin + scale * line.p, seen)


def known(seen: Forgery) -> Tensor:
    """[h, d]: the updates from which an attacker forges its own; empty if no number of the round is of any use."""
    rows = seen.honest if len(seen.honest) else seen.own
    finite = torch.isfinite(rows).all(1)
    return rows if bool(finite.all()) else rows[finite]


def sent(row: Tensor, seen: Forgery) -> Tensor:
    """[f, d]: the same update from every malicious client, kept within the numbers that its type can hold."""
    most = torch.finfo(seen.own.dtype).max
    return row.clamp(-most, most).to(seen.own.dtype).expand(len(seen.own), -1)


def mean(rows: Tensor) -> Tensor:
    """[d] float64."""
    return torch.cat([rows[:, c].double().mean(0) for c in columns(rows.shape[1], len(rows), rows.device)])


def deviation(rows: Tensor) -> Tensor:
    """[d] float64: the standard deviation of every coordinate over the clients, divided by their number."""
    return torch.cat([rows[:, c].double().std(0, correction=0) for c in columns(rows.shape[1], len(rows), rows.device)])


def offsets(rows: Tensor, mu: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """[h] float64 each: b_i = <mu - x_i, p> and c_i = ||mu - x_i||^2."""
    b, c = (torch.zeros(len(rows), dtype=torch.float64, device=rows.device) for _ in range(2))
    for piece in columns(rows.shape[1], len(rows), rows.device):
        away = mu[piece] - rows[:, piece].double()
        b += away @ p[piece]
        c += away.square().sum(1)
    return b, c
