"""Convolutions of many clients, each with filters of its own, as one GPU kernel each (Triton).

A convolution is a product of matrices, one of which is never written down:

    forward       y[p, o] = sum_q x[p + q] w[o, q]      p: a place in the output of a sample; q: a place in a filter
    of inputs     the same, of the gradient of y and the filters turned round
    of filters    w'[o, q] = sum_p g[p, o] x[p + q]     in parts, which are added up in the same order always

Libraries take the clients of a grouped convolution one after the other, or side by side with little to do for each.
Here clients are one more axis of the grid. Products are taken on tensor cores; in full precision every number is cut in
two (`dots`), which leaves nearly as many digits as float32 has. Sizes of blocks are those that were fastest over the
papers' models on one H200 (`benchmarks/gpu_convolutions.py`).

Only `convolutions` imports this module, and only where there is a GPU and Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.engine.dots import add_dot

_DEEP = 16  # planes that fill a tensor core
_FEW = 150  # numbers in a filter, of which a block takes fewer
_ENOUGH = 1056
"""Programs that keep a GPU busy; a sum over places is cut into parts until there are so many."""


@triton.jit  # type: ignore[untyped-decorator]
def _apply(  # type: ignore[no-untyped-def]
    x, w, bias, y, batch, x_client, x_sample, x_plane, w_client, w_filter, w_plane, w_row, w_column, b_client, b_filter,
    PLANES: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FILTERS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr, DEEP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """y[b, o, i, j] = sum over c, r, s of x[b, c, i + r - UP, j + s - LEFT] w[o, c, r, s] (+ bias[o]), by client.

    Places are the last axis of every block, as they are in memory. DEEP: a block has K planes for one place of the
    filter, so that whether it is beyond the edge is asked once for all of them, and goes through the filter before it
    takes the next planes, so that these are still at hand; else a block runs through the filter.
    """
    client = tl.program_id(2).to(tl.int64)
    place = tl.program_id(0) * N + tl.arange(0, N)
    sample, i, j = place // (TALL * WIDE), place // WIDE % TALL, place % WIDE
    o = tl.program_id(1) * M + tl.arange(0, M)
    x += client * x_client
    w += client * w_client
    y += client * batch * (FILTERS * TALL * WIDE)
    start = sample * x_sample + (i - UP) * WIDTH + (j - LEFT)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, PLANES * ROWS * COLUMNS, K):
        if DEEP:
            turn = k // K % (ROWS * COLUMNS)
            plane, r, s = k // (K * ROWS * COLUMNS) * K + tl.arange(0, K), turn // COLUMNS, turn % COLUMNS
            there = sample < batch
            if UP > 0 or LEFT > 0:
                at_i, at_j = i - UP + r, j - LEFT + s
                there &= (at_i >= 0) & (at_i < HEIGHT) & (at_j >= 0) & (at_j < WIDTH)
            seen = tl.load(x + (plane * x_plane)[:, None] + (start + (r * WIDTH + s))[None, :], there[None, :], 0.0)
            known = (o < FILTERS)[:, None]
        else:
            q = k + tl.arange(0, K)
            plane, r, s = q // (ROWS * COLUMNS), q // COLUMNS % ROWS, q % COLUMNS
            there = (q < PLANES * ROWS * COLUMNS)[:, None] & (sample < batch)[None, :]
            if UP > 0 or LEFT > 0:
                at_i, at_j = r[:, None] + (i - UP)[None, :], s[:, None] + (j - LEFT)[None, :]
                there &= (at_i >= 0) & (at_i < HEIGHT) & (at_j >= 0) & (at_j < WIDTH)
            seen = tl.load(x + (plane * x_plane + r * WIDTH + s)[:, None] + start[None, :], there, 0.0)
            known = (o < FILTERS)[:, None] & (q < PLANES * ROWS * COLUMNS)[None, :]
        at = plane * w_plane + r * w_row + s * w_column
        filters = tl.load(w + (o * w_filter)[:, None] + at[None, :], known, 0.0)
        total = add_dot(filters, seen, total, PRECISION)
    if BIAS:
        total += tl.load(bias + client * b_client + o * b_filter, o < FILTERS, 0.0)[:, None]
    if RELU:
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    to = (o * (TALL * WIDE))[:, None] + (sample * (FILTERS * TALL * WIDE) + place % (TALL * WIDE))[None, :]
    tl.store(y + to, total, (o < FILTERS)[:, None] & (sample < batch)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _sum(  # type: ignore[no-untyped-def]
    g, x, part, batch, clients, share, g_client, g_sample, g_plane, x_client, x_sample, x_plane,
    PLANES: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FILTERS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, UP: tl.constexpr, LEFT: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """part[o, c, r, s] = sum over `share` places b, i, j of g[b, o, i, j] x[b, c, i + r - UP, j + s - LEFT]."""
    client, turn = (tl.program_id(2) % clients).to(tl.int64), tl.program_id(2) // clients
    o = tl.program_id(0) * M + tl.arange(0, M)
    q = tl.program_id(1) * N + tl.arange(0, N)
    plane, r, s = q // (ROWS * COLUMNS), q // COLUMNS % ROWS, q % COLUMNS
    g += client * g_client
    x += client * x_client
    total = tl.zeros((M, N), tl.float32)
    for k in range(turn * share, (turn + 1) * share, K):
        place = k + tl.arange(0, K)
        sample, i, j = place // (TALL * WIDE), place // WIDE % TALL, place % WIDE
        at = (o * g_plane)[:, None] + (sample * g_sample + place % (TALL * WIDE))[None, :]
        given = tl.load(g + at, (o < FILTERS)[:, None] & (sample < batch)[None, :], 0.0)
        there = (q < PLANES * ROWS * COLUMNS)[:, None] & (sample < batch)[None, :]
        if UP > 0 or LEFT > 0:
            at_i, at_j = r[:, None] + (i - UP)[None, :], s[:, None] + (j - LEFT)[None, :]
            there &= (at_i >= 0) & (at_i < HEIGHT) & (at_j >= 0) & (at_j < WIDTH)
        start = sample * x_sample + (i - UP) * WIDTH + (j - LEFT)
        seen = tl.load(x + (plane * x_plane + r * WIDTH + s)[:, None] + start[None, :], there, 0.0)
        total = add_dot(given, tl.trans(seen), total, PRECISION)
    part += tl.program_id(2).to(tl.int64) * (FILTERS * PLANES * ROWS * COLUMNS)
    to = (o * (PLANES * ROWS * COLUMNS))[:, None] + q[None, :]
    tl.store(part + to, total, (o < FILTERS)[:, None] & (q < PLANES * ROWS * COLUMNS)[None, :])


def forward(
    x: Tensor, w: Tensor, pad: tuple[int, int], precision: str, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """[C, B, planes, h, w], [C, filters, planes, rows, columns] -> [C, B, filters, h', w'], with bias[C, filters]."""
    sizes = [n + 2 * p - k + 1 for n, k, p in zip(x.shape[3:], w.shape[3:], pad, strict=True)]
    return _applied(x, w, sizes, pad, precision, bias=bias, relu=relu)


def of_inputs(g: Tensor, w: Tensor, pad: tuple[int, int], precision: str) -> Tensor:
    """The gradient by x, of that by y and the filters."""
    sizes = [n - 2 * p + k - 1 for n, k, p in zip(g.shape[3:], w.shape[3:], pad, strict=True)]
    beyond = [k - 1 - p for k, p in zip(w.shape[3:], pad, strict=True)]
    return _applied(g, w.transpose(1, 2), sizes, beyond, precision, turned=True)


def _applied(
    x: Tensor,
    w: Tensor,
    sizes: list[int],
    pad: tuple[int, int] | list[int],
    precision: str,
    turned: bool = False,
    bias: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    x = _planes_in_one_piece(x)
    clients, batch, planes, height, width = x.shape
    _, filters, _, rows, columns = w.shape
    y = x.new_empty(clients, batch, filters, *sizes)
    deep = planes % _DEEP == 0
    if deep:  # numbers of a block of planes one behind the other
        w = w.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    strides = w.stride()
    if turned:  # from the last number of a filter back to the first
        w, strides = w[..., rows - 1 :, columns - 1 :], (*strides[:3], -strides[3], -strides[4])
    m, n, k, warps, stages = _blocks(filters, planes * rows * columns, deep)
    grid = triton.cdiv(batch * sizes[0] * sizes[1], n), triton.cdiv(filters, m), clients
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _apply[grid](
            *(x, w, y if bias is None else bias, y, batch, *x.stride()[:3], *strides),
            *((0, 0) if bias is None else bias.stride()),
            *(planes, height, width, filters, rows, columns, *sizes, *pad),
            *(bias is not None, relu, precision, deep, m, n, k),
            **{"num_warps": warps, "num_stages": stages},
        )
    return y


def of_filters(g: Tensor, x: Tensor, shape: torch.Size, pad: tuple[int, int], precision: str) -> Tensor:
    """The gradient by w, whose shape is given, of that by y and the inputs."""
    g, x = _planes_in_one_piece(g), _planes_in_one_piece(x)
    clients, batch, filters, tall, wide = g.shape
    planes, rows, columns = shape[2:]
    m, n, k, warps, stages = _blocks_of_filters(filters, planes * rows * columns)
    blocks = triton.cdiv(filters, m), triton.cdiv(planes * rows * columns, n)
    places = batch * tall * wide
    parts = max(1, min(_ENOUGH // (blocks[0] * blocks[1] * clients), places // (4 * k)))
    share = triton.cdiv(triton.cdiv(places, parts), k) * k
    part = x.new_empty(parts, *shape)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _sum[*blocks, clients * parts](
            *(g, x, part, batch, clients, share, *g.stride()[:3], *x.stride()[:3]),
            *(planes, *x.shape[3:], filters, rows, columns, tall, wide, *pad),
            *(precision, m, n, k),
            **{"num_warps": warps, "num_stages": stages},
        )
    return part[0] if parts == 1 else part.sum(0)


def _blocks(filters: int, terms: int, deep: bool) -> tuple[int, int, int, int, int]:
    """Filters, places and terms of a sum in a block; warps and stages.

    Four warps on 64 filters would make Triton take other instructions, which with numbers cut in two are half as fast.
    """
    m = _block(filters)
    if m == 64:
        return m, 64, 16 if deep or terms > 32 else 32, 2, 3
    if deep or m == 16:
        return m, 128, 16 if deep else 32, 4, 3
    return m, 64, 32, 2, 3


def _blocks_of_filters(filters: int, terms: int) -> tuple[int, int, int, int, int]:
    """Filters, numbers of a filter and places in a block; warps and stages."""
    return (_block(filters), 32, 32, 2, 4) if terms <= _FEW else (_block(filters), 64, 16, 2, 4)


def _block(n: int) -> int:
    """A tensor core takes 16 at least."""
    return max(16, min(64, int(triton.next_power_of_2(n))))


def _planes_in_one_piece(t: Tensor) -> Tensor:
    """The same, and a client's numbers not farther apart than 32 bits can say."""
    far = sum((n - 1) * s for n, s in zip(t.shape[1:], t.stride()[1:], strict=True))
    return t if t.stride()[3:] == (t.shape[4], 1) and far < 1 << 31 else t.contiguous()
