"""Products of matrices in a recorded step: those of few samples, in kernels made for many clients (`product_kernels`).

    A B                                     product(A, B)
    A B + a row for each client             product(A, B, row), and with the ReLU right behind it
    place <- place - (A lr) B               descend(place, A, B, lr)

This comes last, when a step is cut and ready: nobody who looks for what is written where can see it in `descend`.
What has to be known of the whole step for that is noted before (`look`).

What stays as it was: other devices, numbers that are not float32, a single client, products where every side is long,
and a GPU where Triton is missing or has no compiler. A step's numbers are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from equipoise.engine.custom import make, why_not
from equipoise.engine.rewrite import NODE, Graph, Node, aten, is_alias, origins, schema_of, shape_of, writes
from equipoise.engine.tape import Form

_MOST = 1 << 31  # numbers of one client that a kernel can tell apart
_SKINNY = 64  # samples: with more of them products are about multiplying, at which libraries are good
_RELU = (aten.relu.default, aten.relu_.default)
_FORM, _ALONE = "form", "alone"


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """a [C, m, k] times b [C, k, n], for each of C clients; bias [C, 1, n]."""
    from equipoise.engine import product_kernels

    return product_kernels.product(a, b, _precision(), bias, relu)


def descend(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> Tensor:
    """place [C, m, n] <- place - lr a b; lr is a number."""
    if place.stride(2) != 1 or lr.device != place.device:  # torch takes a number from a CPU too
        return place.baddbmm_(a * lr, b, alpha=-1)
    from equipoise.engine import product_kernels

    product_kernels.descend(place, a, b, lr, _precision())
    return place


def suits(m: int, n: int, k: int) -> bool:
    """Whether the kernels are the faster ones: all is reading where one side is short, which is that of the batch."""
    return min(m, n, k) <= _SKINNY


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def look(graph: Graph, device: torch.device) -> None:
    """Note what only the whole of a step shows: how views lie, and which steps down read nothing that they write."""
    if why_not(device) is not None:
        return
    lie(node for node in graph.nodes if _FORM not in node.meta)
    order = {n: i for i, n in enumerate(graph.nodes)}
    told = writes(graph)
    for node in graph.nodes:
        if (parts := _down(node)) is not None:
            place, scaled, a, b, lr = parts
            read = {of for n in (a, b, lr) for of in origins(n)}
            between = [into for n, into in told if order[scaled] < order[n] < order[node]]
            node.meta[_ALONE] = not any(into & read for into in (origins(place), *between))


def lie(nodes: Iterable[Node]) -> None:
    """How those of these nodes lie that are views of what is known; as they do by now, if they were told before."""
    for node in nodes:
        given, schema = node.all_input_nodes, schema_of(node)
        if schema is None or schema.is_mutable or not is_alias(node) or any(_FORM not in n.meta for n in given):
            continue
        # What cannot be a view where its numbers lie by now will be a copy (see `rewrite`).
        with suppress(RuntimeError):
            found = node.target(*fx.node.map_arg(node.args, _empty), **fx.node.map_arg(node.kwargs, _empty))
            if isinstance(found, Tensor):
                node.meta[_FORM] = Form(found.shape, found.dtype, found.stride())


def _empty(node: Node) -> Tensor:
    """A node's tensor without numbers in it."""
    form = node.meta[_FORM]
    return torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")


class _Fitting(NamedTuple):
    """A product, by what it is to be replaced, and what goes with it: the ReLU behind it, or what is put off to it."""

    node: Node
    by: Callable[..., Tensor]
    args: tuple[Any, ...]
    behind: Node | None = None
    ahead: Node | None = None


def put(graph: Graph, device: torch.device) -> str | None:
    """Replace every product that fits by one of the two above; why none could be on a GPU, if there are some."""
    fitting = [f for f in map(_fits, graph.nodes) if f is not None]
    if not fitting:
        return None
    if (why := why_not(device)) is not None:
        return why if device.type == "cuda" else None
    if (why := make([(f.by, f.args) for f in fitting], device)) is not None:
        return why
    instead: dict[Node, Node] = {}
    for node, by, args, behind, ahead in fitting:
        with graph.inserting_before(node):
            new = graph.call_function(by, fx.node.map_arg(args, lambda n: instead.get(n, n)))
        last = behind or node
        instead[last], new.meta = new, dict(last.meta)
        last.replace_all_uses_with(new)
        for gone in (behind, node, ahead):
            if gone is not None:
                graph.erase_node(gone)
    return None


def _fits(node: Node) -> _Fitting | None:
    if node.target is aten.baddbmm_.default:
        parts = _down(node)
        if parts is None or not node.meta.get(_ALONE):
            return None
        place, scaled, a, b, lr = parts
        return _Fitting(node, descend, (place, a, b, lr), ahead=scaled) if _skinny(a, b, place) else None
    wanted = {aten.bmm.default: 2, aten.baddbmm.default: 3}.get(node.target)
    if wanted is None or len(node.args) != wanted or node.kwargs:
        return None
    *added, a, b = node.args
    if not _skinny(a, b, *added):
        return None
    (clients, _, _), (_, _, n) = shape_of(a) or (), shape_of(b) or ()
    if any(shape_of(bias) != (clients, 1, n) for bias in added):
        return None
    bias, users = added[0] if added else None, list(node.users)
    behind = users[0] if len(users) == 1 and users[0].target in _RELU else None
    return _Fitting(node, product, (a, b, bias, behind is not None), behind)


def _down(node: Node) -> tuple[Node, Node, Node, Node, Node] | None:
    """place, A lr, A, B and lr, if it is place <- place - (A lr) B with a number lr, and A lr is for nothing else."""
    if node.target is not aten.baddbmm_.default or node.kwargs != {"alpha": -1} or len(node.args) != 3:
        return None
    place, scaled, b = node.args
    if scaled.target is not aten.mul.Tensor or len(scaled.users) > 1 or scaled is b:
        return None
    a, lr = scaled.args
    number = isinstance(lr, NODE) and shape_of(lr) == () and lr.meta[_FORM].dtype in (torch.float32, torch.float64)
    return (place, scaled, a, b, lr) if number else None


def _skinny(a: Node, b: Node, *others: Node) -> bool:
    """Whether the product of a and b is one for our kernels, as far as all of these are known."""
    forms = [n.meta.get(_FORM) for n in (a, b, *others)]
    if any(f is None or f.dtype is not torch.float32 or len(f.shape) != 3 for f in forms):
        return False
    (clients, m, k), n = forms[0].shape, forms[1].shape[2]
    sides = m * k, k * n, m * n
    return clients > 1 and min(sides) > 0 and max(sides) < _MOST and suits(m, n, k)
