"""Rows of d numbers as server rules that look for a direction need them: their products, and mixtures of them.

A direction is a mixture of rows. All that decides which one is in the rows' products, in float64; the d numbers of a
row are read twice, for the products and for the mixture. Where they are on a GPU it is asked at most once for all that
decides: every question waits for whatever is still to be done there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from equipoise.layout import pieces
from equipoise.questions import sent

ZERO = 1e-6  # what is this short, relative to what it is made of, is zero; down to here float64 keeps signs right
_CHUNK = 1 << 17  # how many numbers are turned into float64 at a time: as such they fit in a core's own cache
_ROOM = 1 << 26  # on a GPU, where every piece costs a few launches (512 MiB)
_STRETCH = 1 << 11  # columns of one product there; one product of all of them would keep a few of its cores busy

Layers = Sequence[Sequence[slice]]


class Table:
    """The rows [updates; past] in float64: a few columns at a time, or once and for all where there is room."""

    def __init__(self, updates: Tensor, past: Tensor | None = None) -> None:
        self.updates, self.past = updates, updates[:0] if past is None else past
        self.n, d = len(updates) + len(self.past), updates.shape[1]
        self._room = _ROOM if updates.is_cuda else _CHUNK
        self._all = self._wide(slice(0, d)) if self.n * d <= self._room else None

    def products(self, layers: Layers) -> Tensor:
        """[L, k, n]: those of the k updates with all rows, layer by layer."""
        k = len(self.updates)
        new = self.updates.new_zeros((len(layers), k, self.n), dtype=torch.float64)
        for into, parts in zip(new, layers, strict=True):
            for _, x in self.read(parts):
                _add_products(x, k, into)
        return new

    def mixture(self, layers: Layers, weights: Tensor) -> Tensor:
        """[d]: in each layer the sum of the rows with its weights [L, n]. Rounded only once, at the end."""
        out = torch.empty_like(self.updates[0])
        for w, parts in zip(sent(weights, out), layers, strict=True):
            for p, x in self.read(parts):
                out[p] = w @ x
        return out

    def read(self, parts: Sequence[slice]) -> Iterator[tuple[slice, Tensor]]:
        """Piece by piece, these columns [n, ...]; a piece is gone when the next one is asked for."""
        if self._all is not None:
            yield from ((p, self._all[:, p]) for p in parts)
            return
        each = pieces(parts, max(1, self._room // self.n))
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
    """[L, n, n]: all products, from those of the first k rows [L, k, n] and those of the others with each other."""
    layers, k, n = new.shape
    out = new.new_empty((layers, n, n))
    out[:, :k], out[:, k:, :k] = new, new[..., k:].mT
    out[:, k:, k:] = known.reshape(layers, n - k, n - k)
    return out


def _add_products(x: Tensor, k: int, into: Tensor) -> None:
    """Adds the first k rows' products with all n to `into` [k, n]."""
    even = x.shape[1] // _STRETCH * _STRETCH if x.is_cuda else 0
    if even:
        stretches = x[:, :even].view(len(x), -1, _STRETCH).transpose(0, 1)
        into += (stretches[:, :k] @ stretches.mT).sum(0)
    into.addmm_(x[:k, even:], x[:, even:].mT)
