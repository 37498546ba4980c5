"""A bare PyTorch loop: one model, one optimiser a client, a running sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from common import Problem, begin
from torch_model import model, named, samples, train


def rounds(given: Problem, ended: Callable[[int], None] = lambda done: None) -> dict[str, np.ndarray]:
    (x, y), net = samples(given), model(given)
    params = list(net.parameters())
    for t in range(given.rounds):
        start = [p.detach().clone() for p in params]
        total = [torch.zeros_like(p) for p in start]
        share = given.sizes[given.drawn[t]] / given.sizes[given.drawn[t]].sum()
        for k, steps in enumerate(given.index[t]):
            copy(start, params)
            train(net, x, y, steps, given.lr)
            with torch.no_grad():
                for s, p in zip(total, params, strict=True):
                    s.add_(p, alpha=float(share[k]))
        copy(total, params)
        ended(t + 1)
    return named(given, net)


@torch.no_grad()
def copy(source: list[torch.Tensor], target: list[torch.nn.Parameter]) -> None:
    for s, p in zip(source, target, strict=True):
        p.copy_(s)


def main() -> None:
    torch.set_num_threads(1)
    given, course = begin()
    course.finish(rounds(given, course.ended), torch=torch.__version__)


if __name__ == "__main__":
    main()
