"""A client rule's step, written down once as a list of tensor operations, and played back.

Most of the time of a small step goes into deciding what to do: mapping the model over clients, building the graph of
derivatives, walking it backwards. All of that comes out the same in every step. `record` runs the step once under
torch's tracer and keeps the operations, derivatives included; then it takes out what changes nothing, and joins what
belongs together:

    detach, a view of the same shape, times one       left out
    turned twice                                      left as it was
    transpose(A B)                                    B' A', so that a gradient is born the way it will lie
    ones like the loss                                a number, so that a loss nobody reads is not worked out
    w - lr * [g_1 | ... | g_n]                        every g_i goes straight into its place of w; where it is a
                                                      product A B, as w_i <- w_i - (lr A) B, in one operation

The last one overwrites w: whoever plays a recording back hands its w over. Where nothing looks at w as a whole, it can
then also be kept as one tensor for each layer's weights (`Apart`): each begins where a core likes to read, which makes
products a fifth faster than within long rows, and how they are looked at is worked out once.

A step that decides by numbers (an `if` on a tensor), looks at the round or at a whole split cannot be written down;
`Unrecordable` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
_TURNS = (aten.t.default, aten.transpose.int)


class Unrecordable(Exception):
    """Why a step cannot be written down."""


@dataclass(frozen=True)
class Apart:
    """A step whose w is kept in parts: `views` of the parts are worked out once and go in front of a step's inputs."""

    places: tuple[slice, ...]
    """Which columns of w each part holds; together all of them, each once."""
    views: Callable[..., Sequence[Tensor]]
    step: Callable[..., Sequence[Tensor]]
    """(*views, *all inputs but w) -> all outputs but w: the parts are overwritten."""


@dataclass(frozen=True)
class Recorded:
    """A step as a list of operations; the first input and the first output are w."""

    run: Callable[..., Sequence[Tensor]]
    used: tuple[bool, ...]
    """Which inputs it looks at."""
    apart: Apart | None


def record(step: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> Recorded:
    """`step` of these inputs, written down."""
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
    _drop_single_rows(graph)
    _unlike(graph, examples[0].device)
    _sweep(graph)
    _descend_in_place(graph)
    graph.lint()
    module.recompile()
    used = tuple(bool(n.users) for n in graph.nodes if n.op == "placeholder")
    return Recorded(module, used, _apart(module, examples[0].shape[1]))


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
    for node in _calls(graph, *_TURNS):
        before = node.args[0]
        if isinstance(before, _NODE) and before.target is node.target and _dims(node) == _dims(before):
            node.replace_all_uses_with(before.args[0])


def _dims(node: Node) -> set[int]:
    """Which dimensions a turn exchanges."""
    rank = len(_shape(node) or ())
    return {int(d) % max(rank, 1) for d in node.args[1:]}


def _drop_single_rows(graph: Graph) -> None:
    """The derivative of taking the only row there is: the row, without zeros to put it into."""
    for node in _calls(graph, aten.select_backward.default):
        row, shape, dim, _ = node.args
        if dim == 0 and shape[0] == 1:
            with graph.inserting_before(node):
                new = graph.call_function(aten.unsqueeze.default, (row, 0))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)


def _unlike(graph: Graph, device: torch.device) -> None:
    """Ones like a loss need its shape and nothing else."""
    for node in _calls(graph, aten.ones_like.default):
        known = node.meta.get("tensor_meta")
        if known is not None:
            with graph.inserting_before(node):
                filled = {"dtype": known.dtype, "device": node.kwargs.get("device", device)}
                new = graph.call_function(aten.full.default, (list(known.shape), 1), filled)
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)


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
            product, only = _product(source)
            if product is not None:
                place = graph.call_function(aten.select.int, (place, 0, 0)) if only else place
                a, b = product.args
                scaled = graph.call_function(aten.mul.Tensor, (a, lr))
                add = aten.addmm_.default if only else aten.baddbmm_.default
                graph.call_function(add, (place, scaled, b), {"alpha": -1})
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


def _product(source: Node) -> tuple[Node | None, bool]:
    """The product that `source` is and that nobody else reads, and whether it is that of an only row."""
    if len(source.users) > 1:
        return None, False
    if source.target is aten.bmm.default:
        return source, False
    of = source.args[0] if source.target is aten.unsqueeze.default and source.args[1] == 0 else None
    alone = isinstance(of, _NODE) and of.target is aten.mm.default and len(of.users) == 1
    return (of, True) if alone else (None, False)


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


def _apart(module: Any, d: int) -> Apart | None:
    """The step with w in parts, if all it ever looks at are the same pieces of w, and it overwrites them."""
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    w, rest = inputs[0], inputs[1:]
    outputs = next(n for n in module.graph.nodes if n.op == "output").args[0]
    cuts = [n for n in w.users if n.op != "output"]
    if outputs[0] is not w or w in outputs[1:] or any(n.target is not aten.slice.Tensor for n in cuts):
        return None
    places = sorted({tuple(n.args[1:]) for n in cuts})
    edges = [0, *(stop for _, _, stop in places)]
    if [(1, a, b) for a, b in pairwise(edges)] != places or edges[-1] != d:
        return None
    before, after = fx.Graph(), fx.Graph()
    part = {place: before.placeholder(f"part_{i}") for i, place in enumerate(places)}
    looks = {n: part[tuple(n.args[1:])] for n in cuts}
    for node in module.graph.nodes:
        if node not in looks and _is_view(node) and set(node.all_input_nodes) <= looks.keys():
            looks[node] = before.node_copy(node, lambda n: looks[n])
    wanted = [n for n in looks if any(user not in looks for user in n.users)]
    before.output([looks[n] for n in wanted])
    known = {n: after.placeholder(f"view_{i}") for i, n in enumerate(wanted)}
    for node in module.graph.nodes:
        if node in rest or (node.op in ("call_function", "get_attr") and node not in looks):
            known[node] = after.node_copy(node, lambda n: known[n])
    after.output([known[n] for n in outputs[1:]])
    made = [fx.GraphModule(module, graph).forward for graph in (before, after)]
    return Apart(tuple(slice(a, b) for _, a, b in places), *made)


def _is_view(node: Node) -> bool:
    """Whether it is another look at the same numbers, and no more."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    told = [r.alias_info for r in schema.returns] if schema is not None else []
    return bool(told) and all(a is not None and not a.is_write for a in told)
