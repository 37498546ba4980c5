"""A step's descents, base - lr * [g_1 | ... | g_n], without the row of gradients in between.

The base is w, of which that is the last operation in most recorded steps, or, on a CPU, what a step has just made
(Ditto's own models, on their way to the global one). Every g_i goes straight into its place of the base; where it is a
product A B, as base_i <- base_i - lr A B, in one operation. That overwrites the base, so it is done only where nothing
looks at it afterwards. It also puts off reading g_i, or A and B, so it is done only where they are still what they
were: not other parts of w (the model of x A B has such gradients), nor anything that is written to in between.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from equipoise.engine.rewrite import (
    NODE,
    Graph,
    Node,
    aten,
    form_of,
    is_alias,
    only_for,
    origins,
    shape_of,
    sweep,
    writes,
)

_ROWS: tuple[list[Any], ...] = ([], [aten.unbind.int, operator.getitem])
"""How a row is come by: it is the whole, or one of several side by side."""
_LOOKS = (aten.unbind.int, operator.getitem, aten.slice.Tensor, aten.view.default)


class _Piece(NamedTuple):
    """What is copied into a place of a row, and how the row is looked at there: slice, perhaps as another shape."""

    looks: tuple[Node, ...]
    source: Node
    copy: Node


def descend_in_place(graph: Graph, device: torch.device) -> None:
    """addcmul(base, E, lr, value=-1) with E a row put together from pieces -> the pieces straight into the base."""
    w = next(n for n in graph.nodes if n.op == "placeholder")
    result = list(next(n for n in graph.nodes if n.op == "output").args[0])
    for i, last in enumerate(result):
        if not (isinstance(last, NODE) and last.target is aten.addcmul.default):
            continue
        if last.kwargs.get("value") != -1 or len(last.users) > 1 or result.count(last) > 1:
            continue
        base = last.args[0]
        if base is w:
            free = i == 0 and w not in result and not _read_later(graph, w, last)
        else:
            free = device.type == "cpu" and only_for(base, last)
        if free:
            _descend(graph, device, last)


def _descend(graph: Graph, device: torch.device, last: Node) -> None:
    base, whole, lr = last.args
    row = whole.args[0] if isinstance(whole, NODE) and whole.target is aten.view.default else whole
    shown = row is not whole
    pieces = None if shown and len(whole.users) > 1 else _pieces(row, whole if shown else last)
    if not pieces or form_of(base) != form_of(whole) or shape_of(lr) != () or not _once(pieces):
        return
    if any(_another_by_then(graph, base, [p.source], p.copy, last) for p in pieces):
        return
    products = [_product(graph, base, p, last) for p in pieces]
    with graph.inserting_before(last):
        down, at = _Down(graph, lr, device), {row: base}
        if shown:
            at[row] = graph.call_function(aten.view.default, (base, list(shape_of(row) or ())))
        for piece, (product, only) in zip(pieces, products, strict=True):
            for look in piece.looks:
                at[look] = at.get(look) or graph.node_copy(look, at.__getitem__)
            place = at[piece.looks[-1]]
            if product is None:
                down.by(place, piece.source)
            else:
                place = graph.call_function(aten.select.int, (place, 0, 0)) if only else place
                down.by_product(aten.addmm_.default if only else aten.baddbmm_.default, place, *product.args)
    last.replace_all_uses_with(base)
    graph.erase_node(last)
    for node in [n for p in pieces for n in (p.copy, *reversed(p.looks), p.source)]:
        if not node.users and node in graph.nodes:
            graph.erase_node(node)
    sweep(graph)


class _Down:
    """place <- place - lr * what: on a CPU lr is a number, on a GPU, which would have to be asked for it, a tensor."""

    def __init__(self, graph: Graph, lr: Node, device: torch.device) -> None:
        self.graph, self.lr, self.rate = graph, lr, None
        if device.type == "cpu":
            minus = graph.call_function(aten.neg.default, (lr,))
            self.rate = graph.call_function(aten._local_scalar_dense.default, (minus,))

    def by(self, place: Node, what: Node) -> None:
        if self.rate is not None:
            self.graph.call_function(aten.add_.Tensor, (place, what), {"alpha": self.rate})
        else:
            self.graph.call_function(aten.addcmul_.default, (place, what, self.lr), {"value": -1})

    def by_product(self, add: Any, place: Node, a: Node, b: Node) -> None:
        if self.rate is not None:
            self.graph.call_function(add, (place, a, b), {"alpha": self.rate})
        else:
            scaled = self.graph.call_function(aten.mul.Tensor, (a, self.lr))
            self.graph.call_function(add, (place, scaled, b), {"alpha": -1})


def _product(graph: Graph, base: Node, piece: _Piece, point: Node) -> tuple[Node | None, bool]:
    """The product that it is, that nobody else reads and that can wait until `point`; whether of an only row."""
    source = piece.source
    of = source.args[0] if source.target is aten.unsqueeze.default and source.args[1] == 0 else source
    only = of is not source
    if not isinstance(of, NODE) or of.target is not (aten.mm.default if only else aten.bmm.default):
        return None, False
    if len(source.users) > 1 or len(of.users) > 1 or shape_of(source) != shape_of(piece.looks[-1]):
        return None, False
    return (None, False) if _another_by_then(graph, base, of.args, of, point) else (of, only)


def _another_by_then(graph: Graph, base: Node, told: Sequence[Node], since: Node, point: Node) -> bool:
    """Whether what `told` show may change between `since` and `point`, where the base is overwritten part by part."""
    order, shown = {n: i for i, n in enumerate(graph.nodes)}, {of for n in told for of in origins(n)}
    between = (into for node, into in writes(graph) if order[since] < order[node] < order[point])
    return base in shown or any(into & shown for into in between)


def _pieces(row: Any, reader: Node) -> list[_Piece] | None:
    """What is copied into a row that is empty at first and only read by `reader`."""
    if not (isinstance(row, NODE) and row.target is aten.empty_like.default):
        return None
    found: list[_Piece] = []
    todo: list[tuple[tuple[Node, ...], Node]] = [((), user) for user in row.users if user is not reader]
    while todo:
        looks, node = todo.pop()
        if node.target is aten.copy_.default and looks and node.args[0] is looks[-1] and not node.users:
            found.append(_Piece(looks, node.args[1], node))
        elif node.target in _LOOKS:
            todo += [((*looks, node), user) for user in node.users]
        else:
            return None
    return found


def _once(pieces: Sequence[_Piece]) -> bool:
    """Whether no two of these have a number in common: they are slices of a row, or of several rows side by side."""
    places: dict[tuple[Any, ...], list[Any]] = {}
    for looks, _, _ in pieces:
        ways = [(n.target, *n.args[1:]) for n in looks if n is not looks[-1] or n.target is not aten.view.default]
        if not ways or ways[-1][0] is not aten.slice.Tensor or [way[0] for way in ways[:-1]] not in _ROWS:
            return False
        places.setdefault(tuple(ways[:-1]), []).append(ways[-1][1:])
    alike = len({way[:1] for way in places}) == 1
    plain = all(len(cut) == 3 and cut[0] == 1 for cuts in places.values() for cut in cuts)
    return alike and plain and all(a[2] <= b[1] for cuts in places.values() for a, b in pairwise(sorted(cuts)))


def _read_later(graph: Graph, w: Node, point: Node) -> bool:
    """Whether w, or a view of it, is looked at after `point`."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    views, todo = {w}, [w]
    while todo:
        for user in todo.pop().users:
            if user is not point and order[user] > order[point]:
                return True
            if is_alias(user) and user not in views:
                views.add(user)
                todo.append(user)
    return False
