"""Models of many clients that are asked, not trained: their convolutions in kernels made for many clients (`kernels`).

A model is asked for chunks of samples of ever other sizes, so that there is no step to record. While torch maps it over
clients, a convolution that would become a grouped one is taken out of its hands. What stays torch's is what
`convolutions` leaves alone in a recorded step.
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
from equipoise.engine.custom import why_not

_PLAIN: tuple[Callable[..., Tensor], ...] = (torch.conv1d, torch.conv2d)
_given_up = set[torch.device]()
"""Where kernels could not be made."""


def apart(device: torch.device) -> AbstractContextManager[object]:
    """While models are mapped over clients on this device, without derivatives."""
    return nullcontext() if why_not(device) is not None or device in _given_up else _Apart()


class _Apart(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PLAIN:
            return _convolved(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _convolved(
    plain: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    pad = [padding] * (weight.dim() - 2) if isinstance(padding, int) else padding
    once = all(n in (1, (1,), [1], (1, 1), [1, 1]) for n in (stride, dilation))
    if not once or groups != 1 or isinstance(pad, str) or input.dim() != weight.dim():
        return plain(input, weight, bias, stride, padding, dilation, groups)
    found: Tensor = _Convolution.apply(input, weight, bias, tuple(pad))  # type: ignore[no-untyped-call]
    return found


class _Convolution(torch.autograd.Function):
    """A convolution that knows what it becomes when it is mapped over clients."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, pad: tuple[int, ...]) -> Tensor:
        return _PLAIN[len(pad) - 1](x, w, bias, padding=pad)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, w: Tensor, bias: Tensor | None, pad: tuple[int, ...]
    ) -> tuple[Tensor, int]:
        if None not in in_dims[:2] and (bias is None or in_dims[2] is not None):
            row = None if bias is None else bias.movedim(in_dims[2], 0)
            found = _by_kernel(x.movedim(in_dims[0], 0), w.movedim(in_dims[1], 0), row, pad)
            if found is not None:
                return found, 0
        mapped = torch.vmap(lambda x, w, bias: _Convolution.forward(x, w, bias, pad), in_dims[:3])
        return mapped(x, w, bias), 0


def _by_kernel(x: Tensor, w: Tensor, bias: Tensor | None, pad: tuple[int, ...]) -> Tensor | None:
    """All clients at once; None if that cannot be."""
    if {t.dtype for t in (x, w)} != {torch.float32} or x.device in _given_up or not _fits(x, w, pad):
        return None
    try:
        return convolutions.forward(x, w, pad, bias)
    except Exception:  # no compiler, no room for a block: whatever Triton raises; torch's way is always there
        _given_up.add(x.device)
        return None


def _fits(x: Tensor, w: Tensor, pad: tuple[int, ...]) -> bool:
    clients, batch, planes, *sizes = x.shape
    room = math.prod(n + 2 * p for n, p in zip(sizes, pad, strict=True))
    return convolutions.can_tell_apart(clients, batch * room * max(planes, w.shape[1]))
