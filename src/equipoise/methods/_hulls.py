"""The shortest vectors of hulls, layer by layer, with a row that evens out losses; and layers merged where one is zero.

FedLF's Equations 5 to 8 on products of rows: its file has them, and what departs from them. All is worked out where the
products are; to merge layers is to ask about them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.methods._rows import ZERO, whole
from equipoise.solvers import min_norm_unasked


class Hulls(NamedTuple):
    """g hulls of n rows, of which the first k are online clients and make the fair row."""

    gram: Tensor
    """[g, n, n]: the products of the rows; one that is zero is not there."""
    k: int
    normalise: bool
    fair: tuple[Tensor, Tensor] | None = None
    """[k]: how the fair row is made, and whether there is one; None: there never is."""


class Shortest(NamedTuple):
    """The shortest vectors of g hulls: weights [g, n] of the rows, whether it is zero, how many clients oppose it; and
    whether that is exact."""

    weights: Tensor
    zero: Tensor
    against: Tensor
    exact: Tensor


def shortest(hulls: Hulls) -> Shortest:
    gram, k, normalise, fair = hulls
    length = gram.diagonal(dim1=1, dim2=2).clamp(min=0.0).sqrt()
    mean = length[:, :k].mean(-1, keepdim=True)
    scale = torch.where(length > 0, mean / length if normalise else 1.0, 0.0)
    rows = gram * scale[..., None] * scale[:, None]
    made = torch.zeros_like(scale[:, :k])
    if fair is not None:
        made = fair[0] * scale[:, :k]
        along = (made[:, None] @ gram[:, :k])[:, 0]
        long = (along[:, :k] * made).sum(-1, keepdim=True).clamp(min=0.0).sqrt()
        long_enough = fair[1] & (long > ZERO * (made.abs() * length[:, :k]).sum(-1, keepdim=True))
        fit = torch.where(long_enough, mean / long if normalise else 1.0, 0.0)
        made, first = made * fit, torch.cat([(long * fit) ** 2, along * fit * scale], -1)
        rows = whole(first[:, None], rows)
    w, exact = min_norm_unasked(rows, rows.diagonal(dim1=1, dim2=2) > 0)
    products = (rows @ w[..., None])[..., 0]
    square = (w * products).sum(-1).clamp(min=0.0)
    clients = slice(w.shape[1] - gram.shape[1], None)  # all but the fair one, if there is one
    weights = w[:, clients] * scale
    weights[:, :k] += w[:, :1] * made
    against = (products[:, clients][:, :k] < 0).sum(-1)
    return Shortest(weights, square.sqrt() <= ZERO * mean[:, 0], against, exact)


def merged(hulls: Hulls) -> tuple[list[list[int]], Shortest]:
    """Layers, merged until none is zero or all are one; the products of merged layers are the sums of theirs."""
    groups = [[layer] for layer in range(len(hulls.gram))]
    found = shortest(hulls)
    while len(groups) > 1 and found.zero.any():
        at = min(int(found.zero.nonzero()[0]), len(groups) - 2)
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
        new = shortest(hulls._replace(gram=hulls.gram[groups[at]].sum(0, keepdim=True)))
        found = Shortest(*(torch.cat([a[:at], b, a[at + 2 :]]) for a, b in zip(found, new, strict=True)))
    return groups, found
