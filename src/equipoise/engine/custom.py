"""Kernels of our own in recorded steps: where there are any, and how they are put in the place of torch's operations.

`convolutions`, `pools` and `products` say which operations of a recording give way to which kernel. A function that
calls a kernel has no schema: whoever reads a graph takes it for one that writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, fx

from equipoise.engine.rewrite import Graph, Node
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


def call(graph: Graph, target: Any, args: tuple[Any, ...], shape: Sequence[int]) -> Node:
    """A node for a new tensor of float32 of this shape, in one piece."""
    node = graph.call_function(target, args)
    node.meta["form"] = Form(torch.Size(shape), torch.float32, strides(shape))
    return node


def make(graph: Graph, device: torch.device, ours: Collection[Any]) -> str | None:
    """Have all kernels in a graph compiled, before anything depends on them; why that failed, if it did."""

    def zeros(node: Node) -> Tensor:
        form = node.meta["form"]
        return torch.zeros(form.shape, dtype=form.dtype, device=device)

    try:
        for node in graph.nodes:
            if node.target in ours:
                node.target(*fx.node.map_arg(node.args, zeros))
    except Exception as error:  # no compiler, no room on this device: whatever Triton raises
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor of this shape in one piece."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
