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
from functools import partial

import torch
from in_graphs import away, microseconds
from torch import Tensor
from torch.nn import functional as F

from equipoise.engine import convolution_kernels as kernels
from equipoise.engine.graphs import captured

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
PRODUCTS = ("forward", "by inputs", "by filters")


class Layer:
    """One layer's inputs, filters and gradient of random numbers, with clients apart and side by side."""

    def __init__(self, name: str, device: str = "cuda") -> None:
        self.clients, batch, planes, filters, size, kernel, p = LAYERS[name]
        self.x = torch.randn(self.clients, batch, planes, size, size, device=device)
        self.w = torch.randn(self.clients, filters, planes, kernel, kernel, device=device)
        sizes = [size + 2 * p - kernel + 1] * 2
        self.g, self.pad = torch.randn(self.clients, batch, filters, *sizes, device=device), (p, p)
        self.beside = [t.transpose(0, 1).flatten(1, 2) for t in (self.g, self.x)]

    def grouped(self, what: str) -> Tensor:
        """As torch maps it over clients, laid side by side."""
        (g, x), w = self.beside, self.w.flatten(0, 1)
        if what == "forward":
            return F.conv2d(x, w, padding=self.pad, groups=self.clients)
        which = ("by inputs", "by filters").index(what)
        how = ([1, 1], list(self.pad), [1, 1], False, [0, 0], self.clients, [which == 0, which == 1, False])
        found: Tensor = torch.ops.aten.convolution_backward(g, x, w, None, *how)[which]
        return found

    def ours(self, what: str, precision: str) -> Tensor:
        if what == "forward":
            return kernels.forward(self.x, self.w, self.pad, precision)
        if what == "by inputs":
            return kernels.of_inputs(self.g, self.w, self.pad, precision)
        return kernels.of_filters(self.g, self.x, self.w.shape, self.pad, precision)

    def apart(self, what: str, found: Tensor) -> Tensor:
        """What `grouped` found, client by client."""
        if what == "by filters":
            return found.view(self.w.shape)
        batch, planes, *sizes = found.shape
        return found.view(batch, self.clients, planes // self.clients, *sizes).transpose(0, 1)

    def exact(self) -> dict[str, Tensor]:
        """All three for the first client, in float64."""
        x, w = (t[:1].double().requires_grad_() for t in (self.x, self.w))
        y = F.conv2d(x[0], w[0], padding=self.pad)[None]
        return dict(zip(PRODUCTS, (y.detach(), *torch.autograd.grad(y, (x, w), self.g[:1].double())), strict=True))


def measure(name: str, repeats: int) -> None:
    layer = Layer(name)
    exact = layer.exact()
    for what in PRODUCTS:
        if what == "by inputs" and layer.x.shape[2] in (1, 3):  # nobody asks for the gradient by an image
            continue
        both = layer.apart(what, layer.grouped(what)), layer.ours(what, "tf32x3")
        errors = [away(t[:1], exact[what]) for t in both]
        print(f"{name}, {what}: error {errors[0]:.0e} grouped, {errors[1]:.0e} ours")
        ways = [partial(layer.grouped, what), *(partial(layer.ours, what, how) for how in ("tf32x3", "tf32"))]
        made = [captured(way) for way in ways]
        turns = [[microseconds(graph) for graph in made] for _ in range(repeats)]
        old, new, rough = (statistics.median(column) for column in zip(*turns, strict=True))
        print(f"  grouped {old:.0f} us, ours {new:.0f} = {old / new:.1f} x as fast; tf32 {rough:.0f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    for name in LAYERS:
        measure(name, given.repeats)


if __name__ == "__main__":
    main()
