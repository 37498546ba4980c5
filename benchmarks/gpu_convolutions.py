"""Convolutions of many clients on a GPU: kernels of our own against the grouped convolutions that torch makes of them.

    python benchmarks/gpu_convolutions.py [--repeats 5]

The layers of the papers' models, at their batch sizes. For each of the three products of a layer (forward, the gradient
by its inputs, the gradient by its filters): microseconds of the grouped convolution and of ours inside a CUDA graph,
medians of `repeats` turns that alternate, the ratio, and how far both are from torch in float64, which is printed
before any time. "tf32" is ours with rougher products.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.engine import kernels

# name: clients, batch, planes, filters, size, kernel, padding
LAYERS = {
    "RFFL, MNIST, 1": (10, 16, 1, 64, 32, 3, 0),
    "RFFL, MNIST, 2": (10, 16, 64, 16, 15, 7, 0),
    "RFFL, CIFAR-10, 1": (10, 64, 3, 32, 32, 3, 0),
    "RFFL, CIFAR-10, 2": (10, 64, 32, 64, 15, 3, 0),
    "RFFL, CIFAR-10, 3": (10, 64, 64, 64, 6, 3, 0),
    "Ditto, Fashion, 1": (10, 16, 1, 32, 28, 5, 2),
    "Ditto, Fashion, 2": (10, 16, 32, 64, 14, 5, 2),
    "Ditto, FEMNIST, 2": (10, 16, 16, 32, 14, 5, 2),
    "FedLF, CIFAR-10, 1": (10, 50, 3, 64, 32, 5, 0),
    "FedLF, CIFAR-10, 2": (10, 50, 64, 64, 14, 5, 0),
    "FedTilt, CIFAR-10, 3": (10, 10, 64, 128, 8, 3, 1),
    "EAGLE, FEMNIST, 1": (10, 2000, 1, 6, 28, 5, 0),
    "EAGLE, FEMNIST, 2": (10, 2000, 6, 16, 12, 5, 0),
    "100 clients, 1": (100, 50, 1, 32, 28, 5, 0),
    "100 clients, 2": (100, 50, 32, 64, 12, 5, 0),
}
SEEN = 64  # samples of a client that are compared with float64


def captured(work: Callable[[], Tensor]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, times: int = 10) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(times):
        graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return 1000 * began.elapsed_time(ended) / times


def away(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def layer(name: str, repeats: int) -> None:
    clients, batch, planes, filters, size, kernel, p = LAYERS[name]
    x = torch.randn(clients, batch, planes, size, size, device="cuda")
    w = torch.randn(clients, filters, planes, kernel, kernel, device="cuda")
    beside, flat = x.transpose(0, 1).flatten(1, 2), w.flatten(0, 1)
    g = torch.randn(batch, clients, filters, *[size + 2 * p - kernel + 1] * 2, device="cuda")
    g, g_beside = g.transpose(0, 1).contiguous(), g.flatten(1, 2)

    def back(which: int) -> Tensor:
        mask = [which == 0, which == 1, False]
        how = ([1, 1], [p, p], [1, 1], False, [0, 0], clients, mask)
        return torch.ops.aten.convolution_backward(g_beside, beside, flat, None, *how)[which]

    products: dict[str, tuple[Callable[[], Tensor], Callable[[str], Tensor]]] = {
        "forward": (
            lambda: F.conv2d(beside, flat, padding=p, groups=clients),
            lambda how: kernels.forward(x, w, (p, p), how),
        ),
        "by inputs": (lambda: back(0), lambda how: kernels.of_inputs(g, w, (p, p), how)),
        "by filters": (lambda: back(1), lambda how: kernels.of_filters(g, x, w.shape, (p, p), how)),
    }
    few = x[:2, :SEEN].double().requires_grad_(), w[:2].double().requires_grad_()
    y = torch.stack([F.conv2d(a, b, padding=p) for a, b in zip(*few, strict=True)])
    exact = dict(zip(products, (y.detach(), *torch.autograd.grad(y, few, g[:2, :SEEN].double())), strict=True))
    for what, (grouped, ours) in products.items():
        if what == "by inputs" and planes in (1, 3):  # nobody asks for the gradient by an image
            continue
        errors = ""
        if what != "by filters" or batch <= SEEN:
            shape = (w if what == "by filters" else torch.empty(0)).shape or (batch, clients, *exact[what].shape[2:])
            theirs = grouped().view(shape) if what == "by filters" else grouped().view(shape).transpose(0, 1)
            both = [t[:2] if what == "by filters" else t[:2, :SEEN] for t in (theirs, ours("tf32x3"))]
            errors = "error {:.0e} grouped, {:.0e} ours".format(*(away(t, exact[what]) for t in both))
        graphs = [captured(grouped), captured(lambda f=ours: f("tf32x3")), captured(lambda f=ours: f("tf32"))]  # type: ignore[misc]
        turns = [[microseconds(graph) for graph in graphs] for _ in range(repeats)]
        old, new, rough = (statistics.median(column) for column in zip(*turns, strict=True))
        print(f"{name}, {what}: {errors}")
        print(f"  grouped {old:.0f} us, ours {new:.0f} = {old / new:.1f} x as fast; tf32 {rough:.0f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    for name in LAYERS:
        layer(name, given.repeats)


if __name__ == "__main__":
    main()
