"""What the benchmarks of single GPU kernels share: how long a graph takes, and how far numbers are from right."""

from __future__ import annotations

import torch
from torch import Tensor


def microseconds(graph: torch.cuda.CUDAGraph, times: int = 10) -> float:
    """Of one launch, over so many right behind each other."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(times):
        graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return 1000 * began.elapsed_time(ended) / times


def away(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())
