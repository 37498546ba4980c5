"""Products of the matrices of many clients on a GPU: kernels of our own against cuBLAS, by way of torch.

    python benchmarks/gpu_products.py [--repeats 5] [--only ditto] [--precision tf32] [--sweep]

The linear layers of the papers' models, at their batch sizes. For each of the three products of a layer (forward with
its bias and a ReLU, the gradient by its inputs, the step down of its weights): how far torch and ours are from float64,
microseconds of both inside CUDA graphs, medians of `repeats` turns that alternate, the ratio, and how fast ours moves
numbers (an H200's memory gives 4.8 TB/s; what is small stays in its cache). Every graph holds a product 20 times.

`--sweep` tries other sizes of blocks for the larger layers instead, without bias and ReLU, and prints the best three;
it begins nothing new after `--seconds 40`.
`TRITON_INTERPRET=1 python benchmarks/gpu_products.py --device cpu` prints errors alone, of layers a sixteenth as large.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from in_graphs import away, microseconds
from torch import Tensor

from equipoise.engine import product_kernels as kernels
from equipoise.engine.graphs import captured

# name: clients, batch, inputs, outputs, whether somebody asks for the gradient by its inputs
LAYERS = {
    "MLP, 1": (10, 10, 784, 200, False),
    "MLP, 2": (10, 10, 200, 200, True),
    "MLP, 3": (10, 10, 200, 10, True),
    "100 clients, MLP, 1": (100, 50, 784, 200, False),
    "100 clients, MLP, 2": (100, 50, 200, 200, True),
    "100 clients, MLP, 3": (100, 50, 200, 10, True),
    "Ditto, Fashion, 1": (10, 16, 3136, 1024, True),
    "Ditto, Fashion, 2": (10, 16, 1024, 10, True),
    "Ditto, FEMNIST, 1": (10, 16, 1568, 128, True),
    "Ditto, FEMNIST, 2": (10, 16, 128, 62, True),
    "FedLF, CIFAR-10, 1": (10, 50, 1600, 384, True),
    "FedLF, CIFAR-10, 2": (10, 50, 384, 192, True),
    "FedLF, CIFAR-10, 3": (10, 50, 192, 10, True),
    "FedTilt, CIFAR-10": (10, 10, 2048, 10, True),
    "RFFL, MNIST, 1": (10, 16, 256, 200, True),
    "RFFL, MNIST, 2": (10, 16, 200, 10, True),
    "linear, FEMNIST": (10, 16, 784, 62, False),
}
PRODUCTS = ("forward", "by inputs", "down")
TIMES = 20  # a product in one graph: a launch takes as long as a small one does


class Layer:
    """One layer's inputs, weights and gradient of random numbers, and its three products."""

    def __init__(self, name: str, device: str, precision: str, bare: bool = False) -> None:
        clients, batch, inputs, outputs, self.by_inputs = LAYERS[name]
        if device == "cpu":
            clients, inputs, outputs = 2, -(-inputs // 16), -(-outputs // 16)
        self.precision, self.bare = precision, bare
        self.x = torch.randn(clients, batch, inputs, device=device)
        self.g = torch.randn(clients, batch, outputs, device=device)
        self.w = torch.randn(clients, outputs, inputs, device=device)
        self.bias = torch.randn(clients, 1, outputs, device=device)
        self.place = torch.zeros_like(self.w)
        self.lr = torch.full((), 0.01, dtype=torch.float64, device=device)

    def torch(self, what: str) -> Tensor:
        if what == "forward":
            turned = self.w.mT
            return torch.bmm(self.x, turned) if self.bare else torch.baddbmm(self.bias, self.x, turned).relu_()
        if what == "by inputs":
            return torch.bmm(self.g, self.w)
        return self.place.baddbmm_(self.g.mT * self.lr, self.x, alpha=-1)

    def ours(self, what: str, blocks: kernels.Blocks | None = None) -> Tensor:
        if what == "forward":
            bias = None if self.bare else self.bias
            return kernels.product(self.x, self.w.mT, self.precision, bias, not self.bare, blocks)
        if what == "by inputs":
            return kernels.product(self.g, self.w, self.precision, blocks=blocks)
        kernels.descend(self.place, self.g.mT, self.x, self.lr, self.precision, blocks)
        return self.place

    def exact(self, what: str) -> Tensor:
        x, g, w, bias = (t.double() for t in (self.x, self.g, self.w, self.bias))
        if what == "forward":
            return x @ w.mT if self.bare else (bias + x @ w.mT).relu()
        return g @ w if what == "by inputs" else -self.lr * (g.mT @ x)

    def error(self, what: str, way: Callable[[str], Tensor]) -> float:
        self.place.zero_()
        return away(way(what), self.exact(what))

    def bytes(self, what: str) -> int:
        """That have to be read and written at least: places are read before they are written."""
        given, found = self.x.numel(), self.g.numel()
        return 4 * (given + found + self.w.numel() * (2 if what == "down" else 1))

    @property
    def products(self) -> list[str]:
        return [what for what in PRODUCTS if what != "by inputs" or self.by_inputs]


def repeated(way: Callable[[], Tensor]) -> torch.cuda.CUDAGraph:
    def work() -> None:
        for _ in range(TIMES):
            way()

    return captured(work)


def medians(graphs: list[torch.cuda.CUDAGraph], repeats: int) -> list[float]:
    """Microseconds of one product in each, in turns."""
    turns = [[microseconds(graph) / TIMES for graph in graphs] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*turns, strict=True)]


def measure(name: str, device: str, precision: str, repeats: int) -> list[float]:
    """Prints one line for each product; the ratios."""
    layer, ratios = Layer(name, device, precision), []
    for what in layer.products:
        errors = [layer.error(what, way) for way in (layer.torch, layer.ours)]
        print(f"{name}, {what}: error {errors[0]:.0e} torch, {errors[1]:.0e} ours", flush=True)
        if device == "cuda":
            old, new = medians([repeated(partial(way, what)) for way in (layer.torch, layer.ours)], repeats)
            ratios.append(old / new)
            speed = layer.bytes(what) / new / 1e6
            print(f"  torch {old:.1f} us, ours {new:.1f} = {old / new:.2f} x; {speed:.1f} TB/s", flush=True)
    return ratios


SWEPT = ("MLP, 1", "100 clients, MLP, 1", "100 clients, MLP, 2", "Ditto, Fashion, 1", "Ditto, FEMNIST, 1")
SWEPT += ("FedLF, CIFAR-10, 1", "FedLF, CIFAR-10, 2", "RFFL, MNIST, 1")


def candidates(what: str, layer: Layer) -> list[kernels.Blocks]:
    """m, n, k, warps, stages, and programs where a sum can be cut; those that cut it alike once."""
    if what == "down":
        cuts = [(32, 64, 16, 4, 2), (64, 64, 16, 8, 2), (32, 128, 16, 8, 2), (64, 64, 16, 4, 2), (32, 64, 32, 4, 2)]
        return [kernels.Blocks(*cut) for cut in cuts]
    (clients, batch, _), (_, outputs, inputs) = layer.x.shape, layer.w.shape
    if batch <= 16:
        along = [(16, 32, 64, 4, 4), (16, 32, 128, 4, 3), (16, 64, 64, 4, 3), (16, 16, 128, 2, 4), (16, 32, 64, 2, 4)]
        across = [(16, 64, 32, 4, 4), (16, 128, 32, 4, 3), (16, 64, 64, 4, 3), (16, 64, 32, 2, 4), (16, 128, 16, 4, 4)]
    else:
        along = [(64, 64, 32, 4, 3), (64, 32, 32, 4, 4), (64, 32, 64, 4, 3), (64, 64, 32, 8, 3), (64, 32, 32, 2, 4)]
        across = [(64, 64, 32, 4, 3), (64, 32, 32, 4, 4), (64, 64, 16, 4, 4), (64, 64, 32, 8, 3), (64, 32, 32, 2, 4)]
    n, k = (outputs, inputs) if what == "forward" else (inputs, outputs)
    found: dict[object, kernels.Blocks] = {}
    for cut in along if what == "forward" else across:
        for programs in (1, 528, 1056, 2112):
            blocks = kernels.Blocks(*cut, programs)
            found.setdefault((cut, kernels.shared_out(blocks, clients, batch, n, k)), blocks)
    return list(found.values())


def sweep(name: str, precision: str, until: float) -> None:
    layer = Layer(name, "cuda", precision, bare=True)
    for what in layer.products:
        found: list[tuple[float, kernels.Blocks]] = []
        for blocks in candidates(what, layer):
            if time.monotonic() > until:
                print("out of time", flush=True)
                break
            try:
                error = layer.error(what, partial(layer.ours, blocks=blocks))
                (took,) = medians([repeated(partial(layer.ours, what, blocks))], 3)
            except Exception as reason:  # too much for this device; the next may not be
                print(f"{name}, {what}: {tuple(blocks)}: {type(reason).__name__}: {reason}", flush=True)
                continue
            if error > 1e-2:
                print(f"{name}, {what}: {tuple(blocks)} is {error:.0e} away", flush=True)
            found.append((took, blocks))
        if found:
            old, now = medians([repeated(partial(way, what)) for way in (layer.torch, layer.ours)], 3)
            best = "; ".join(f"{took:.1f} {tuple(blocks)}" for took, blocks in sorted(found)[:3])
            print(f"{name}, {what}: torch {old:.1f} us, now {now:.1f}; best {best}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--only", default="", help="layers whose name has this in it")
    options.add_argument("--precision", choices=("tf32x3", "tf32"), default="tf32x3")
    options.add_argument("--sweep", action="store_true")
    options.add_argument("--seconds", type=float, default=40)
    given = options.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = given.precision == "tf32"
    gc.freeze()  # every capture looks for garbage first
    if given.sweep:
        until = time.monotonic() + given.seconds
        for name in SWEPT:
            if given.only.lower() in name.lower() and time.monotonic() < until:
                sweep(name, given.precision, until)
    else:
        wanted = [name for name in LAYERS if given.only.lower() in name.lower()]
        found = [x for name in wanted for x in measure(name, given.device, given.precision, given.repeats)]
        if found:
            print(f"{len(found)} products: {min(found):.2f} to {max(found):.2f} x, {statistics.median(found):.2f} amid")
    gc.unfreeze()


if __name__ == "__main__":
    main()
