"""How exactly the products of local training are worked out, where a GPU can do it faster and rougher.

    full   in float32
    tf32   numbers are rounded to 10 bits behind the point before they are multiplied, and added up in float32
    bf16   the model's products are taken of, and rounded to, numbers of 7 such bits; their sums within are float32

Models, updates, losses and states are float32 in all three. Reported losses, what clients reach alone, server rules and
evaluation are worked out in full, whatever is chosen here. A rule that takes differences of nearby gradients
(Per-FedAvg) loses more digits than others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from equipoise.errors import require

_WITH_TF32 = (8, 0)  # the first generation of devices (Ampere) that has such products


def check(precision: str, device: torch.device) -> None:
    """Raise EquipoiseError if this device cannot work like that: it would do so in full, and nobody would know."""
    if precision == "tf32":
        able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= _WITH_TF32
        hint = 'only CUDA devices of capability 8.0 or more have TF32; use "full" or "bf16"'
        require(able, f"on device {device}, run.precision", precision, hint)


@contextmanager
def steps_in(precision: str) -> Iterator[None]:
    """While local steps are taken, recorded or captured: a captured graph keeps the kernels that it was given.

    The setting is the process's, not a thread's, so one thread at a time.
    """
    if precision != "tf32":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def forward_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """While a model is asked in a local step. Derivatives are then worked out as the model was."""
    if precision != "bf16":
        return nullcontext()
    # Weights are asked once per step, so there is nothing to keep; and a captured graph must not look outside itself.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def widened(t: Tensor) -> Tensor:
    """float32 again, if it is narrower."""
    return t.float() if t.dtype is torch.bfloat16 else t
