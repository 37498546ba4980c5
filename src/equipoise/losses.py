"""Losses of single samples, without any averaging, and what counts as a right answer.

All take outputs [..., B, C] and labels, so they work for one client, for clients as rows, and inside vmap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.errors import EquipoiseError, nearest


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """-log softmax at the label [..., B], or its mean under soft labels [..., B, C]."""
    logs = F.log_softmax(outputs, dim=-1)
    if y.is_floating_point():
        return -(y * logs).sum(-1)
    return -logs.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared distance to the target [..., B] or [..., B, m]; a class counts as its unit vector."""
    if not y.is_floating_point() and outputs.shape[-1] > 1:
        y = y.unsqueeze(-1) == torch.arange(outputs.shape[-1], device=y.device)
    target = y if y.ndim == outputs.ndim else y.unsqueeze(-1)
    if target.shape[-1] != outputs.shape[-1]:
        raise EquipoiseError(
            f"loss squared: {outputs.shape[-1]} outputs for {target.shape[-1]} targets",
            f"set the model's outputs to {target.shape[-1]}",
        )
    return 0.5 * (outputs - target.to(outputs.dtype)).square().sum(-1)


def hinge(outputs: Tensor, y: Tensor) -> Tensor:
    """max(0, 1 - s o) with s = -1 for class 0 and 1 for class 1, o the model's one output."""
    if outputs.shape[-1] != 1:
        raise EquipoiseError(f"loss hinge: the model has {outputs.shape[-1]} outputs", "set the model's outputs to 1")
    return F.relu(1.0 - (2.0 * y.to(outputs.dtype) - 1.0) * outputs.squeeze(-1))


Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "squared": squared, "hinge": hinge}
"""Outputs [..., B, C] and labels -> one loss per sample [..., B]."""


def loss_for(name: str, classes: int) -> Loss:
    """The loss called `name`; "auto" is cross-entropy where there are classes and squared where there are none.

    Of the model it wants one output for each class; hinge wants one in all, a regression one for each target.
    """
    if classes == 1:  # one output would be read as the sign of a two-class answer
        raise EquipoiseError("the data has 1 class", "a classification needs two or more")
    if name == "auto":
        name = "cross-entropy" if classes > 0 else "squared"
    if name not in LOSSES:
        raise EquipoiseError(f"loss is {name!r}", nearest(name, ["auto", *LOSSES]))
    if name == "cross-entropy" and classes == 0:
        raise EquipoiseError("loss is 'cross-entropy', but the data has no classes", 'use "squared"')
    if name == "hinge" and classes != 2:
        raise EquipoiseError(f"loss is 'hinge', but the data has {classes} classes", "it needs exactly two")
    return partial(_one_per_class, LOSSES[name], classes) if classes and name != "hinge" else LOSSES[name]


def _one_per_class(loss: Loss, classes: int, outputs: Tensor, y: Tensor) -> Tensor:
    """With fewer outputs some labels have no place, or `squared` learns other targets; more answer what is no class."""
    if outputs.shape[-1] != classes:
        told = f"model gives {outputs.shape[-1]} outputs, the data has {classes} classes"
        raise EquipoiseError(told, f"set the model's outputs to {classes}")
    return loss(outputs, y)


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """Whether the largest output [..., B, C] is the label's (one output: whether its sign is). NaN is never right.

    Soft labels count as their most likely class. Without meaning for a regression.
    """
    one = outputs.shape[-1] == 1
    guess = (outputs.squeeze(-1) > 0).to(torch.int64) if one else outputs.argmax(-1)
    label = y.argmax(-1) if y.ndim == outputs.ndim else y
    return (guess == label) & ~outputs.isnan().any(-1)


class Objective(ABC):
    """Turns the losses of a batch's samples into the one loss that a client descends."""

    @abstractmethod
    def __call__(self, losses: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """[K, B] losses, [K, B, ...] labels, [K, B] mask (True: a real sample) -> [K]. An all-False row gives 0."""


@dataclass(frozen=True)
class Mean(Objective):
    """The plain mean over the batch's real samples."""

    def __call__(self, losses: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        real = mask.to(losses.dtype)
        return (losses * real).sum(-1) / real.sum(-1).clamp(min=1.0)
