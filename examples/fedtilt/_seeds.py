"""FedTilt on the toy problems for many seeds at once, written out from its equations instead of run by the engine.

A row is a client of a seed. There are two classes and everything starts at zero, so the two rows of the linear model
are opposite to each other at all times; u [3] is their difference, with the bias last, and u x > 0 means class 1. A
step of size lr on the model is one of 2 lr on u. The gradient is the formula in `ClassTilted`, not autograd: a test
compares all this with the engine, and so both are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipoise.core import Cohort
from equipoise.data.synthetic import fedtilt_toy
from equipoise.methods.fedtilt import TiltedCentre
from equipoise.objectives import tilted, tilts

LR, STEPS = 0.05, 10  # the step size, and how many of them make a round


@dataclass(frozen=True)
class Classes:
    """Samples of class 0 and of class 1, [seeds, clients, n, 3] each; the last column is 1."""

    zero: Tensor
    one: Tensor

    def losses(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return softplus(_scores(self.zero, u)), softplus(-_scores(self.one, u))

    def right(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """[seeds, clients] each: the accuracy on the samples of each class."""
        return (_scores(self.zero, u) <= 0).double().mean(-1), (_scores(self.one, u) > 0).double().mean(-1)

    def gradient(self, u: Tensor, lam: float, tau: float) -> Tensor:
        """[..., 3]: of the client's tilted loss, by u."""
        scores, losses = (_scores(self.zero, u), _scores(self.one, u)), self.losses(u)
        of_class = torch.stack([tau * tilted(part, lam) + log(part.shape[-1]) for part in losses], -1)
        zero, one = torch.softmax(of_class, -1).unbind(-1)
        pulls = zero[..., None] * tilts(losses[0], lam) * scores[0].sigmoid()
        pushes = one[..., None] * tilts(losses[1], lam) * (-scores[1]).sigmoid()
        return ((pulls[..., None, :] @ self.zero) - (pushes[..., None, :] @ self.one)).squeeze(-2)

    def with_outliers(self) -> Classes:
        """Every tenth sample of class 0 moved to the far side of class 1, as far behind it as it was before it."""
        zero, tenth = self.zero.clone(), self.zero.shape[2] // 10
        zero[:, :, :tenth] += 2 * (self.one.mean(2, keepdim=True) - self.zero.mean(2, keepdim=True))
        return replace(self, zero=zero)


def _scores(x: Tensor, u: Tensor) -> Tensor:
    return (x @ u[..., None]).squeeze(-1)


def toy(problem: int, seeds: Sequence[int], split: str = "train") -> Classes:
    drawn = [_clients(problem, s, split) for s in seeds]
    return Classes(*(torch.stack([c[k] for c in drawn]) for k in (0, 1)))


def one_apart(seeds: Sequence[int]) -> Classes:
    """Four clients: three draws of the first client of problem 1, and its second client once."""
    drawn = []
    for s in seeds:
        several = [_clients(1, s + 1000 * i, "train") for i in range(3)]
        drawn.append([torch.stack([*(c[k][0] for c in several), several[0][k][1]]) for k in (0, 1)])
    return Classes(*(torch.stack([d[k] for d in drawn]) for k in (0, 1)))


def _clients(problem: int, seed: int, split: str) -> list[Tensor]:
    """For each class [2 clients, n, 3]."""
    federation = fedtilt_toy(problem, seed=seed)
    index = torch.stack([federation.splits[split].of_client(k) for k in (0, 1)])
    x, y = federation.data.x[index].double(), federation.data.y[index[0]]
    x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
    return [x[:, y == k] for k in (0, 1)]


def stack(parts: Sequence[Classes]) -> Classes:
    return Classes(torch.cat([p.zero for p in parts]), torch.cat([p.one for p in parts]))


def train(
    data: Classes, lam: float, tau: float, q: float = 0.0, *, rounds: int = 50, mu: float = 0.01
) -> tuple[Tensor, Tensor]:
    """[seeds, 3] and [seeds, clients, 3]: global and personal models after some rounds."""
    torch.set_num_threads(1)
    v = torch.zeros((*data.zero.shape[:2], 3), dtype=torch.float64)
    w = v[:, :1]
    pull = torch.tensor([0.0, mu], dtype=torch.float64).view(2, 1, 1, 1)
    for _ in range(rounds):
        both = torch.stack([w.expand_as(v), v])
        for _ in range(STEPS):
            both = both - LR * (2 * data.gradient(both, lam, tau) + pull * (both - w))
        sent, v = both
        w = w - _centre(w - sent, q)
    return w[:, 0], v


def _centre(updates: Tensor, q: float) -> Tensor:
    if q == 0.0:
        return updates.mean(1, keepdim=True)
    rule, ones = TiltedCentre(q, normalise_dist=True), torch.ones(updates.shape[1])
    found = [rule(Cohort(ones.cumsum(0).long(), u[0], u, ones.long()), {}).direction for u in updates]
    return torch.stack(found)[:, None]
