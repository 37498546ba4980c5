"""A recorded step made cheaper: what changes nothing is taken out, and what belongs together is joined.

    detach, a view of the same shape, turned not at
    all, times one                                    left out
    turned twice, a view of a view                    the last one alone
    transpose(A B)                                    B' A', so that a gradient is born the way it will lie
    ones like the loss                                a number, so that a loss nobody reads is not worked out
    A B + C                                           one operation
    a sum that keeps its dimension, which then goes   a sum that does not
    f(A), and nobody else looks at A                  written over A
    an operation that Python has a name for           called by it: by way of its schema it takes several times as long

All of it leaves a step's numbers as they are, up to rounding. `descent` is about the last operation of a step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import fx

aten: Any = torch.ops.aten
# The arguments of a node may be of any type, so a type checker has nothing to hold on to.
Node: TypeAlias = Any
Graph: TypeAlias = Any
NODE: Any = fx.Node
_SAME = (aten.detach.default, aten.alias.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default)
_TURNS = (aten.t.default, aten.transpose.int)
_METHODS: Any = torch._C.TensorBase
_FUNCTIONS: Any = torch._C._VariableFunctions


def simplify(graph: Graph, device: torch.device) -> None:
    """The whole of a step, as it was traced."""
    _drop_what_changes_nothing(graph)
    _turn_products(graph)
    _drop_single_rows(graph)
    _unlike(graph, device)
    _add_to_products(graph)
    _drop_summed(graph)
    sweep(graph)


def hasten(graph: Graph, put: Callable[[Graph], None] = lambda graph: None) -> None:
    """Any part of a step, once nothing is to be found in it any more; `put` may put in what nobody can look into."""
    _overwrite(graph)
    changing = _written_later(graph)
    put(graph)
    _call_by_name(graph, changing)
    graph.lint()


def schema_of(node: Any) -> Any:
    """What an operation takes and gives; None for what is not an operation on tensors."""
    return getattr(node.target, "_schema", None) if isinstance(node, NODE) and node.op == "call_function" else None


def is_alias(node: Any) -> bool:
    """Whether what comes out may be the same numbers in memory as what went in."""
    if isinstance(node, NODE) and node.target is operator.getitem:  # one of several views
        return is_alias(node.args[0])
    if isinstance(node, NODE) and node.target is aten._unsafe_view.default:  # a view of what nobody else was to see
        return True
    schema = schema_of(node)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def origins(node: Node) -> set[Node]:
    """The tensors whose numbers in memory a node may show: itself, unless it is another look at others."""
    found: set[Node] = set()
    todo = [node]
    while todo:
        at = todo.pop()
        if is_alias(at):
            todo += at.all_input_nodes
        else:
            found.add(at)
    return found


def writes(graph: Graph) -> list[tuple[Node, set[Node]]]:
    """The operations that write, each with the tensors whose numbers it may change."""
    found = []
    for node in graph.nodes:
        schema = schema_of(node)
        if schema is not None and schema.is_mutable:
            given = {**dict(zip((a.name for a in schema.arguments), node.args, strict=False)), **node.kwargs}
            into = [given[a.name] for a in schema.arguments if a.is_write and a.name in given]
            each = [n for told in into for n in (told if isinstance(told, list | tuple) else [told])]
            found.append((node, {of for n in each for of in origins(n)}))
    return found


def changed(graph: Graph) -> set[Node]:
    """The tensors whose numbers some operation may change."""
    return {of for _, into in writes(graph) for of in into}


def written(graph: Graph) -> set[Node]:
    """What operations write to, and all that may lie in the same place."""
    changing = changed(graph)
    return {n for n in graph.nodes if origins(n) & changing}


def _written_later(graph: Graph) -> set[Node]:
    """What may be changed by a write that comes after it."""
    found, changing = set[Node](), set[Node]()
    told = dict(writes(graph))
    for node in reversed(graph.nodes):
        if origins(node) & changing:
            found.add(node)
        changing |= told.get(node, set())
    return found


def _calls(graph: Graph, *targets: Any) -> list[Node]:
    return [n for n in graph.nodes if n.op == "call_function" and n.target in targets]


def form_of(node: Any) -> Any:
    """The shape, strides and type of what a node gives, if it is a tensor."""
    return node.meta.get("form") if isinstance(node, NODE) else None


def shape_of(node: Any) -> tuple[int, ...] | None:
    """The shape of what a node gives, if it is a tensor."""
    known = form_of(node)
    return None if known is None else tuple(known.shape)


def only_for(node: Any, reader: Node) -> bool:
    """Whether it is a new tensor, and only `reader` looks at it, and once."""
    schema = schema_of(node)
    if schema is None or is_alias(node) or len(schema.returns) != 1:
        return False
    return len(node.users) == 1 and list(reader.args).count(node) == 1


def _replace(graph: Graph, node: Node, target: Any, args: tuple[Any, ...], **kwargs: Any) -> None:
    with graph.inserting_before(node):
        new = graph.call_function(target, args, kwargs)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _drop_what_changes_nothing(graph: Graph) -> None:
    for node in _calls(graph, *_SAME, *_VIEWS, aten.permute.default, aten.mul.Scalar):
        of = node.args[0]
        same = node.target in _SAME or (node.target in _VIEWS and shape_of(node) == shape_of(of) is not None)
        same |= node.target is aten.permute.default and list(node.args[1]) == list(range(len(node.args[1])))
        if same or (node.target is aten.mul.Scalar and node.args[1] == 1):
            node.replace_all_uses_with(of)
            graph.erase_node(node)
    for node in _calls(graph, *_TURNS):
        before = node.args[0]
        if isinstance(before, NODE) and before.target is node.target and _dims(node) == _dims(before):
            node.replace_all_uses_with(before.args[0])
    for node in _calls(graph, aten.view.default):
        before = node.args[0]
        if isinstance(before, NODE) and before.target is aten.view.default:
            node.update_arg(0, before.args[0])


def _dims(node: Node) -> set[int]:
    """Which dimensions a turn exchanges."""
    rank = len(shape_of(node) or ())
    return {int(d) % max(rank, 1) for d in node.args[1:]}


def _drop_single_rows(graph: Graph) -> None:
    """The derivative of taking the only row there is: the row, without zeros to put it into."""
    for node in _calls(graph, aten.select_backward.default):
        row, shape, dim, _ = node.args
        if dim == 0 and shape[0] == 1:
            _replace(graph, node, aten.unsqueeze.default, (row, 0))


def _unlike(graph: Graph, device: torch.device) -> None:
    """Ones like a loss need its shape and nothing else."""
    for node in _calls(graph, aten.ones_like.default):
        known = form_of(node)
        if known is not None:
            where = node.kwargs.get("device", device)
            _replace(graph, node, aten.full.default, (list(known.shape), 1), dtype=known.dtype, device=where)


def _turned(node: Any) -> bool:
    if not (isinstance(node, NODE) and node.target is aten.transpose.int):
        return False
    return {int(d) % 3 for d in node.args[1:]} == {1, 2} and len(shape_of(node) or ()) == 3


def _turn_products(graph: Graph) -> None:
    """transpose(A B) -> B' A', unless one of them may be another by then."""
    changing = written(graph)
    for node in _calls(graph, aten.transpose.int):
        product = node.args[0]
        if not (_turned(node) and isinstance(product, NODE) and product.target is aten.bmm.default):
            continue
        if len(product.users) > 1 or changing & set(product.args):
            continue
        with graph.inserting_before(node):
            a, b = (
                m.args[0] if _turned(m) else graph.call_function(aten.transpose.int, (m, 1, 2)) for m in product.args
            )
        _replace(graph, node, aten.bmm.default, (b, a))


def _add_to_products(graph: Graph) -> None:
    """A B + C, unless one of them may be another by the time that it is added."""
    changing = written(graph)
    for node in _calls(graph, aten.add.Tensor):
        for product, other in (node.args, node.args[::-1]):
            if not only_for(product, node) or product.target is not aten.bmm.default or node.kwargs:
                continue
            if changing & {*product.args, other}:
                continue
            known = [form_of(n) for n in (node, product, other)]
            if None not in known and known[0].shape == known[1].shape and len({k.dtype for k in known}) == 1:
                _replace(graph, node, aten.baddbmm.default, (other, *product.args))
                break


def _drop_summed(graph: Graph) -> None:
    """A sum that keeps its dimension, then without that dimension."""
    for node in _calls(graph, aten.view.default):
        total = node.args[0]
        if not (only_for(total, node) and total.target is aten.sum.dim_IntList and total.args[2:] == (True,)):
            continue
        shape = shape_of(total.args[0]) or ()
        gone = {d % len(shape) for d in total.args[1] or range(len(shape))}
        if shape_of(node) == tuple(n for i, n in enumerate(shape) if i not in gone):
            _replace(graph, node, total.target, total.args[:2], **total.kwargs)


def sweep(graph: Graph) -> None:
    """Take out what nobody uses; operations that write (names ending in _ or .out) stay."""
    for node in reversed(list(graph.nodes)):
        if node.op not in ("call_function", "get_attr") or node.users:
            continue
        schema = schema_of(node)
        if node.op == "get_attr" or (schema is not None and not schema.is_mutable):
            graph.erase_node(node)


def _overwrite(graph: Graph) -> None:
    """f(A) -> f_(A), where nobody else looks at A and the result lies as A does."""
    for node in graph.nodes:
        schema = schema_of(node)
        if schema is None or not node.args or not only_for(node.args[0], node):
            continue
        name, overload = schema.name.removeprefix("aten::"), schema.overload_name or "default"
        new, old = form_of(node), form_of(node.args[0])
        alike = None not in (new, old) and (new.shape, new.dtype, new.stride) == (old.shape, old.dtype, old.stride)
        writing = getattr(aten, name + "_", None)
        if alike and writing is not None and overload in writing.overloads():
            node.target = getattr(writing, overload)


def _call_by_name(graph: Graph, changing: set[Node]) -> None:
    for node in graph.nodes:
        schema = schema_of(node)
        if schema is None or not schema.name.startswith("aten::") or schema.overload_name.endswith("out"):
            continue
        if any(isinstance(a, list | tuple) and None in a for a in node.args):  # only a schema takes nothing in a list
            continue
        name, first = schema.name.removeprefix("aten::"), schema.arguments[:1]
        of_first = bool(node.args) and isinstance(node.args[0], NODE) and first[0].name == "self"
        if node.target is aten.view.default and node not in changing:
            node.op, node.target = "call_method", "reshape"  # inputs, and what was turned, may lie otherwise by now
        elif node.target is aten.index.Tensor and len(node.args[1]) == 1:
            node.target, node.args = operator.getitem, (node.args[0], node.args[1][0])
        elif of_first and hasattr(_METHODS, name) and name not in vars(torch.Tensor):  # some are Python's own there
            node.op, node.target = "call_method", name
        elif getattr(torch, name, None) is getattr(_FUNCTIONS, name, torch):
            node.target = getattr(torch, name)
