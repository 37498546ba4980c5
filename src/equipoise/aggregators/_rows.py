"""What filters and robust means share: angles between rows, mixtures of rows, bounds on lengths, random coordinates.

Sums are in float64, over a few columns at a time, so that no float64 copy of all updates is ever made.
"""

import torch
from torch import Tensor

from equipoise.aggregators._distances import columns
from equipoise.aggregators._order import ascending, middle
from equipoise.core import Stream
from equipoise.weighting import Weights, shares


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """[A, B] float64: the cosine between every row of a [A, d] and of b [B, d]; 0 where one of them is zero."""
    total = torch.zeros((len(a), len(b)), dtype=torch.float64, device=a.device)
    square_a, square_b = total.new_zeros(len(a)), total.new_zeros(len(b))
    unit_a, unit_b = _largest(a), _largest(b)
    for piece in columns(a.shape[1], len(a) + len(b), a.device):
        x, y = a[:, piece].double() / unit_a, b[:, piece].double() / unit_b
        total += x @ y.T
        square_a += x.square().sum(1)
        square_b += y.square().sum(1)
    lengths = square_a.sqrt()[:, None] * square_b.sqrt()
    return torch.where(lengths > 0, total / lengths.clamp(min=1e-300), 0.0).clamp(-1.0, 1.0)


def _largest(rows: Tensor) -> Tensor:
    """[K, 1] float64: each row's largest magnitude, 1 if it is zero. Rows divided by it have squares that fit."""
    top = rows.abs().amax(1, keepdim=True).double()
    return torch.where(top > 0, top, 1.0)


def mixed(weights: Tensor, rows: Tensor) -> Tensor:
    """`weights @ rows` in the rows' type: [m] weights give one row, [n, m] give n of them."""
    out = rows.new_empty((*weights.shape[:-1], rows.shape[1]))
    for piece in columns(rows.shape[1], len(rows), rows.device):
        out[..., piece] = (weights @ rows[:, piece].double()).to(out.dtype)
    return out


def median(values: Tensor) -> Tensor:
    """The middle one of [m] values; of an even number the mean of the two in the middle."""
    low, high = middle(ascending(values))
    return (low + high) / 2


def shortening(lengths: Tensor, bound: Tensor) -> Tensor:
    """[m]: the factors that bring lengths above the bound down to it; 1 for all others."""
    return torch.where(lengths > bound, bound / lengths, torch.ones_like(lengths))


def kept_shares(sizes: Tensor, kept: Tensor, way: Weights) -> Tensor:
    """[m] float64: what the kept clients count, by their sizes among each other; 0 for all others."""
    out = torch.zeros(len(sizes), dtype=torch.float64, device=sizes.device)
    out[kept] = shares(sizes[kept], way)
    return out


def some_columns(stream: Stream, width: int, count: int, device: torch.device) -> Tensor:
    """`count` of `width` columns, drawn at random without replacement, ascending; all of them if there are no more."""
    every = torch.arange(width, device=device)
    if count >= width:
        return every
    return stream.bits(every).topk(count, largest=False, sorted=False).indices.sort().values
