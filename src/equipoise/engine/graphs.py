"""A piece of work for a GPU as a CUDA graph: set going in one launch instead of one for each operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

_OFTEN = 8  # times that work is done operation by operation before a graph of it is made, which takes a while
_KINDS = 8  # graphs that one piece of work may have
_SMALL = 1 << 16  # numbers that are copied to where a graph finds them


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


class Repeated:
    """Work on small tensors that is the same round after round: `work(kind, *given)` -> tensors.

    On a GPU it becomes a graph, one for every `kind` and shape that keeps coming; elsewhere it is simply done.
    """

    def __init__(self, work: Callable[..., tuple[Tensor, ...]]) -> None:
        self._work, self._came = work, Counter[Hashable]()
        self._made: dict[Hashable, Ready | None] = {}

    def __call__(self, kind: Hashable, *given: Tensor) -> tuple[Tensor, ...]:
        if not all(t.is_cuda for t in given) or sum(t.numel() for t in given) > _SMALL:
            return self._work(kind, *given)
        key = kind, *((t.shape, t.dtype) for t in given)
        self._came[key] += 1
        if key not in self._made and self._came[key] > _OFTEN and len(self._made) < _KINDS:
            try:
                self._made[key] = Ready(lambda *there: self._work(kind, *there), given)
            except RuntimeError:  # an operation that a graph cannot hold
                self._made[key] = None
        ready = self._made.get(key)
        return self._work(kind, *given) if ready is None else ready(given)


class Ready:
    """A graph of some work, with places for what it is given and what it finds."""

    def __init__(self, work: Callable[..., tuple[Tensor, ...]], given: tuple[Tensor, ...]) -> None:
        self._given = [t.clone() for t in given]
        self._found: tuple[Tensor, ...] = ()

        def one() -> None:
            self._found = work(*self._given)

        self._graph = captured(one)

    def __call__(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for place, t in zip(self._given, given, strict=True):
            place.copy_(t)
        self._graph.replay()
        return tuple(t.clone() for t in self._found)
