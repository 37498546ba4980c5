"""Malicious clients go as far from the mean as they can without being farther from all together than an honest client.

Shejwalkar, Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses for federated
learning", NDSS 2021 (the min-sum attack, which knows no rule).

    u_k <- mu + gamma p,   the largest gamma with  sum_i ||mu + gamma p - x_i||^2 <= S = max_i sum_j ||x_i - x_j||^2
    gamma = sqrt((S - sum_i c_i) / (h a)),   a = ||p||^2, c_i = ||mu - x_i||^2
    p = -mu / ||mu|| ("unit"), -sigma ("std") or -sign(mu) ("sign");   x_i: the h honest updates

Updates are start - end, so that -mu leads uphill, as with the paper's gradients.

Departures: gamma is exact; the paper halves its way to it. Where p is zero (no update at all, or no spread), or no
two honest updates differ, gamma is 0 and the mean is sent. search is the paper's attack on a known rule, along the same
p, by a grid instead of by halving. The paper was not at hand to give the number of the equation.
"""

from dataclasses import dataclass

from torch import Tensor

from equipoise.aggregators._distances import squared_distances
from equipoise.attacks._forging import Line, offsets
from equipoise.attacks._perturbed import Perturbed


@dataclass(frozen=True, kw_only=True)
class MinSum(Perturbed):
    def farthest(self, rows: Tensor, line: Line) -> float:
        _, c = offsets(rows, line.origin, line.p)
        room = (squared_distances(rows).sum(1).max() - c.sum()).clamp(min=0)
        return float((room / (len(rows) * line.p.square().sum())).sqrt())
