"""A piece of work for a GPU as a CUDA graph: set going in one launch instead of one for each operation."""

from __future__ import annotations

from collections.abc import Callable

import torch


def captured(work: Callable[[], None], before: Callable[[], object] = lambda: None) -> torch.cuda.CUDAGraph:
    """What `work` does with tensors that lie where they lie; `before` puts right what it changed the time before.

    It is run twice first: some operations prepare themselves when they are first used, which a graph cannot hold.
    Raises RuntimeError where it does what a graph cannot.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(2):
            before()
            work()
    torch.cuda.current_stream().wait_stream(side)
    before()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        work()
    return graph
