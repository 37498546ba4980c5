"""Inner products of many long float32 rows in float32, with a bound on how wrong they are.

Faster than float64 (`_distances`), and good enough where the bound says so. The rows are seen from one in their midst,
so that what they have in common does not cancel, and products of w columns each are added up in float64. With u = 2^-24
and n_i the length of row i as seen from there, such a product is wrong by at most w u, whatever the order of its sums
(Higham, "Accuracy and stability of numerical algorithms", section 3.1), and the subtraction by 2u; all in all

    |gram_ij - (x_i - c) . (x_j - c)| <= rounding n_i n_j    with rounding = (w + 8) u

What overflows in float32 comes out infinite or NaN, and then so does the bound: nothing follows from it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.aggregators._distances import add_products, mirrored, squared_distances

_WIDTH = 1664  # columns in a product: the bound, here 1e-4, grows with it, the time with its inverse
_WORTH = 1 << 20  # numbers; with fewer, float64 is as fast
_SAMPLE = 256  # columns by which a row in the midst is found; a bad choice costs time, never truth
_ROUNDING = (_WIDTH + 8) * 2.0**-24
_TINY = 2.0**-125  # a product or a sum below the smallest normal number may be lost altogether


class Rough(NamedTuple):
    gram: Tensor
    """[K, K] float64: inner products, each wrong by at most `rounding` times the two rows' lengths."""
    lengths: Tensor
    """[K] float64: at least the rows' lengths."""
    rounding: float

    def error_from(self, weights: Tensor) -> Tensor:
        """[K]: the most by which the squared distance from a mean of the rows to each of them is wrong."""
        return self.rounding * (self.lengths + weights @ self.lengths).square()


def worth_it(rows: Tensor) -> bool:
    """Whether there is something to gain; never where products of float32 numbers may be less than float32."""
    exact = torch.get_float32_matmul_precision() == "highest"
    return rows.dtype == torch.float32 and rows.device.type == "cpu" and rows.numel() >= _WORTH and exact


def inner_products(rows: Tensor) -> Rough:
    """Those of the rows as seen from one in their midst, or from 0 if that is no further from most of them."""
    k, d = rows.shape
    centre = _midst(rows)
    gram, wide = torch.zeros((2, k, k), dtype=torch.float64)  # widened first: to add numbers of two types is slow
    product, buffer = rows.new_zeros((k, k)), rows.new_empty((k, _WIDTH + 16))
    for start in range(0, d, _WIDTH):
        x = rows[:, start : start + _WIDTH]
        if centre is not None:
            x = torch.sub(x, centre[start : start + _WIDTH], out=buffer[:, : x.shape[1]])
        add_products(product, x, keep=0.0)
        gram += wide.copy_(product)
    gram = mirrored(gram)
    lengths = (gram.diagonal() / (1.0 - _ROUNDING)).sqrt() + (d * _TINY / _ROUNDING) ** 0.5
    return Rough(gram, lengths, _ROUNDING)


def _midst(rows: Tensor) -> Tensor | None:
    """The row with the smallest median distance to the others, by a sample of columns; None: 0 does as well."""
    some = rows[:, :: -(-rows.shape[1] // _SAMPLE)]
    typical = squared_distances(torch.cat([torch.zeros_like(some[:1]), some])).median(1).values
    best = typical[1:].argsort(stable=True)[0]
    return None if typical[0] <= 2.0 * typical[1 + best] else rows[best]
