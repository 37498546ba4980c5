"""A piece of work for a GPU as a CUDA graph: set going in one launch instead of one for each operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

OFTEN = 8  # times that work is done operation by operation before a graph of it is made, which takes a while
_KINDS = 8  # graphs that one piece of work may have
_SHAPES = 1 << 10  # kinds and shapes that are counted at a time
_SMALL = 1 << 13  # numbers that are copied together with others
_MUCH = 1 << 28  # bytes that graphs of one piece of work are given, which are copied and stay; so does what they make
_WORKS = 8  # pieces of work; of more it is likely that they are new each time


def captured(
    work: Callable[[], None], before: Callable[[], object] = lambda: None, trials: int = 2
) -> torch.cuda.CUDAGraph:
    """What `work` does with tensors that lie where they lie; `before` puts right what it changed the time before.

    It is tried first: some operations prepare themselves when they are first used, which a graph cannot hold.
    Raises RuntimeError where it does what a graph cannot.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(trials):
            before()
            work()
    torch.cuda.current_stream().wait_stream(side)
    before()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        work()
    return graph


class Repeated:
    """Work that is the same round after round and asks nothing: `work(kind, *given)` -> tensors.

    On a GPU it becomes a graph, one for every `kind` and shape that keeps coming, as long as what it is given takes no
    more than `most` bytes for all of them; elsewhere it is simply done.
    """

    def __init__(self, work: Callable[..., tuple[Tensor, ...]], most: int = _MUCH) -> None:
        self._work, self._left, self._came = work, most, Counter[Hashable]()
        self._made: dict[Hashable, Ready | None] = {}

    def __call__(self, kind: Hashable, *given: Tensor) -> tuple[Tensor, ...]:
        if not all(t.is_cuda for t in given):
            return self._work(kind, *given)
        key = kind, *((t.shape, t.dtype) for t in given)
        ready = self._made.get(key)
        if ready is None and key not in self._made and len(self._came) < _SHAPES:
            self._came[key] += 1
            if self._came[key] > OFTEN:
                ready = self._made[key] = self._ready(kind, given)
                del self._came[key]
        return self._work(kind, *given) if ready is None else ready(given)

    def _ready(self, kind: Hashable, given: tuple[Tensor, ...]) -> Ready | None:
        size = sum(t.numel() * t.itemsize for t in given)
        if size > self._left or sum(made is not None for made in self._made.values()) >= _KINDS:
            return None
        try:
            ready = Ready(lambda *there: self._work(kind, *there), given)
        except RuntimeError:  # an operation that a graph cannot hold
            return None
        self._left -= size
        return ready


class Again:
    """`again(work, kind, *given)`, see `questions.once`: each piece of work is a repeated one."""

    def __init__(self) -> None:
        self._works: dict[Callable[..., tuple[Tensor, ...]], Repeated] = {}

    def __call__(self, work: Callable[..., tuple[Tensor, ...]], kind: Hashable, *given: Tensor) -> tuple[Tensor, ...]:
        if work not in self._works and len(self._works) < _WORKS:
            self._works[work] = Repeated(work)
        return self._works[work](kind, *given) if work in self._works else work(kind, *given)


class Ready:
    """A graph of some work, with places for what it is given and what it finds."""

    def __init__(self, work: Callable[..., tuple[Tensor, ...]], given: tuple[Tensor, ...]) -> None:
        self._given = [t.clone(memory_format=torch.contiguous_format) for t in given]
        self._found: tuple[Tensor, ...] = ()

        def one() -> None:
            self._found = work(*self._given)

        self._graph = captured(one)

    def __call__(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        _copy(self._given, given)
        self._graph.replay()
        out = tuple(map(torch.empty_like, self._found))
        _copy(out, self._found)
        return out


def _copy(to: Sequence[Tensor], these: Sequence[Tensor]) -> None:
    """Small ones in one launch for each type of number; a large one fills a GPU by itself."""
    small: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for place, t in zip(to, these, strict=True):
        if t.numel() > _SMALL:
            place.copy_(t)
        elif t.numel():
            small.setdefault(t.dtype, []).append((place, t))
    for pairs in small.values():
        torch._foreach_copy_([place for place, _ in pairs], [t for _, t in pairs])
