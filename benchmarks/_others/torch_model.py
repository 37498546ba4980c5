"""The models of the comparison in plain PyTorch, and a client's local training as a careful person writes it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from common import Problem
from torch import Tensor, nn

MLP = [784, 200, 200, 10]


def network(kind: str) -> nn.Sequential:
    if kind == "mlp":
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(MLP):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])
    convs = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    convs += [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))


def model(given: Problem) -> nn.Sequential:
    """The network with the given weights; names differ between systems, the order does not."""
    made = network(given.model).to(torch.from_numpy(given.x).dtype)
    with torch.no_grad():
        for p, w in zip(made.parameters(), given.weights.values(), strict=True):
            p.copy_(torch.from_numpy(w))
    return made


def samples(given: Problem) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(given.x), torch.from_numpy(given.y)


def train(net: nn.Module, x: Tensor, y: Tensor, steps: np.ndarray, lr: float) -> None:
    """One local epoch: `steps` [S, B] are sample numbers."""
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    mine = torch.from_numpy(steps)
    xs, ys = x[mine], y[mine]
    for bx, by in zip(xs, ys, strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(bx), by).backward()
        optimiser.step()


def named(given: Problem, net: nn.Module) -> dict[str, np.ndarray]:
    return {n: p.detach().numpy() for n, p in zip(given.weights, net.parameters(), strict=True)}
