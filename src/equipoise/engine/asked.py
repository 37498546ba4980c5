"""Models of many clients that are asked, not trained: convolutions in kernels for many clients (`convolution_kernels`).

A model is asked for chunks of samples of ever other sizes, so that there is no step to record. While torch maps it over
clients, a convolution that would become a grouped one is taken out of its hands; so is one of a model that all clients
share, as a single client's. What stays torch's is what `convolutions` leaves alone in a recorded step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from equipoise.engine import convolutions
from equipoise.engine.custom import told, why_not

_PLAIN: tuple[Callable[..., Tensor], ...] = (torch.conv1d, torch.conv2d)
_MAPPED = torch._C._functorch.TransformType.Vmap


class Asked:
    """The way in which a model is asked on a device, and why it is torch's own where it might be another."""

    def __init__(self, device: torch.device) -> None:
        self.able, self.reason = why_not(device) is None, ""

    def apart(self) -> AbstractContextManager[object]:
        """While models are mapped over clients, or one is asked for all of them, without derivatives."""
        return _Apart(self) if self.able else nullcontext()

    def give_up(self, error: Exception) -> None:
        self.able, self.reason = False, told(error)


class _Apart(TorchFunctionMode):
    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self.asked = asked

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PLAIN:
            return self._convolved(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _convolved(
        self,
        plain: Callable[..., Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        pad = _each(padding, weight.dim() - 2)
        once = all(_each(n, weight.dim() - 2) == (1,) * (weight.dim() - 2) for n in (stride, dilation))
        found: Tensor | None = None
        if once and groups == 1 and pad is not None and input.dim() == weight.dim():
            if (around := _around()) == [_MAPPED]:
                found = _Convolution.apply(input, weight, bias, pad, self.asked)  # type: ignore[no-untyped-call]
            elif around == []:
                row = None if bias is None else bias[None]
                found = _by_kernel(input[None], weight[None], row, pad, self.asked)
                found = None if found is None else found[0]
        return plain(input, weight, bias, stride, padding, dilation, groups) if found is None else found


def _each(told: Any, sides: int) -> tuple[int, ...] | None:
    """torch takes one number for all sides, in a list or not; None for a word."""
    if isinstance(told, str):
        return None
    many = (told,) if isinstance(told, int) else tuple(told)
    return many * sides if len(many) == 1 else many


def _around() -> list[object] | None:
    """What is going on around: one mapping over clients, or nothing, unless somebody transforms within; None where
    derivatives are wanted."""
    stack = torch._C._functorch.get_interpreter_stack() or []
    return None if torch.is_grad_enabled() else [s.key() for s in stack]


class _Convolution(torch.autograd.Function):
    """A convolution that knows what it becomes when it is mapped over clients."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, pad: tuple[int, ...], asked: Asked) -> Tensor:
        return _PLAIN[len(pad) - 1](x, w, bias, padding=pad)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, w: Tensor, bias: Tensor | None, pad: tuple[int, ...], asked: Asked
    ) -> tuple[Tensor, int]:
        if None not in in_dims[:2] and (bias is None or in_dims[2] is not None):
            row = None if bias is None else bias.movedim(in_dims[2], 0)
            found = _by_kernel(x.movedim(in_dims[0], 0), w.movedim(in_dims[1], 0), row, pad, asked)
            if found is not None:
                return found, 0
        mapped = torch.vmap(lambda x, w, bias: _Convolution.forward(x, w, bias, pad, asked), in_dims[:3])
        return mapped(x, w, bias), 0


def _by_kernel(x: Tensor, w: Tensor, bias: Tensor | None, pad: tuple[int, ...], asked: Asked) -> Tensor | None:
    """All clients at once; None if that cannot be."""
    if {t.dtype for t in (x, w)} != {torch.float32} or not asked.able or not _fits(x, w, pad):
        return None
    try:
        return convolutions.forward(x, w, pad, bias)
    except torch.OutOfMemoryError:
        return None  # may be another time
    except Exception as error:  # no compiler, no room for a block: whatever Triton raises; torch's way is always there
        asked.give_up(error)
        return None


def _fits(x: Tensor, w: Tensor, pad: tuple[int, ...]) -> bool:
    (clients, batch, planes, *sizes), (_, filters, of, *_) = x.shape, w.shape
    room = math.prod(n + 2 * p for n, p in zip(sizes, pad, strict=True))
    return planes == of and convolutions.can_tell_apart(clients, batch * room * max(planes, filters))
