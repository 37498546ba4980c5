"""Malicious clients go as far from the mean as they can without being the farthest from anybody.

Shejwalkar, Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses for federated
learning", NDSS 2021 (the min-max attack, which knows no rule).

    u_k <- mu + gamma p,   the largest gamma with  max_i ||mu + gamma p - x_i|| <= R = max_ij ||x_i - x_j||
    gamma = min_i (-b_i + sqrt(b_i^2 - a (c_i - R^2))) / a,   a = ||p||^2, b_i = <mu - x_i, p>, c_i = ||mu - x_i||^2
    p = -mu / ||mu|| ("unit"), -sigma ("std") or -sign(mu) ("sign");   x_i: the h honest updates

Updates are start - end, so that -mu leads uphill, as with the paper's gradients.

Departures: gamma is exact; the paper halves its way to it. Where p is zero (no update at all, or no spread), or no
two honest updates differ, gamma is 0 and the mean is sent. search is the paper's attack on a known rule, along the same
p, by a grid instead of by halving. The paper was not at hand to give the number of the equation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.aggregators._distances import squared_distances
from equipoise.attacks._forging import Line, offsets
from equipoise.attacks._perturbed import Perturbed


@dataclass(frozen=True, kw_only=True)
class MinMax(Perturbed):
    def farthest(self, rows: Tensor, line: Line) -> float:
        a = line.p.square().sum()
        b, c = offsets(rows, line.origin, line.p)
        beyond = (squared_distances(rows).max() - c).clamp(min=0)  # never below 0 but for rounding
        # (-b + sqrt(b^2 + a beyond)) / a, without subtracting two almost equal numbers where b > 0
        root = (b.square() + a * beyond).sqrt()
        gamma = torch.where(b > 0, beyond / (b + root).clamp(min=1e-300), (root - b) / a)
        return float(gamma.min())
