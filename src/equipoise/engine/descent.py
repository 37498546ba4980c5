"""The last operation of most recorded steps, w - lr * [g_1 | ... | g_n], without the row of gradients in between.

Every g_i goes straight into its place of w; where it is a product A B, as w_i <- w_i - lr A B, in one operation. That
overwrites w, so it is done only where nothing looks at w afterwards. It also puts off reading g_i, or A and B, so it is
done only where they are still what they were: not other parts of w (the model of x A B has such gradients), nor
anything that is written to in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from equipoise.engine.rewrite import NODE, Graph, Node, aten, is_alias, origins, shape_of, sweep, writes


def descend_in_place(graph: Graph, device: torch.device) -> None:
    """addcmul(w, E, lr, value=-1) with E a row put together from pieces -> the pieces straight into w."""
    w = next(n for n in graph.nodes if n.op == "placeholder")
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    last = result[0]
    if not (isinstance(last, NODE) and last.target is aten.addcmul.default and last.args[0] is w):
        return
    pieces, lr = _pieces(last.args[1], last), last.args[2]
    if pieces is None or last.kwargs.get("value") != -1 or len(last.users) > 1 or list(result).count(last) > 1:
        return
    if w in result or shape_of(lr) != () or _read_later(graph, w, last) or not _once([cut for cut, _, _ in pieces]):
        return
    if any(_another_by_then(graph, w, [source], _copy(view), last) for _, view, source in pieces):
        return
    products = [_product(graph, w, view, source, last) for _, view, source in pieces]
    with graph.inserting_before(last):
        down = _Down(graph, lr, device)
        for (cut, view, source), (product, only) in zip(pieces, products, strict=True):
            place = graph.call_function(aten.slice.Tensor, (w, *cut.args[1:]))
            if view is not cut:
                place = graph.call_function(aten.view.default, (place, view.args[1]))
            if product is None:
                down.by(place, source)
            else:
                place = graph.call_function(aten.select.int, (place, 0, 0)) if only else place
                down.by_product(aten.addmm_.default if only else aten.baddbmm_.default, place, *product.args)
    last.replace_all_uses_with(w)
    graph.erase_node(last)
    for cut, view, source in pieces:
        for user in [u for u in view.users if u.target is aten.copy_.default]:
            graph.erase_node(user)
        for node in (view, cut, source):
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


def _product(graph: Graph, w: Node, view: Node, source: Node, point: Node) -> tuple[Node | None, bool]:
    """The product that `source` is, that nobody else reads and that can wait until `point`; whether of an only row."""
    of = source.args[0] if source.target is aten.unsqueeze.default and source.args[1] == 0 else source
    only = of is not source
    if not isinstance(of, NODE) or of.target is not (aten.mm.default if only else aten.bmm.default):
        return None, False
    if len(source.users) > 1 or len(of.users) > 1 or shape_of(source) != shape_of(view):
        return None, False
    return (None, False) if _another_by_then(graph, w, of.args, of, point) else (of, only)


def _another_by_then(graph: Graph, w: Node, told: Sequence[Node], since: Node, point: Node) -> bool:
    """Whether what `told` show may change between `since` and `point`, where w is overwritten part by part."""
    order, shown = {n: i for i, n in enumerate(graph.nodes)}, {of for n in told for of in origins(n)}
    between = (into for node, into in writes(graph) if order[since] < order[node] < order[point])
    return w in shown or any(into & shown for into in between)


def _once(cuts: Sequence[Node]) -> bool:
    """Whether no two of these slices have a number in common."""
    places = sorted({cut: cut.args[1:] for cut in cuts}.values())
    return all(len(p) == 3 and p[0] == 1 for p in places) and all(a[2] <= b[1] for a, b in pairwise(places))


def _copy(view: Node) -> Node:
    """What is copied into it."""
    return next(iter(view.users))


def _pieces(whole: Any, reader: Node) -> list[tuple[Node, Node, Node]] | None:
    """(slice, view of it, what is copied into it) for a row that is empty at first and only read by `reader`."""
    if not (isinstance(whole, NODE) and whole.target is aten.empty_like.default):
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
            if user is not point and order[user] > order[point]:
                return True
            if is_alias(user) and user not in views:
                views.add(user)
                todo.append(user)
    return False
