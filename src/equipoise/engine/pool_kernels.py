"""Max pools whose windows do not overlap, as one GPU kernel each way (Triton).

    pool      y[i, j] = max over r, c of x[rows i + r, columns j + c], and which r, c that was
    spread    g back to the place that it came from, and 0 to all others

What was the maximum is kept as its place within the window, in one byte; torch keeps its place within the image, in
eight, and searches for it. Every number at full size is read or written once, by threads side by side; where windows
are two wide, which is usual, a thread has a window and so reads and writes pairs.

Only `pools` imports this module, and only where there is a GPU and Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 256, 8  # one window, or one number, for each thread, so that neighbours read and write side by side
_TALLEST = 8  # rows of a window that are read and written in pairs


@triton.jit
def _larger(best, place, value, here):  # type: ignore[no-untyped-def]
    """The maximum so far and its place: the first of equals and the last NaN, as in torch."""
    wins = (value > best) | (value != value)
    return tl.where(wins, value, best), tl.where(wins, here, place)


@triton.jit  # type: ignore[untyped-decorator]
def _pool(  # type: ignore[no-untyped-def]
    x, y, which, windows, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PAIRS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """y[p, i, j] = max over r, c of x[p, ROWS i + r, COLUMNS j + c], which is at r COLUMNS + c."""
    first = tl.program_id(0).to(tl.int64) * N  # may be beyond 32 bits, unlike what is counted from there
    at = (first % (TALL * WIDE)).to(tl.int32) + tl.arange(0, N)
    there = tl.arange(0, N) < windows - first
    x += first // (TALL * WIDE) * (HEIGHT * WIDTH)
    plane, i, j = at // (TALL * WIDE), at // WIDE % TALL, at % WIDE
    start = plane * (HEIGHT * WIDTH) + i * (ROWS * WIDTH) + j * COLUMNS
    best, place = tl.full((N,), float("-inf"), tl.float32), tl.zeros((N,), tl.int32)
    if PAIRS:
        for r in tl.static_range(ROWS):
            pair = start[:, None] + (r * WIDTH + tl.arange(0, 2))[None, :]
            left, right = tl.split(tl.load(x + pair, there[:, None]))
            best, place = _larger(best, place, left, 2 * r)
            best, place = _larger(best, place, right, 2 * r + 1)
    else:
        for q in range(ROWS * COLUMNS):
            value = tl.load(x + start + (q // COLUMNS * WIDTH + q % COLUMNS), there)
            best, place = _larger(best, place, value, q)
    tl.store(y + first + tl.arange(0, N), best, there)
    tl.store(which + first + tl.arange(0, N), place.to(tl.uint8), there)


@triton.jit  # type: ignore[untyped-decorator]
def _spread(  # type: ignore[no-untyped-def]
    g, which, full, numbers, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """full[p, i, j] = g[p, i // ROWS, j // COLUMNS] if that window's maximum was there, else 0."""
    first = tl.program_id(0).to(tl.int64) * N
    at = (first % (HEIGHT * WIDTH)).to(tl.int32) + tl.arange(0, N)
    there = tl.arange(0, N) < numbers - first
    ahead = first // (HEIGHT * WIDTH) * (TALL * WIDE)
    plane, i, j = at // (HEIGHT * WIDTH), at // WIDTH % HEIGHT, at % WIDTH
    covered = there & (i < TALL * ROWS) & (j < WIDE * COLUMNS)
    window = plane * (TALL * WIDE) + i // ROWS * WIDE + j // COLUMNS
    given = tl.load(g + ahead + window, covered, 0.0)
    place = tl.load(which + ahead + window, covered, 0).to(tl.int32)
    tl.store(full + first + tl.arange(0, N), tl.where(place == i % ROWS * COLUMNS + j % COLUMNS, given, 0.0), there)


@triton.jit  # type: ignore[untyped-decorator]
def _spread_pairs(  # type: ignore[no-untyped-def]
    g, which, full, windows, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TALL: tl.constexpr, DOWN: tl.constexpr,
    ROWS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The same by windows: all are two wide and none sticks out at the side. DOWN > TALL if some do at the bottom."""
    WIDE: tl.constexpr = WIDTH // 2
    first = tl.program_id(0).to(tl.int64) * N
    at = (first % (DOWN * WIDE)).to(tl.int32) + tl.arange(0, N)
    there = tl.arange(0, N) < windows - first
    ahead = first // (DOWN * WIDE)
    plane, i, j = at // (DOWN * WIDE), at // WIDE % DOWN, at % WIDE
    window = plane * (TALL * WIDE) + i * WIDE + j
    given = tl.load(g + ahead * (TALL * WIDE) + window, there & (i < TALL), 0.0)
    place = tl.load(which + ahead * (TALL * WIDE) + window, there & (i < TALL), 0).to(tl.int32)
    full += ahead * (HEIGHT * WIDTH)
    start = plane * (HEIGHT * WIDTH) + i * (ROWS * WIDTH) + j * 2
    for r in tl.static_range(ROWS):
        pair = tl.join(tl.where(place == 2 * r, given, 0.0), tl.where(place == 2 * r + 1, given, 0.0))
        inside = there & (i * ROWS + r < HEIGHT)
        tl.store(full + start[:, None] + (r * WIDTH + tl.arange(0, 2))[None, :], pair, inside[:, None])


def pool(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The maxima over windows of this size in x [..., h, w], and where in its window each is, row by row, in bytes."""
    x = x.contiguous()
    height, width = x.shape[-2:]
    y = x.new_empty(*x.shape[:-2], height // size[0], width // size[1])
    which = torch.empty_like(y, dtype=torch.uint8)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _pool[(triton.cdiv(y.numel(), _BLOCK),)](
            *(x, y, which, y.numel(), height, width, *y.shape[-2:], *size, _in_pairs(width, size), _BLOCK),
            **{"num_warps": _WARPS},
        )
    return y, which


def spread(g: Tensor, which: Tensor, shape: Sequence[int], size: Sequence[int]) -> Tensor:
    """The gradient by x, whose shape is given, of that by y."""
    g, which = g.contiguous(), which.contiguous()
    full = g.new_empty(*shape)
    (height, width), (tall, wide) = shape[-2:], g.shape[-2:]
    with torch.cuda.device_of(g):  # type: ignore[no-untyped-call]
        if _in_pairs(width, size):
            down = triton.cdiv(height, size[0])
            windows = full.numel() // height * down // 2
            _spread_pairs[(triton.cdiv(windows, _BLOCK),)](
                g, which, full, windows, height, width, tall, down, size[0], _BLOCK, **{"num_warps": _WARPS}
            )
        else:
            _spread[(triton.cdiv(full.numel(), _BLOCK),)](
                g, which, full, full.numel(), height, width, tall, wide, *size, _BLOCK, **{"num_warps": _WARPS}
            )
    return full


def _in_pairs(width: int, size: Sequence[int]) -> bool:
    """Whether all pairs begin where a pair may be read at once; a tall window's would take long to compile."""
    return size[1] == 2 and width % 2 == 0 and size[0] <= _TALLEST
