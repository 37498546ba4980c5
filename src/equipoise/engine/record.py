"""A client rule's step, written down once as a list of tensor operations, and played back.

Most of the time of a small step goes into deciding what to do: mapping the model over clients, building the graph of
derivatives, walking it backwards. All of that comes out the same in every step. `record` runs the step once under
torch's tracer and keeps the operations, derivatives included; then it takes out what changes nothing, and joins what
belongs together:

    detach, a view of the same shape, times one       left out
    transpose(A B)                                    B' A', so that a gradient is born the way it will lie
    w - lr * [g_1 | ... | g_n]                        every g_i goes straight into its place of w; where it is a
                                                      product A B, as w_i <- w_i - (lr A) B, in one operation

The last one overwrites w: whoever plays a recording back hands its w over. A step that decides by numbers (an `if` on
a tensor), looks at the round or at a whole split cannot be written down; `Unrecordable` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import ShapeProp

aten: Any = torch.ops.aten
# The arguments of a node may be of any type, so a type checker has nothing to hold on to.
Node: TypeAlias = Any
Graph: TypeAlias = Any
_NODE: Any = fx.Node
_SAME = (aten.detach.default, aten.alias.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default)


class Unrecordable(Exception):
    """Why a step cannot be written down."""


def record(step: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """`step` of these inputs as a list of operations; the first input and the first output are w."""
    examples = [t.clone() for t in inputs]
    try:
        step(*examples)  # what is only made the first time must not be written down
        with torch.no_grad():
            module = make_fx(step)(*examples)
            ShapeProp(module).propagate(*examples)
    except Unrecordable:
        raise
    except Exception as error:  # tracing runs the user's code on unusual tensors: anything may come out
        raise Unrecordable(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
    graph = module.graph
    _drop_what_changes_nothing(graph)
    _turn_products(graph)
    _sweep(graph)
    _descend_in_place(graph)
    graph.lint()
    module.recompile()
    return module


def _calls(graph: Graph, *targets: Any) -> list[Node]:
    return [n for n in graph.nodes if n.op == "call_function" and n.target in targets]


def _shape(node: Any) -> tuple[int, ...] | None:
    known = node.meta.get("tensor_meta") if isinstance(node, _NODE) else None
    return None if known is None else tuple(known.shape)


def _drop_what_changes_nothing(graph: Graph) -> None:
    for node in _calls(graph, *_SAME, *_VIEWS, aten.mul.Scalar):
        of = node.args[0]
        same = node.target in _SAME or (node.target in _VIEWS and _shape(node) == _shape(of) is not None)
        if same or (node.target is aten.mul.Scalar and node.args[1] == 1):
            node.replace_all_uses_with(of)
            graph.erase_node(node)


def _turned(node: Any) -> bool:
    if not (isinstance(node, _NODE) and node.target is aten.transpose.int):
        return False
    return {int(d) % 3 for d in node.args[1:]} == {1, 2} and len(_shape(node) or ()) == 3


def _turn_products(graph: Graph) -> None:
    """transpose(A B) -> B' A'."""
    for node in _calls(graph, aten.transpose.int):
        product = node.args[0]
        if not (_turned(node) and isinstance(product, _NODE) and product.target is aten.bmm.default):
            continue
        if len(product.users) > 1:
            continue
        with graph.inserting_before(node):
            a, b = (
                m.args[0] if _turned(m) else graph.call_function(aten.transpose.int, (m, 1, 2)) for m in product.args
            )
            new = graph.call_function(aten.bmm.default, (b, a))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _sweep(graph: Graph) -> None:
    """Take out what nobody uses; operations that write (names ending in _ or .out) stay."""
    for node in reversed(list(graph.nodes)):
        if node.op not in ("call_function", "get_attr") or node.users:
            continue
        schema = getattr(node.target, "_schema", None)
        if node.op == "get_attr" or (schema is not None and not schema.is_mutable):
            graph.erase_node(node)


def _descend_in_place(graph: Graph) -> None:
    """addcmul(w, E, lr, value=-1) with E a row put together from pieces -> the pieces straight into w."""
    w = next(n for n in graph.nodes if n.op == "placeholder")
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    last = result[0]
    if not (isinstance(last, _NODE) and last.target is aten.addcmul.default and last.args[0] is w):
        return
    pieces, lr = _pieces(last.args[1], last), last.args[2]
    if pieces is None or last.kwargs.get("value") != -1 or len(last.users) > 1 or list(result).count(last) > 1:
        return
    if w in result or _read_later(graph, w, last):
        return
    with graph.inserting_before(last):
        for cut, view, source in pieces:
            place = graph.call_function(aten.slice.Tensor, (w, *cut.args[1:]))
            if view is not cut:
                place = graph.call_function(aten.view.default, (place, view.args[1]))
            if source.target is aten.bmm.default and len(source.users) == 1:
                a, b = source.args
                scaled = graph.call_function(aten.mul.Tensor, (a, lr))
                graph.call_function(aten.baddbmm_.default, (place, scaled, b), {"alpha": -1})
            else:
                graph.call_function(aten.addcmul_.default, (place, source, lr), {"value": -1})
    last.replace_all_uses_with(w)
    graph.erase_node(last)
    for cut, view, source in pieces:
        for user in [u for u in view.users if u.target is aten.copy_.default]:
            graph.erase_node(user)
        for node in (view, cut, source):
            if not node.users and node in graph.nodes:
                graph.erase_node(node)
    _sweep(graph)


def _pieces(whole: Any, reader: Node) -> list[tuple[Node, Node, Node]] | None:
    """(slice, view of it, what is copied into it) for a row that is empty at first and only read by `reader`."""
    if not (isinstance(whole, _NODE) and whole.target is aten.empty_like.default):
        return None
    found = []
    for cut in whole.users:
        if cut is reader:
            continue
        if cut.target is not aten.slice.Tensor:
            return None
        direct = all(u.target is aten.copy_.default for u in cut.users)
        for view in [cut] if direct else list(cut.users):
            copies = list(view.users)
            if len(copies) != 1 or copies[0].target is not aten.copy_.default or copies[0].users:
                return None
            found.append((cut, view, copies[0].args[1]))
    return found


def _read_later(graph: Graph, w: Node, point: Node) -> bool:
    """Whether w, or a view of it, is looked at after `point`."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    views, todo = {w}, [w]
    while todo:
        for user in todo.pop().users:
            schema = getattr(user.target, "_schema", None)
            aliases = schema is not None and any(a.alias_info is not None for a in schema.returns)
            if user is not point and order[user] > order[point]:
                return True
            if aliases and user not in views:
                views.add(user)
                todo.append(user)
    return False
