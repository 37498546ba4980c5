"""What a function of tensors does, taken down as a graph of the operations that are left when torch has mapped it over
clients and worked out its derivatives.

torch has a tracer of its own (`make_fx`), which would do; but its first use imports torch's compilers, and that takes
longer than many a run.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_OUT = (Tensor.numpy, Tensor.tolist, Tensor.__array__)


class Unrecordable(Exception):
    """Why a step cannot be written down."""


class Form(NamedTuple):
    """What a node's tensor looks like, in `node.meta["form"]`."""

    shape: torch.Size
    dtype: torch.dtype
    stride: tuple[int, ...]


class _Tape(TorchDispatchMode):
    """Takes every operation down. A tensor that nobody has seen before is a constant."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph, self.constants = fx.Graph(), dict[str, Tensor]()
        self._node: dict[int, fx.Node] = {}
        self._moving = set[fx.Node]()
        """What follows from the inputs."""
        self._alive: dict[int, weakref.ref[Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to keep torch's compilers away they would be imported

    def name(self, tensor: Tensor, node: fx.Node, moving: bool) -> None:
        key = id(tensor)
        self._node[key], self._alive[key] = node, weakref.ref(tensor, partial(self._forget, key))
        node.meta["form"] = Form(tensor.shape, tensor.dtype, tensor.stride())
        if moving:
            self._moving.add(node)

    def _forget(self, key: int, _: object) -> None:
        """When a tensor is gone: another may come to have its id."""
        self._node.pop(key, None)
        self._alive.pop(key, None)

    def node(self, tensor: Tensor) -> fx.Node:
        """What stands for it."""
        if id(tensor) not in self._node:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor
            self.name(tensor, self.graph.get_attr(name), moving=False)
        return self._node[id(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map_only(Tensor, self.node, (args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        told = [out] if isinstance(out, Tensor) else out if isinstance(out, list | tuple) else []
        moving = any(n in self._moving for n in _nodes(given))
        if moving and torch.Tag.data_dependent_output in func.tags:
            raise Unrecordable(f"the step asks for a number that follows from its inputs ({func})")
        if func._schema.is_mutable or any(isinstance(t, Tensor) for t in told):
            node = self.graph.call_function(func, *given)
            if isinstance(out, Tensor):
                self.name(out, node, moving)
            else:
                for i, t in enumerate(told):
                    if isinstance(t, Tensor):
                        self.name(t, self.graph.call_function(operator.getitem, (node, i)), moving)
        return out

    def follows(self, tensor: Tensor) -> bool:
        """Whether it follows from the inputs, as far as is known."""
        return self._node.get(id(tensor)) in self._moving


class _Door(TorchFunctionMode):
    """Lets no number out of torch that follows from the inputs: what is made of it elsewhere would go unseen."""

    def __init__(self, tape: _Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OUT and self._tape.follows(args[0]):
            raise Unrecordable(f"the step takes numbers out of torch ({func.__name__})")
        return func(*args, **(kwargs or {}))


def _nodes(given: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    tree_map_only(fx.Node, found.append, given)
    return found


def taken_down(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The operations of `function` on tensors like these, as a module; nodes know the form of what they stand for."""
    tape = _Tape()
    for i, t in enumerate(inputs):
        tape.name(t, tape.graph.placeholder(f"input_{i}"), moving=True)
    with tape, _Door(tape):
        outputs = function(*inputs)
    tape.graph.output([tape.node(t) for t in outputs])
    return fx.GraphModule(tape.constants, tape.graph)
