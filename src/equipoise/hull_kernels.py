"""The shortest vectors of some hulls in one launch on a GPU: nobody has to ask it for the products of the rows.

The problem is that of `solvers.min_norm`, on the same cosines C and shares b: x >= 0, y = b - C x <= 0, x' y = 0. It is
solved as non-negative least squares are (Lawson, Hanson, "Solving least squares problems", 1974, chapter 23): the row
that is missed most comes in; while some rows in use ask for weights below 0, go towards these weights as far as all
stay at 0 or above, and let the row that stops it out again. What a row's coming or going changes is one sweep of the
table of products (Beaton, "The use of special matrix operators in statistical calculus", 1964): a product of two
vectors, which a GPU subtracts from all of the table at once. Were equations factorised anew each time, as in host
memory, all steps of all factorisations would wait for each other.

A program is a hull. Its table lies in memory, or rather in its processor's own cache: in registers, of which it needs
more than there are, a sweep took 90 microseconds. Rounding adds up over sweeps: so weights are corrected in the end by
the products as they were, and the answer's error is told, for others to judge.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_RIDGE = tl.constexpr(1e-13)  # on the diagonal of C, as in host memory: rows may depend on each other
_SIGN = tl.constexpr(1e-13)  # what is this small, relative to sum x, has no sign
_LARGE, _TINY = tl.constexpr(1e300), tl.constexpr(torch.finfo(torch.float64).tiny)


@triton.jit
def _cosines(gram, one, ones, i, j, n):  # type: ignore[no-untyped-def]
    """The columns j of C; `one` makes rows as long as 1, and is 0 where there is none; `ones` is where it lies."""
    across = tl.load(ones + j)
    there = (one != 0.0)[:, None] & (across != 0.0)[None, :]
    return tl.load(gram + i[:, None] * n + j[None, :], mask=there, other=0.0) * one[:, None] * across[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def _shortest(grams, masks, weights, errors, room, n, N: tl.constexpr, T: tl.constexpr):  # type: ignore[no-untyped-def]
    hull = tl.program_id(0)
    gram, i = grams + hull * n * n, tl.arange(0, N)
    table = room + hull * (N * N + 2 * N)  # symmetric, before every sweep and after it: a row is a column
    line, ones = table + N * N, table + N * N + N
    there = tl.load(masks + hull * n + i, mask=i < n, other=0) != 0
    square = tl.load(gram + i * (n + 1), mask=there, other=0.0)
    zero = there & (square <= _TINY)
    real = there & ~zero
    one = tl.where(real, 1.0 / tl.sqrt(tl.where(real, square, 1.0)), 0.0)
    b = one / tl.maximum(tl.max(one, 0), 1e-300)
    tl.store(ones + i, one)
    tl.debug_barrier()
    for first in range(0, N, T):
        j = first + tl.arange(0, T)
        tile = _cosines(gram, one, ones, i, j, n)
        tl.store(table + i[:, None] * N + j[None, :], tl.where(i[:, None] == j[None, :], tile + _RIDGE, tile))
    tl.debug_barrier()
    aim = b  # of rows in use the weights that they ask for; of others how much they are missed
    x = b * 0.0
    used = i * 0  # 1 where a row is in use
    left = tl.where(tl.max(one, 0) > 0.0, 4 * n, 0)
    while left > 0:
        # What is no number is larger than nothing and smaller than nothing: threads would disagree on where to go, and
        # wait for each other for ever.
        aim = tl.where(tl.abs(aim) < _LARGE, aim, 0.0)
        inside = tl.where(tl.min(tl.where(used > 0, aim, float("inf")), 0) > 0.0, 1, 0)
        if inside > 0:
            x = tl.where(used > 0, aim, 0.0)
            missed = tl.where(real & (used == 0), aim, -float("inf"))
            value, k = tl.max(missed, 0, return_indices=True)
            left = tl.where(value > _SIGN * tl.sum(x, 0), left, 0)
        else:
            low = (used > 0) & (aim <= 0.0)
            reach = tl.where(low, x / tl.where(x > aim, x - aim, 1.0), 2.0)
            step, k = tl.min(reach, 0, return_indices=True)
            x = tl.where((used > 0) & (i != k), x + step * (aim - x), 0.0)
            value = tl.sum(tl.where(i == k, aim, 0.0), 0)
        if left > 0:
            # The sweep on k: the table and the aims as they are when k is in, or out again.
            by_row = tl.load(table + k * N + i)
            pivot = tl.load(table + k * N + k)
            turn = (2.0 * inside - 1.0) / pivot
            share = by_row / pivot
            tl.store(line + i, by_row)
            tl.debug_barrier()
            for first in range(0, N, T):
                j = first + tl.arange(0, T)
                at = table + i[:, None] * N + j[None, :]
                across = tl.load(line + j)
                tile = tl.load(at) - share[:, None] * across[None, :]
                tile = tl.where(i[:, None] == k, (across * turn)[None, :], tile)
                tile = tl.where(j[None, :] == k, (by_row * turn)[:, None], tile)
                tile = tl.where((i[:, None] == k) & (j[None, :] == k), -1.0 / pivot, tile)
                tl.store(at, tile)
            tl.debug_barrier()
            aim = tl.where(i == k, value * turn, aim - share * value)
            used = tl.where(i == k, inside, used)
            left = left - 1
    for _ in range(2):
        tl.store(line + i, x)
        tl.debug_barrier()
        off = b
        for first in range(0, N, T):
            j = first + tl.arange(0, T)
            off -= tl.sum(_cosines(gram, one, ones, i, j, n) * tl.load(line + j)[None, :], 1)
        tl.debug_barrier()
        tl.store(line + i, tl.where(used > 0, off, 0.0))
        tl.debug_barrier()
        more = b * 0.0
        for first in range(0, N, T):
            j = first + tl.arange(0, T)
            more -= tl.sum(tl.load(table + i[:, None] * N + j[None, :]) * tl.load(line + j)[None, :], 1)
        tl.debug_barrier()
        x = tl.where(used > 0, x + more, 0.0)
    x = tl.where(x > 0.0, x, 0.0)
    total = tl.sum(b * x, 0)
    v = x / tl.where(total > 0.0, total, 1.0)
    tl.store(line + i, v)
    tl.debug_barrier()
    along = b * 0.0
    for first in range(0, N, T):
        j = first + tl.arange(0, T)
        along += tl.sum(_cosines(gram, one, ones, i, j, n) * tl.load(line + j)[None, :], 1)
    slack = along - tl.sum(v * along, 0) * b
    error = tl.max(tl.where(v > 0.0, tl.abs(slack), -slack), 0) / tl.where(total > 0.0, tl.sum(v, 0), 1.0)
    error = tl.where(tl.max(tl.where(slack == slack, 0, 1), 0) > 0, float("nan"), error)  # a maximum passes over these
    w = b * v
    w = w / tl.where(total > 0.0, tl.sum(w, 0), 1.0)
    # A row that is zero is the shortest vector; without any row there is none.
    nothing = tl.min(tl.where(zero, i, N), 0)
    w = tl.where(nothing < N, tl.where(i == nothing, 1.0, 0.0), w)
    error = tl.where(total > 0.0, error, float("nan"))  # to have found nothing is no answer
    error = tl.where((nothing < N) | (tl.max(one, 0) == 0.0), 0.0, error)
    tl.store(weights + hull * n + i, w, mask=i < n)
    tl.store(errors + hull, error)


def shortest(gram: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """As `solvers.min_norm`, of products [L, n, n] in float64 and a mask [L, n]; and how far off each answer is [L].

    That is NaN for a hull in which something is not finite, which the kernel is not shown.
    """
    hulls, n = mask.shape
    finite = gram.isfinite().flatten(1).all(1)
    sound, mask = torch.where(finite[:, None, None], gram, 1.0).contiguous(), mask.contiguous().to(torch.int8)
    weights, errors = gram.new_empty((hulls, n)), gram.new_empty(hulls)
    size = max(16, triton.next_power_of_2(n))
    room = gram.new_empty((hulls, size * (size + 2)))
    if hulls:
        _shortest[(hulls,)](sound, mask, weights, errors, room, n, N=size, T=16, num_warps=size // 8)
    return weights, torch.where(finite, errors, torch.nan)
