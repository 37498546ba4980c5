"""Max pools in a recorded step, in kernels of their own (`pool_kernels`), and what comes behind them on the way back.

A pool's gradient is 0 but for one number in each window, and yet the recorded step goes on with all of them:

    g [.., h', w'] -> gradient of the pool [.., h, w] -> that of the activation before it -> sum over all places

What an activation's derivative makes of 0 is 0, and of the maximum it is told by the maximum itself, which the pool
gave. So both the derivative and the sum, the gradient of a bias, are taken before the gradient is spread. A step's
numbers stay what they were, sums up to rounding; but tanh makes NaN of the gradient of NaN everywhere, here only where
it was the maximum.

What stays as it was: other devices, numbers that are not float32, windows that overlap, leave gaps, stick out or have
more than 256 places, and pools whose indices the step itself looks at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.engine.custom import call, in_one_piece, replaced, why_not
from equipoise.engine.rewrite import Graph, Node, aten, changed, origins, shape_of, sweep

_POOL, _BACKWARD = aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default
_USUAL: tuple[Any, ...] = ([], 0, 1, False)  # stride, padding, dilation and whether windows may stick out
_MOST = 1 << 29  # numbers of an image, so that the places in a few of them fit into 32 bits
_PLACES = 1 << 8  # in a window, which a byte can tell apart
_VIEWS = (
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default),
    *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
)
"""Other looks at the same numbers in the same order."""
_DERIVATIVES = (aten.threshold_backward.default, aten.tanh_backward.default)
"""(g, told by, ...), number by number, and 0 where g is."""


def pool(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The maxima of x [..., h, w] over windows side by side, and where in its window each is, in bytes."""
    from equipoise.engine import pool_kernels

    return pool_kernels.pool(x, size)


def spread(g: Tensor, which: Tensor, shape: Sequence[int], size: Sequence[int]) -> Tensor:
    """The gradient by x, whose shape is given, of that by y."""
    from equipoise.engine import pool_kernels

    return pool_kernels.spread(g, which, shape, size)


_OURS = (pool, spread)


def apart(module: Any, device: torch.device) -> tuple[Any, str | None]:
    """A recorded step with every pool that fits, and its derivatives, replaced by the two above.

    With it, why they had to stay on a GPU, if there are some and they did.
    """
    return replaced(module, device, why_not, _fitting, _rewrite, _OURS)


def _rewrite(graph: Graph, fitting: list[Node], changing: set[Node]) -> None:
    for node in fitting:
        _replace(graph, node, changing)


def _fitting(graph: Graph) -> list[Node]:
    """Pools that can be replaced: whose results nobody writes into, or looks at where they lie."""
    if any(n.target is aten.as_strided.default for n in graph.nodes):
        return []
    changing = changed(graph)
    return [n for n in graph.nodes if n.target is _POOL and _fits(n) and not changing & _results(n)]


def _fits(node: Node) -> bool:
    size, form, y = _windows(node), node.args[0].meta["form"], _part(node, 0)
    if size is None or y is None or form.dtype is not torch.float32 or 0 in form.shape:
        return False
    if (
        math.prod(size) > _PLACES
        or math.prod(form.shape[-2:]) >= _MOST
        or not all(in_one_piece(n.meta["form"]) for n in _results(node))
    ):
        return False
    for reader, seen in _read(_part(node, 1)):
        if reader.target is not _BACKWARD or reader.args[7] is not seen or _windows(reader) != size:
            return False
        if (shape_of(reader), shape_of(reader.args[0])) != (tuple(form.shape), shape_of(y)):
            return False
    return True


def _windows(node: Node) -> tuple[int, int] | None:
    """The size of the windows of a pool or of its derivative, if they lie side by side and that is all."""
    size, *how = list(node.args)[1:] if node.target is _POOL else list(node.args)[2:7]
    stride, pad, dilation, up = [*how, *_USUAL[len(how) :]]
    plain = _both(stride or size) == _both(size) and _both(pad) == (0, 0) and _both(dilation) == (1, 1)
    return _both(size) if plain and not up and not node.kwargs else None


def _both(told: Any) -> tuple[int, int]:
    """torch takes one number for both sides of an image."""
    return (told, told) if isinstance(told, int) else (told[0], told[-1])


def _part(node: Node, which: int) -> Any:
    """The values or the indices that a pool gives, if anybody has taken them out."""
    return next((n for n in node.users if n.args[1] == which), None)


def _backwards(node: Node) -> list[Node]:
    return [n for n, _ in _read(_part(node, 1)) if n.target is _BACKWARD]


def _results(node: Node) -> set[Node]:
    """All that a pool and its derivatives give."""
    return {*node.users, *_backwards(node)}


def _read(node: Any) -> Iterator[tuple[Node, Node]]:
    """Whoever reads these numbers, be it in another shape, and the node that it reads."""
    for user in [] if node is None else list(node.users):
        if user.target in _VIEWS:
            yield from _read(user)
        else:
            yield user, node


def _replace(graph: Graph, node: Node, changing: set[Node]) -> None:
    x, size, backwards = node.args[0], _windows(node), _backwards(node)
    shape, values, places = shape_of(x) or (), _part(node, 0), _part(node, 1)
    small = shape_of(values) or ()
    with graph.inserting_before(node):
        both = graph.call_function(pool, (x, size))
        y, which = (call(graph, operator.getitem, (both, i), small) for i in range(2))
        which.meta["form"] = which.meta["form"]._replace(dtype=torch.uint8)
    spreads = []
    for last in backwards:
        g, activation = last.args[0], _activation(last, x, changing)
        with graph.inserting_before(last):
            if activation is not None:
                last, g = activation, call(graph, activation.target, (g, y, *activation.args[2:]), small)
            full = call(graph, spread, (g, which, shape, size), shape)
            seen = shape_of(last) or ()
            last.replace_all_uses_with(full if seen == shape else call(graph, aten.view.default, (full, seen), seen))
        _sum_before(graph, full, g)
        spreads.append(full)
    values.replace_all_uses_with(y)
    sweep(graph)
    for gone in (*spreads, which, values, places, node):  # what has no schema is never swept
        if gone is not None and not gone.users:
            graph.erase_node(gone)


def _activation(back: Node, x: Node, changing: set[Node]) -> Node | None:
    """The derivative of the activation that gave x, if it takes the gradient of the pool and nobody else does."""
    seen, readers = back, list(back.users)
    while len(readers) == 1 and readers[0].target in _VIEWS:
        seen, readers = readers[0], list(readers[0].users)
    if len(readers) != 1 or readers[0].target not in _DERIVATIVES or readers[0].args[0] is not seen:
        return None
    last = readers[0]
    (told, known), (of, also) = _lineage(last.args[1]), _lineage(x)
    if told is not of or shape_of(last.args[1]) != shape_of(seen):
        return None
    return None if any(origins(n) & changing for n in (last, *known, *also)) else last


def _lineage(node: Node) -> tuple[Node, list[Node]]:
    """Where these numbers were made, and all nodes from there that show them in the same order, copies included."""
    passed = [node]
    while passed[-1].target in (*_VIEWS, aten.clone.default):
        passed.append(passed[-1].args[0])
    return passed[-1], passed


def _sum_before(graph: Graph, full: Node, g: Node) -> None:
    """Sums over whole images of what was spread: of what was not yet, which leaves nothing out but zeros."""
    for total, seen in list(_read(full)):
        if total.target is not aten.sum.dim_IntList:
            continue
        shape = _unspread(shape_of(seen) or (), shape_of(full) or (), shape_of(g) or (), total.args[1])
        if shape is not None:
            with graph.inserting_before(full):
                new = graph.call_function(
                    total.target,
                    (call(graph, aten.reshape.default, (g, shape), shape), *total.args[1:]),
                    dict(total.kwargs),
                )
            new.meta = dict(total.meta)
            total.replace_all_uses_with(new)


def _unspread(
    seen: Sequence[int], full: Sequence[int], small: Sequence[int], dims: Sequence[int] | None
) -> tuple[int, ...] | None:
    """The shape for what is seen in a shape, before it is spread; None if `dims` do not take in all of an image."""
    rank = len(seen)
    sides = 2 if seen[-2:] == full[-2:] else 1 if full[-2] == 1 and seen[-1:] == full[-1:] else 0
    if sides == 0 or not {d % rank for d in dims or range(rank)} >= {*range(rank - sides, rank)}:
        return None
    return (*seen[:-sides], *small[-sides:])
