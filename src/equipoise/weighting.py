"""How much each client counts by its number of samples.

    uniform   1                    a claim of many samples earns nothing; a small site counts like a big one
    size      n_k                  every sample counts the same; whoever claims most decides
    capped    min(n_k, median n)   small sites count for less, and nobody for more than the middle one

What a defence promises about f malicious clients of m is a promise about their share of the weight. Uniform weights
keep it as it is. Capped ones keep it for 2f in place of f: at least half of the clients have the median size or more,
so that f of them never hold more than 2f/m of the whole, whatever they claim (as long as 2f < m). Size weights promise
nothing where sizes are claims.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError

Weights = Literal["uniform", "size", "capped"]
WAYS: tuple[Weights, ...] = get_args(Weights)


def check_weights(where: str, way: str) -> None:
    if way not in WAYS:
        raise EquipoiseError(f"{where}: weights is {way!r}", 'use "uniform", "size" or "capped"')


def shares(sizes: Tensor, way: Weights) -> Tensor:
    """[m] float64 that sum to 1. Where nobody is left with a sample to count by, all count the same."""
    n = sizes.to(torch.float64)
    if way == "uniform" or len(n) == 0:
        n = torch.ones_like(n)
    elif way == "capped":
        # The lower of two middle sizes, so that half of the clients reach the cap.
        n = n.clamp(max=n.sort().values[(len(n) - 1) // 2])
    total = n.sum()
    return torch.where(total > 0, n / total.clamp(min=1e-300), torch.full_like(n, 1.0 / max(1, len(n))))


def normalised(weights: Tensor) -> Tensor:
    """Weights that sum to 1; all zero stays all zero."""
    total = weights.sum()
    return weights / torch.where(total == 0, torch.ones_like(total), total)


def spread(weights: Tensor, rows: Tensor) -> Tensor:
    """[m]: the weights of rows, handed to the m clients in them in equal parts; row -1 is none, and gets nothing."""
    rows = rows.to(weights.device)  # some rules keep such numbers in host memory
    inside = rows >= 0
    each = torch.bincount(rows[inside], minlength=len(weights)).clamp(min=1).to(weights.dtype)
    return torch.where(inside, (weights / each)[rows.clamp(min=0)], torch.zeros((), dtype=weights.dtype))
