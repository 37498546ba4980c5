"""Kernels of our own in recorded steps: where there are any, and how they are put in the place of torch's operations.

`convolutions`, `pools` and `products` say which operations of a recording give way to which kernel. A function that
calls a kernel has no schema: whoever reads a graph takes it for one that writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, fx

from equipoise.engine.rewrite import NODE, Graph, Node, changed, sweep
from equipoise.engine.tape import Form

_FIRST = (8, 0)  # the first generation of devices (Ampere) with tensor cores for products of float32


@cache
def why_not(device: torch.device) -> str | None:
    """Why there are no such kernels on this device; None if there are."""
    if device.type != "cuda":
        return "they are for GPUs"
    if torch.cuda.get_device_capability(device) < _FIRST:
        return f"they need a device of capability {_FIRST[0]}.{_FIRST[1]} or more"
    if find_spec("triton") is None:
        return "they need Triton, which is not installed"
    return None


def replaced(
    module: Any,
    device: torch.device,
    able: Callable[[torch.device], str | None],
    fitting: Callable[[Graph], list[Node]],
    rewrite: Callable[[Graph, list[Node], set[Node]], None],
    ours: Collection[Any],
) -> tuple[Any, str | None]:
    """A module in a copy of whose graph `rewrite` has put `ours` in the place of what is `fitting`, if kernels can be
    made. With it, why all had to stay on a GPU, if there is something and it did.

    `rewrite` is told which tensors are changing. What it replaces is not written to, and what replaces it writes none.
    """
    if not fitting(module.graph):
        return module, None
    if (why := able(device)) is not None:
        return module, why if device.type == "cuda" else None
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    rewrite(graph, fitting(graph), changed(graph))
    sweep(graph)
    why = make([(n.target, n.args) for n in graph.nodes if n.target in ours], device)
    return (fx.GraphModule(module, graph), None) if why is None else (module, why)


def call(graph: Graph, target: Any, args: tuple[Any, ...], shape: Sequence[int]) -> Node:
    """A node for a new tensor of float32 of this shape, in one piece."""
    node = graph.call_function(target, args)
    node.meta["form"] = Form(torch.Size(shape), torch.float32, strides(shape))
    return node


def make(calls: Iterable[tuple[Any, Sequence[Any]]], device: torch.device) -> str | None:
    """Have the kernels of these calls compiled, before anything depends on them; why that failed, if it did."""
    done = set[object]()
    try:
        for target, args in calls:
            known = target, *(a.meta["form"] if isinstance(a, NODE) else a for a in args)
            if known not in done:
                target(*fx.node.map_arg(tuple(args), lambda n: _zeros(n.meta["form"], device)))
                done.add(known)
    except Exception as error:  # no compiler, no room on this device: whatever Triton raises
        return told(error)
    return None


def _zeros(form: Form, device: torch.device) -> Tensor:
    """As it lies, be it all in one place."""
    room = 1 + sum((n - 1) * s for n, s in zip(form.shape, form.stride, strict=True))
    return torch.zeros(max(room, 1), dtype=form.dtype, device=device).as_strided(form.shape, form.stride)


def told(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def in_one_piece(form: Form) -> bool:
    """Whether it lies as a new tensor of its shape would."""
    return all(n == 1 or a == b for n, a, b in zip(form.shape, form.stride, strides(form.shape), strict=True))


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor of this shape in one piece."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
