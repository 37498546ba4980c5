"""Products of the matrices of many clients, as one GPU kernel (Triton), for steps with few samples.

    product    out = a b (+ bias) (and the ReLU of it)
    descend    place <- place - lr a b

With a batch of 8 to 64 samples a product takes no longer than its weights take to be read; libraries, which cut
matrices into large squares, read them at a fifth of what memory gives. Here a block is as narrow as the batch. Where
there would be too few programs to keep all of the memory busy, the sum is cut into parts, which a second kernel adds up
in the same order always. Products are taken on tensor cores; in full precision every number is cut in two (`dots`),
which leaves nearly as many digits as float32 has.

Sizes are numbers to a kernel, not constants of it: one that was compiled for a layer does for others that lie alike.
All it has to know is which axis of a and b lies in one piece, and whether every line begins where four numbers can be
read at once (UNIT). Only `products` imports this module, and only where there is a GPU and Triton.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.engine.dots import add_dot

_ENOUGH = 528
"""Programs that keep a GPU busy; a sum is cut into parts until there are so many."""
_PARTS = 16
"""At most; they are added up at once."""
_SHORT = 64
"""A sum this long is not cut into parts."""
_WIDE = 512
"""Of so many columns a program takes more at a time."""
_TOGETHER = 256
"""Numbers that one program adds up the parts of."""


class Blocks(NamedTuple):
    """How a product is cut: out in blocks of m x n, the sum in steps of k; and the programs that there should be."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    programs: int = _ENOUGH


@triton.jit  # type: ignore[untyped-decorator]
def _times(n, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """n, which is a multiple of UNIT: this way the compiler sees it too."""
    return n // UNIT * UNIT


@triton.jit  # type: ignore[untyped-decorator]
def _ended(total, bias, lr, before, BIAS: tl.constexpr, RELU: tl.constexpr, DOWN: tl.constexpr):  # type: ignore[no-untyped-def]
    """What becomes of a product: a bias and a ReLU, or a step down from what was there before."""
    if BIAS:
        total += bias
    if RELU:
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    if DOWN:
        total = before - tl.load(lr).to(tl.float32) * total
    return total


_SIZES = ("clients", "m", "n", "k", "share", "parts", "bias_client", "bias_column", "out_client", "out_line")
_LINES = ("a_client", "a_line", "b_client", "b_line")


@triton.jit(do_not_specialize=_SIZES + _LINES)  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]
    a, b, bias, lr, out, clients, m, n, k, share, a_client, a_line, b_client, b_line, bias_client, bias_column,
    out_client, out_line,
    A_ALONG: tl.constexpr, B_ALONG: tl.constexpr, A_UNIT: tl.constexpr, B_UNIT: tl.constexpr, OUT_UNIT: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, DOWN: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out[i, j] = sum of a[i, q] b[q, j] over `share` blocks of q, by client; the parts of all clients one by one.

    A_ALONG, B_ALONG: what lies in one piece is the axis that is summed over.
    """
    down, across = tl.cdiv(m, M), tl.cdiv(n, N)
    turn = tl.program_id(0) // (down * across)
    client, part = (turn % clients).to(tl.int64), turn // clients
    i = tl.program_id(0) // across % down * M + tl.arange(0, M)
    j = tl.program_id(0) % across * N + tl.arange(0, N)
    a += client * _times(a_client, A_UNIT)
    b += client * _times(b_client, B_UNIT)
    out += turn.to(tl.int64) * _times(out_client, OUT_UNIT)
    to = (i * _times(out_line, OUT_UNIT))[:, None] + j[None, :]
    inside = (i < m)[:, None] & (j < _times(n, OUT_UNIT))[None, :]
    before = to
    if DOWN:  # asked for early: it takes as long as all the rest
        before = tl.load(out + to, inside, 0.0)
    total = tl.zeros((M, N), tl.float32)
    for step in range(part * share, tl.minimum((part + 1) * share, tl.cdiv(k, K))):
        q = step * K + tl.arange(0, K)
        if A_ALONG:
            a_at = (i * _times(a_line, A_UNIT))[:, None] + q[None, :]
            a_in = (i < m)[:, None] & (q < _times(k, A_UNIT))[None, :]
        else:
            a_at = i[:, None] + (q * _times(a_line, A_UNIT))[None, :]
            a_in = (i < _times(m, A_UNIT))[:, None] & (q < k)[None, :]
        if B_ALONG:
            b_at = q[:, None] + (j * _times(b_line, B_UNIT))[None, :]
            b_in = (q < _times(k, B_UNIT))[:, None] & (j < n)[None, :]
        else:
            b_at = (q * _times(b_line, B_UNIT))[:, None] + j[None, :]
            b_in = (q < k)[:, None] & (j < _times(n, B_UNIT))[None, :]
        left, right = tl.load(a + a_at, a_in, 0.0), tl.load(b + b_at, b_in, 0.0)
        total = add_dot(left, right, total, PRECISION)
    shift = total
    if BIAS:
        shift = tl.load(bias + client * bias_client + j * bias_column, j < n, 0.0)[None, :]
    tl.store(out + to, _ended(total, shift, lr, before, BIAS, RELU, DOWN), inside)


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _add_up(  # type: ignore[no-untyped-def]
    part, bias, lr, out, clients, m, n, bias_client, bias_column, out_client, out_line, parts,
    BIAS: tl.constexpr, RELU: tl.constexpr, DOWN: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """out[i, j] = the sum of part[p, i, j] over p, by client."""
    blocks = tl.cdiv(m * n, SIZE)
    client, at = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * SIZE + tl.arange(0, SIZE)
    p = tl.arange(0, PARTS)
    start = (p * clients + client) * m * n  # 64 bits wide, as the client is
    found = tl.load(part + start[:, None] + at[None, :], (p < parts)[:, None] & (at < m * n)[None, :], 0.0)
    total = tl.sum(found, 0)
    out += client * out_client
    to = at // n * out_line + at % n
    before, shift = total, total
    if DOWN:
        before = tl.load(out + to, at < m * n, 0.0)
    if BIAS:
        shift = tl.load(bias + client * bias_client + at % n * bias_column, at < m * n, 0.0)
    tl.store(out + to, _ended(total, shift, lr, before, BIAS, RELU, DOWN), at < m * n)


def product(
    a: Tensor, b: Tensor, precision: str, bias: Tensor | None = None, relu: bool = False, blocks: Blocks | None = None
) -> Tensor:
    """[C, m, k], [C, k, n] -> [C, m, n], with bias [C, 1, n] and a ReLU if asked for."""
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    _run(a, b, out, precision, bias, relu, None, blocks)
    return out


def descend(place: Tensor, a: Tensor, b: Tensor, lr: Tensor, precision: str, blocks: Blocks | None = None) -> None:
    """place [C, m, n], whose rows lie in one piece, less lr (a number, float32 or float64) times the product."""
    _run(a, b, place, precision, None, False, lr, blocks)


def _run(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    precision: str,
    bias: Tensor | None,
    relu: bool,
    lr: Tensor | None,
    blocks: Blocks | None,
) -> None:
    a, b = _in_lines(a), _in_lines(b)
    (clients, m, k), n = a.shape, b.shape[2]
    a_along, b_along = a.stride(2) == 1, b.stride(1) == 1
    cut = blocks or chosen(m, n, k, b_along)
    programs, parts, share = shared_out(cut, clients, m, n, k)
    into = out if parts == 1 else out.new_empty(parts * clients, m, n)
    others = a if bias is None else bias, a if lr is None else lr  # a pointer to nothing would be another kernel
    strides = (0, 0) if bias is None else (bias.stride(0), bias.stride(2))
    ending = bias is not None, relu, lr is not None
    lines = a.stride(1 if a_along else 2), b.stride(2 if b_along else 1)
    with torch.cuda.device_of(a):  # type: ignore[no-untyped-call]
        _multiply[(programs * parts,)](
            *(a, b, *others, into, clients, m, n, k, share, a.stride(0), lines[0], b.stride(0), lines[1], *strides),
            *(into.stride()[:2]),
            *(a_along, b_along, _unit(a, k if a_along else m, lines[0]), _unit(b, k if b_along else n, lines[1])),
            _unit(into, n, into.stride(1)),
            *(ending if parts == 1 else (False, False, False)),
            *(precision, *cut[:3]),
            **{"num_warps": cut.warps, "num_stages": cut.stages},
        )
        if parts > 1:
            _add_up[(clients * triton.cdiv(m * n, _TOGETHER),)](
                *(into, *others, out, clients, m, n, *strides, *out.stride()[:2], parts),
                *(*ending, triton.next_power_of_2(parts), _TOGETHER),
                num_warps=4,
            )


def chosen(m: int, n: int, k: int, b_along: bool) -> Blocks:
    """What was fastest over the papers' models on one H200 (`benchmarks/gpu_products.py --sweep`).

    A short sum (a gradient by weights) is all reading and writing of its result: small blocks leave room for many.
    """
    if k <= _SHORT and k <= min(m, n):
        return Blocks(_block(m, 32), _block(n, 64), _block(k, 32), 4, 2)
    if m > 32:
        return Blocks(64, _block(n, 32), _block(k, 32), 4, 4)
    if not b_along:
        return Blocks(_block(m, 32), _block(n, 64), _block(k, 32), 2, 4)
    if n >= _WIDE:
        return Blocks(_block(m, 32), 64, _block(k, 64), 4, 3, 2 * _ENOUGH)
    return Blocks(_block(m, 32), _block(n, 32), _block(k, 64), 4, 4)


def shared_out(cut: Blocks, clients: int, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Programs for one part of the sum, how many parts there are, and the steps of each, the last of which has less."""
    programs, steps = triton.cdiv(m, cut.m) * triton.cdiv(n, cut.n) * clients, triton.cdiv(k, cut.k)
    parts = 1 if k <= _SHORT else max(1, min(cut.programs // programs, steps // 4, _PARTS))
    share = triton.cdiv(steps, parts)
    return programs, triton.cdiv(steps, share), share


def _block(n: int, most: int) -> int:
    """A tensor core takes 16 at least."""
    return max(16, min(most, int(triton.next_power_of_2(n))))


def _in_lines(t: Tensor) -> Tensor:
    """The same, with rows or columns in one piece, and a client's numbers not farther apart than 32 bits can say."""
    far = sum((n - 1) * s for n, s in zip(t.shape[1:], t.stride()[1:], strict=True))
    return t if 1 in t.stride()[1:] and far < 1 << 31 else t.contiguous()


def _unit(t: Tensor, length: int, line: int) -> int:
    """4 where lines begin, and end, at multiples of four numbers; else 1."""
    return 4 if length % 4 == line % 4 == t.stride(0) % 4 == 0 else 1
