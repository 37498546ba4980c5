"""What attacks share that lie about numbers which clients report of themselves."""

from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError

Claim = Literal["huge", "zero"] | float


def check_claim(where: str, claim: Claim, least: float) -> None:
    """A factor must be finite and not below `least`."""
    number = isinstance(claim, int | float) and isfinite(claim) and claim >= least
    if claim not in ("huge", "zero") and not number:
        raise EquipoiseError(f"{where}: claim is {claim!r}", 'use "huge", "zero" or a factor of the truth')


def told(truth: Tensor, claim: Claim, huge: float) -> Tensor:
    """What is said instead of `truth`: never more than `huge`, which its type can hold."""
    if isinstance(claim, str):
        return torch.full_like(truth, huge if claim == "huge" else 0.0)
    said = (claim * truth.to(torch.float64)).clamp(-huge, huge)
    return (said if truth.is_floating_point() else said.round()).to(truth.dtype)
