"""Max pools on a GPU: kernels of our own against torch's, with what comes behind them on the way back.

    python benchmarks/gpu_pools.py [--repeats 7]

The pools of the papers' models, at their batch sizes, ten clients. For each, in one run: that maxima, their places and
gradients are torch's to the bit, and how far sums are from float64, before any time; then microseconds

- *forward*: maxima and their places
- *backward*: the gradient by the pool's inputs, through the ReLU in front of it, and its sum over all places, which is
  the gradient of a bias; ours takes the latter two before the gradient is spread, as recorded steps do (`engine.pools`)

inside CUDA graphs, medians of turns that alternate, the ratio, and how much of the device's memory speed ours reaches,
counting what must be read and written once (small pools stay in its cache and may reach more).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from in_graphs import away, microseconds
from torch import Tensor

from equipoise.engine import pool_kernels
from equipoise.engine.graphs import captured

aten = torch.ops.aten
SPEED = 4.8e12  # bytes a second, of one H200
# name: clients, batch, planes, size of the image; all windows are 2 x 2
LAYERS = {
    "RFFL, MNIST, 1": (10, 16, 64, 30),
    "RFFL, MNIST, 2": (10, 16, 16, 9),
    "RFFL, CIFAR-10, 1": (10, 64, 32, 30),
    "RFFL, CIFAR-10, 2": (10, 64, 64, 13),
    "Ditto, Fashion, 1": (10, 16, 32, 28),
    "Ditto, Fashion, 2": (10, 16, 64, 14),
    "Ditto, FEMNIST, 1": (10, 16, 16, 28),
    "FedLF, CIFAR-10, 1": (10, 50, 64, 28),
    "FedLF, CIFAR-10, 2": (10, 50, 64, 10),
    "FedTilt, CIFAR-10, 1": (10, 10, 32, 32),
    "FedTilt, CIFAR-10, 3": (10, 10, 128, 8),
    "EAGLE, FEMNIST, 1": (10, 4000, 6, 24),
    "EAGLE, FEMNIST, 2": (10, 4000, 16, 8),
    "EAGLE, wide, 1": (10, 4000, 32, 28),
}
SIZE = (2, 2)
HOW = ([2, 2], [2, 2], [0, 0], [1, 1], False)


class Layer:
    """One pool's inputs, behind a ReLU, and the gradient by what it gives, of random numbers."""

    def __init__(self, name: str, device: str = "cuda") -> None:
        clients, batch, planes, side = LAYERS[name]
        self.apart = clients, batch, planes
        self.x = torch.randn(clients * batch, planes, side, side, device=device).relu_()
        self.g = torch.randn(clients * batch, planes, side // 2, side // 2, device=device)
        self.y, self.places = aten.max_pool2d_with_indices(self.x, *HOW[:2])
        self.which = pool_kernels.pool(self.x, SIZE)[1]

    def forward(self) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = aten.max_pool2d_with_indices(self.x, *HOW[:2])
        return found

    def backward(self) -> tuple[Tensor, Tensor]:
        full = aten.max_pool2d_with_indices_backward(self.g, self.x, *HOW, self.places)
        full = aten.threshold_backward(full, self.x, 0)
        return full, self.summed(full)

    def our_forward(self) -> tuple[Tensor, Tensor]:
        return pool_kernels.pool(self.x, SIZE)

    def our_backward(self) -> tuple[Tensor, Tensor]:
        small = aten.threshold_backward(self.g, self.y, 0)
        return pool_kernels.spread(small, self.which, self.x.shape, SIZE), self.summed(small)

    def summed(self, t: Tensor) -> Tensor:
        return t.view(*self.apart, *t.shape[-2:]).sum([1, 3, 4])

    def bytes(self) -> dict[str, int]:
        """That must be read and written; backward: of the ReLU, the sum, and the spreading."""
        full, small = 4 * self.x.numel(), 4 * self.g.numel()
        return {"forward": full + small + small // 4, "backward": 3 * small + small + (small + small // 4 + full)}


def check(name: str, layer: Layer) -> None:
    (y, places), (ours, which) = layer.forward(), layer.our_forward()
    width = layer.x.shape[-1]
    exact = torch.equal(y, ours) and torch.equal(which, (places // width % 2 * 2 + places % width % 2).to(torch.uint8))
    del y, places, ours, which
    (full, total), (our_full, our_total) = layer.backward(), layer.our_backward()
    exact &= torch.equal(full, our_full)
    del full, our_full
    right = layer.summed(torch.where(layer.y > 0, layer.g, 0.0).double())
    off = [away(t, right) for t in (total, our_total)]
    print(f"{name}: {'the same bits' if exact else 'NOT THE SAME'}; sums off by {off[0]:.0e}, ours {off[1]:.0e}")


def repeated(work: Callable[[], object], times: int) -> None:
    """What it gives goes at once, so that its memory is there for the next time."""
    for _ in range(times):
        work()


def measure(name: str, repeats: int) -> None:
    layer = Layer(name)
    check(name, layer)
    times = max(1, min(50, (1 << 31) // layer.x.numel()))  # a graph takes microseconds to start, as long as some pools
    for what, ways in (
        ("forward", (layer.forward, layer.our_forward)),
        ("backward", (layer.backward, layer.our_backward)),
    ):
        made = [captured(partial(repeated, way, times)) for way in ways]
        for graph in made:
            microseconds(graph, 1)
        turns = [[microseconds(graph, 1) / times for graph in made] for _ in range(repeats)]
        old, new = (statistics.median(column) for column in zip(*turns, strict=True))
        share = layer.bytes()[what] / (new * 1e-6) / SPEED
        print(f"  {what}: torch {old:.1f} us, ours {new:.1f} = {old / new:.1f} x as fast, {share:.0%} of memory speed")
    torch.cuda.empty_cache()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--repeats", type=int, default=7)
    given = options.parse_args()
    torch.manual_seed(0)
    for name in LAYERS:
        measure(name, given.repeats)


if __name__ == "__main__":
    main()
