"""The least that the steps can cost in PyTorch: a cohort's MLPs as batched matrix products, derivatives by hand.

No autograd, no module, no optimiser, no check of anything: forward and backward products, and every parameter updated
in place by the product that is its gradient. It can do this one model and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from common import Problem, begin
from torch import Tensor
from torch_model import samples


def step(params: list[Tensor], x: Tensor, y: Tensor, lr: float) -> None:
    """One SGD step of K clients; weights [K, out, in], biases [K, 1, out], x [K, B, in], y [K, B]."""
    seen = [x]
    for w, b in zip(params[::2], params[1::2], strict=True):
        out = torch.baddbmm(b, seen[-1], w.mT)
        seen.append(out.relu_() if w is not params[-2] else out)
    g = torch.softmax(seen.pop(), -1)
    g.scatter_add_(2, y[..., None], g.new_full((1, 1, 1), -1.0).expand(*y.shape, 1)).div_(y.shape[1])
    for i in range(len(params) - 2, -1, -2):
        w, b, inputs = params[i], params[i + 1], seen.pop()
        back = torch.bmm(g, w).mul_(inputs > 0) if i else None
        w.baddbmm_(g.mT, inputs, alpha=-lr)
        b.sub_(g.sum(1, keepdim=True), alpha=lr)
        g = back if back is not None else g


@torch.no_grad()
def rounds(
    given: Problem, ended: Callable[[int], None] = lambda done: None, steps: list[float] | None = None
) -> dict[str, np.ndarray]:
    """`steps`, if given, is told the CPU seconds of every round's local steps alone."""
    assert given.model == "mlp"
    x, y = samples(given)
    x, index, sizes = x.flatten(1), torch.from_numpy(given.index), torch.from_numpy(given.sizes).to(x.dtype)
    model = [torch.from_numpy(w) for w in given.weights.values()]
    k = index.shape[1]
    for t in range(given.rounds):
        spent = 0.0
        rows = [(p if p.dim() == 2 else p[None]).repeat(k, 1, 1) for p in model]
        for s in range(index.shape[2]):
            at = index[t, :, s]
            batch = x.index_select(0, at.reshape(-1)).view(*at.shape, -1), y[at]
            began = time.process_time()
            step(rows, *batch, given.lr)
            spent += time.process_time() - began
        if steps is not None:
            steps.append(spent)
        share = sizes[given.drawn[t]]
        share = share / share.sum()
        model = [(share @ p.view(k, -1)).view(m.shape) for p, m in zip(rows, model, strict=True)]
        ended(t + 1)
    return {n: p.numpy() for n, p in zip(given.weights, model, strict=True)}


def main() -> None:
    torch.set_num_threads(1)
    given, course = begin()
    course.finish(rounds(given, course.ended), torch=torch.__version__)


if __name__ == "__main__":
    main()
