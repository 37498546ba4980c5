"""Rows of d numbers as server rules that look for a direction need them: their products, and mixtures of them.

A direction is a mixture of rows. All that decides which one is in the rows' products, in float64; the d numbers of a
row are read twice, for the products and for the mixture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from equipoise.layout import pieces

ZERO = 1e-6  # what is this short, relative to what it is made of, is zero; down to here float64 keeps signs right
_CHUNK = 1 << 17  # how many numbers are turned into float64 at a time: as such they fit in a core's own cache
_ROOM = 1 << 26  # on a GPU, where every piece costs a few launches (512 MiB)
_STRETCH = 1 << 11  # columns of one product there; one product of all of them would keep a few of its cores busy

Layers = Sequence[Sequence[slice]]


class Table:
    """The rows [updates; past] in float64: a few columns at a time, or once and for all where a GPU has the room."""

    def __init__(self, updates: Tensor, past: Tensor | None = None) -> None:
        self.updates, self.past = updates, updates[:0] if past is None else past
        self.n, d = len(updates) + len(self.past), updates.shape[1]
        self._all = self._wide(slice(0, d)) if updates.is_cuda and self.n * d <= _ROOM else None

    def products(self, layers: Layers) -> Tensor:
        """[L, k, n]: those of the k updates with all rows, layer by layer."""
        new = self.updates.new_zeros((len(layers), len(self.updates), self.n), dtype=torch.float64)
        for layer, parts in enumerate(layers):
            for _, x in self.read(parts):
                new[layer] += _products(x, len(self.updates))
        return new

    def mixture(self, layers: Layers, weights: Tensor) -> Tensor:
        """[d]: in each layer the sum of the rows with its weights [L, n]. Rounded only once, at the end."""
        out = torch.empty_like(self.updates[0])
        for w, parts in zip(weights.to(out.device), layers, strict=True):
            for p, x in self.read(parts):
                out[p] = w @ x
        return out

    def read(self, parts: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
        """Piece by piece, these columns [n, ...]; a piece is gone when the next one is asked for."""
        if self._all is not None:
            yield from ((p, self._all[:, p]) for p in parts)
            return
        step = max(1, (_ROOM if self.updates.is_cuda else _CHUNK) // self.n)
        each = pieces(parts, step)
        widest = max((p.stop - p.start for p in each), default=0)
        buffer = self.updates.new_empty((self.n, widest), dtype=torch.float64)
        yield from ((p, self._wide(p, buffer)) for p in each)

    def _wide(self, part: slice, buffer: Tensor | None = None) -> Tensor:
        k, width = len(self.updates), part.stop - part.start
        x = self.updates.new_empty((self.n, width), dtype=torch.float64) if buffer is None else buffer[:, :width]
        x[:k] = self.updates[:, part]
        x[k:] = self.past[:, part]
        return x


def whole(new: Tensor, known: Tensor) -> Tensor:
    """[L, n, n]: all products, from the new ones [L, k, n] and those of the past rows with each other."""
    layers, k, n = new.shape
    known = known.reshape(layers, n - k, n - k)
    return torch.cat([new, torch.cat([new[..., k:].mT, known], -1)], -2)


def _products(x: Tensor, k: int) -> Tensor:
    """[k, n]: the first k rows' products with all n."""
    even = x.shape[1] // _STRETCH * _STRETCH if x.is_cuda else 0
    rest: Tensor = x[:k, even:] @ x[:, even:].mT
    if even == 0:
        return rest
    stretches = x[:, :even].view(len(x), -1, _STRETCH).transpose(0, 1)
    return rest + (stretches[:, :k] @ stretches.mT).sum(0)
