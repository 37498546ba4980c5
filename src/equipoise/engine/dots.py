"""The product of two blocks inside a GPU kernel (Triton), on tensor cores, as exact as its precision says.

    x = high + low       high: x rounded to the 11 digits that a tensor core reads; low: the rest, which it reads next
    a b = high high + high low + low high        low low is left out: at most 2^-22 of a b, below 0 as often as above

Triton has such a product ("tf32x3"). This one takes half its instructions, as it makes no exception for numbers that
are not finite: what comes of an infinity may be NaN. Numbers are rounded here, as a tensor core only cuts off what it
does not read: digits that are cut off have x's sign, and their errors add up.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _high(x):  # type: ignore[no-untyped-def]
    """x rounded to 11 digits, which are the bits of a float32 but for the last 13."""
    return ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _rounded(x):  # type: ignore[no-untyped-def]
    """The same for numbers that nothing is added to afterwards: NaN, whose bits may overflow, stays NaN."""
    return tl.where(x == x, _high(x), x)


@triton.jit  # type: ignore[untyped-decorator]
def add_dot(a, b, total, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """total + a b; "tf32x3": nearly as exact as float32, "tf32": high high alone."""
    if PRECISION == "tf32x3":
        a_high, b_high = _high(a), _high(b)
        small = tl.dot(a - a_high, b_high, input_precision="tf32")
        small = tl.dot(a_high, b - b_high, small, input_precision="tf32")
        # Added up out of the tensor core, which would cut digits off a sum as it goes along.
        return total + tl.dot(a_high, b_high, small, input_precision="tf32")
    return tl.dot(_rounded(a), _rounded(b), total, input_precision=PRECISION)
