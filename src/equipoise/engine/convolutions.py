"""Convolutions in a recorded step: clients apart, in kernels made for many clients (`convolution_kernels`).

torch maps a convolution over clients by laying them side by side, as groups of one large convolution, and copies
everything there and back:

    x [C, B, planes, ...] -> [B, C planes, ...] -> grouped convolution -> [B, C filters, ...] -> [C, B, filters, ...]

On a GPU the recorded operations are replaced by kernels that take and give what stands at the two ends; nobody needs
the copies any more. A bias and a ReLU right behind go into the same kernel.

What stays as it was: other devices, numbers that are not float32, strides and dilations, a single group, and a GPU
where Triton is missing or has no compiler. A step's numbers are the same up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.engine.custom import call, in_one_piece, replaced, strides, why_not
from equipoise.engine.rewrite import NODE, Graph, Node, aten, changed, is_alias, origins, schema_of, shape_of, sweep

_MOST = 1 << 31  # places that a kernel can tell apart
_GROUPS = (1 << 16) - 1  # and groups: the last axis of a grid
_VIEWS = (aten.view.default, aten._unsafe_view.default)


def forward(x: Tensor, w: Tensor, pad: Sequence[int], bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x [C, B, planes, ...] under w [C, filters, planes, ...], for each of C clients; bias [C, 1, filters, 1, ...]."""
    from equipoise.engine import convolution_kernels

    lying = None if bias is None else bias.flatten(1)
    y = convolution_kernels.forward(_image(x), _image(w), _both(pad), _precision(), lying, relu)
    return y if x.dim() == 5 else y.squeeze(-2)


def of_inputs(g: Tensor, w: Tensor, pad: Sequence[int]) -> Tensor:
    """The gradient by x, of that by y."""
    from equipoise.engine import convolution_kernels

    found = convolution_kernels.of_inputs(_image(g), _image(w), _both(pad), _precision())
    return found if g.dim() == 5 else found.squeeze(-2)


def of_filters(g: Tensor, x: Tensor, w: Tensor, pad: Sequence[int]) -> Tensor:
    """The gradient by w, of that by y."""
    from equipoise.engine import convolution_kernels

    return convolution_kernels.of_filters(_image(g), _image(x), _image(w).shape, _both(pad), _precision()).view(w.shape)


_OURS = (forward, of_inputs, of_filters)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def _image(t: Tensor) -> Tensor:
    """A line is an image of one row."""
    return t if t.dim() == 5 else t.unsqueeze(-2)


def _both(pad: Sequence[int]) -> tuple[int, int]:
    return (0, pad[0]) if len(pad) == 1 else (pad[0], pad[1])


def apart(module: Any, device: torch.device) -> tuple[Any, str | None]:
    """A recorded step with every grouped convolution, and its derivatives, replaced by the three above.

    With it, why they had to stay on a GPU, if there are some and they did.
    """
    return replaced(module, device, why_not, _fitting, _rewrite, _OURS)


def _rewrite(graph: Graph, fitting: list[Node], changing: set[Node]) -> None:
    for node in fitting:
        if node.target is aten.convolution.default:
            _replace_forward(graph, node, changing)
        else:
            _replace_backward(graph, node, changing)
    sweep(graph)
    _take_in(graph, changing)
    _drop_copies(graph, changing)


def _given(node: Node) -> tuple[Node, Node, Any, list[Any]]:
    """The inputs and filters of a convolution or of its derivatives, the bias if it has one, and how it is done."""
    args = list(node.args)
    if node.target is aten.convolution.default:
        x, w, bias, *how = args
        return x, w, bias, how
    _, x, w, _, *how, wanted = args
    return x, w, True if wanted[2] else None, how


def _fitting(graph: Graph) -> list[Node]:
    """Convolutions that can be replaced: whose results nobody writes into, or looks at where they lie."""
    kinds, changing = (aten.convolution.default, aten.convolution_backward.default), changed(graph)
    if any(n.target is aten.as_strided.default for n in graph.nodes):
        return []
    found = [n for n in graph.nodes if n.target in kinds and _fits(n)]
    return [n for n in found if not changing & {n, *n.users}]


def _fits(node: Node) -> bool:
    x, w, bias, (stride, pad, dilation, turned, _, groups) = _given(node)
    forms = [n.meta["form"] for n in (x, w)]
    plain = bias is None and not turned and {*stride, *dilation} == {1} and len(pad) in (1, 2)
    if not plain or {f.dtype for f in forms} != {torch.float32}:
        return False
    if len(pad) != len(forms[0].shape) - 2:
        return False
    (batch, planes, *sizes), (filters, *_) = (f.shape for f in forms)
    room = math.prod(n + 2 * p for n, p in zip(sizes, pad, strict=True))  # an output is no larger
    return groups > 1 and can_tell_apart(groups, batch * room * max(planes, filters) // groups)


def can_tell_apart(clients: int, places: int) -> bool:
    """Whether kernels can tell so many clients, and so many places of each, apart."""
    return 0 < clients <= _GROUPS and 0 < places < _MOST


def _replace_forward(graph: Graph, node: Node, changing: set[Node]) -> None:
    x, w, _, (_, pad, *_, groups) = _given(node)
    batch, filters, *sizes = shape_of(node) or ()
    with graph.inserting_before(node):
        given = _clients_first(graph, x, groups, changing), _filters_apart(graph, w, groups, changing)
        new = call(graph, forward, (*given, tuple(pad)), (groups, batch, filters // groups, *sizes))
    _give(graph, node, new, turned=True)


def _replace_backward(graph: Graph, node: Node, changing: set[Node]) -> None:
    x, w, _, (_, pad, *_, groups) = _given(node)
    with graph.inserting_before(node):
        g, inputs = (_clients_first(graph, n, groups, changing) for n in (node.args[0], x))
        filters = _filters_apart(graph, w, groups, changing)
        for part in list(node.users):
            if part.args[1] == 0:
                new = call(graph, of_inputs, (g, filters, tuple(pad)), shape_of(inputs) or ())
            else:
                new = call(graph, of_filters, (g, inputs, filters, tuple(pad)), shape_of(filters) or ())
            _give(graph, part, new, turned=part.args[1] == 0)
            graph.erase_node(part)


def _clients_first(graph: Graph, node: Node, groups: int, changing: set[Node]) -> Node:
    """[B, C planes, ...] -> [C, B, planes, ...]: what it was copied from, if that is still what it was."""
    batch, planes, *rest = shape_of(node) or ()
    wanted, turn = (groups, batch, planes // groups, *rest), [1, 0, *range(2, len(rest) + 3)]
    before = _copied_from(node)
    if before.target is aten.permute.default and list(before.args[1]) == turn:
        of: Node = before.args[0]
        if shape_of(of) == wanted and not origins(of) & changing:
            return of
    side = (batch, groups, planes // groups, *rest)
    return call(graph, aten.permute.default, (call(graph, aten.reshape.default, (node, side), side), turn), wanted)


def _filters_apart(graph: Graph, node: Node, groups: int, changing: set[Node]) -> Node:
    """[C filters, ...] -> [C, filters, ...]: what it was copied from, if that is still what it was."""
    filters, *rest = shape_of(node) or ()
    wanted = (groups, filters // groups, *rest)
    before = _copied_from(node)
    if shape_of(before) == wanted and not origins(before) & changing:
        return before
    return call(graph, aten.reshape.default, (node, wanted), wanted)


def _copied_from(node: Node) -> Node:
    """What a view of a copy, or of something else, was made of."""
    at = node.args[0] if node.target in _VIEWS else node
    return at.args[0] if at.target is aten.clone.default else at


def _give(graph: Graph, node: Node, new: Node, turned: bool) -> None:
    """`new` to whoever takes the clients of `node` apart again; to anybody else they are laid side by side."""
    shape = shape_of(new) or ()
    side = (shape[1], shape[0], *shape[2:]) if turned else shape
    for view in [u for u in node.users if u.target in _VIEWS and shape_of(u) == side]:
        if not turned:
            view.replace_all_uses_with(new)
        for user in [u for u in view.users if u.target is aten.permute.default]:
            if list(user.args[1]) == [1, 0, *range(2, len(shape))]:
                user.replace_all_uses_with(new)
                graph.erase_node(user)
        if not view.users:
            graph.erase_node(view)
    if node.users:
        with graph.inserting_before(node):
            whole = shape_of(node) or ()
            turn = [1, 0, *range(2, len(shape))]
            of = call(graph, aten.permute.default, (new, turn), side) if turned else new
            node.replace_all_uses_with(call(graph, aten.reshape.default, (of, whole), whole))


def _take_in(graph: Graph, changing: set[Node]) -> None:
    """forward(...) + bias, and then the ReLU of it, as one. It comes later: what it reads must stay what it is."""
    for node in [n for n in graph.nodes if n.target is forward]:
        added = _only_user(node, aten.add.Tensor)
        if added is None or added.kwargs or not _is_bias(bias := _other(added, node), shape_of(node) or ()):
            continue
        if any(origins(n) & changing for n in (*node.args[:2], bias)):
            continue
        turned_off = _only_user(added, aten.relu.default)
        last = turned_off or added
        with graph.inserting_before(last):
            args = (*node.args, bias, turned_off is not None)
            last.replace_all_uses_with(call(graph, forward, args, shape_of(node) or ()))
        for gone in dict.fromkeys((last, added, node)):
            graph.erase_node(gone)


def _only_user(node: Node, target: Any) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


def _other(added: Node, node: Node) -> Any:
    return next((n for n in added.args if n is not node), None)


def _is_bias(node: Any, shape: Sequence[int]) -> bool:
    """Whether it is a number for every client and filter."""
    row = (shape[0], 1, shape[2], *[1] * (len(shape) - 3))
    return isinstance(node, NODE) and shape_of(node) == row and node.meta["form"].dtype is torch.float32


def _drop_copies(graph: Graph, changing: set[Node]) -> None:
    """What is in one piece already need not be copied to be so."""
    whole = set[Node]()
    for node in list(graph.nodes):
        copied = node.target is aten.clone.default and node.kwargs.get("memory_format") is torch.contiguous_format
        if copied and node.args[0] in whole and not (origins(node) | origins(node.args[0])) & changing:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif copied or _lies_whole(node, whole):
            whole.add(node)
            form = node.meta["form"]
            node.meta["form"] = form._replace(stride=strides(form.shape))


def _lies_whole(node: Node, whole: set[Node]) -> bool:
    """Whether what it gives is in one piece. What was traced is out of date behind a convolution."""
    form = node.meta.get("form")
    if form is None:
        return False
    if node.target in _OURS:
        return True
    if node.target in (*_VIEWS, aten.reshape.default, aten.clone.default):
        return node.args[0] in whole
    if is_alias(node):
        return False
    if schema_of(node) is not None and torch.Tag.pointwise in node.target.tags:
        given = [n for n in node.all_input_nodes if math.prod(shape_of(n) or ()) > 1]
        return bool(given) and all(n in whole for n in given)
    return in_one_piece(form)
