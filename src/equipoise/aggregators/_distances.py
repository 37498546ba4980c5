"""Lengths of updates and distances between them, in float64, without a float64 copy of them all.

    ||x_i - x_j||^2 = ||x_i||^2 + ||x_j||^2 - 2 x_i . x_j

is one matrix product, but where x_i and x_j lie close together compared with their lengths, the right-hand side is the
difference of two large numbers and holds nothing but rounding. Where that happens, a row of middling length is
subtracted from all of them (not the mean: one row at 1e30 would carry it away from all others), and what cancels even
then is computed again, from the differences themselves.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_NUMBERS = 1 << 17  # numbers in work at a time: as float64 they fit in a core's own cache, three times as fast
_LINE = 64  # pieces that begin with a line of the cache are half as slow to read and write
_ON_GPU = 1 << 24  # there, every piece costs a launch
_BLOCK = 48  # rows at a time: a multiple of what the fastest kernels work on at once, for float32 and for float64
_CLOSE = 1e-3  # what is left of a difference that lost three of its sixteen digits


def columns(width: int, rows: int, device: torch.device | None = None) -> Iterator[slice]:
    """Cuts `width` columns so that `rows` rows of one piece are few enough to work on at once."""
    step = max(1, (_NUMBERS if device is None or device.type == "cpu" else _ON_GPU) // max(1, rows))
    step -= step % _LINE if step > _LINE else 0
    return (slice(start, min(start + step, width)) for start in range(0, width, step))


def norms(rows: Tensor) -> Tensor:
    """[K] float64: the length of every row; 1e30 squared has room here."""
    k, d = rows.shape
    total = torch.zeros(k, dtype=torch.float64, device=rows.device)
    for piece in columns(d, k, rows.device):
        total += torch.linalg.vector_norm(rows[:, piece], dim=1, dtype=torch.float64).square()
    return total.sqrt()


def squared_distances(rows: Tensor) -> Tensor:
    """[K, K] float64, symmetric to the bit, 0 on the diagonal; infinite, never NaN, beyond what float64 can hold."""
    gram = inner_products(rows)
    apart, cancelled = _apart(gram)
    if bool(cancelled.any()):
        centre = rows[gram.diagonal().argsort(stable=True)[(len(rows) - 1) // 2]].double()
        apart, cancelled = _apart(inner_products(rows, lambda piece: centre[piece]))
        i, j = cancelled.nonzero(as_tuple=True)
        apart[i, j] = apart[j, i] = _of_pairs(rows, i, j)
    return apart.fill_diagonal_(0.0)


def inner_products(rows: Tensor, centre: Callable[[slice], Tensor] | None = None) -> Tensor:
    """[K, K] float64: those of the rows, or of their differences from a centre that is given piece by piece."""
    k, d = rows.shape
    gram = torch.zeros((k, k), dtype=torch.float64, device=rows.device)
    buffer = None  # one for all pieces: to ask for memory a hundred times costs more than to fill it
    for piece in columns(d, k, rows.device):
        buffer = gram.new_empty((k, piece.stop - piece.start)) if buffer is None else buffer
        x = buffer[:, : piece.stop - piece.start].copy_(rows[:, piece])
        add_products(gram, x if centre is None else x.sub_(centre(piece)))
    return mirrored(gram)


def add_products(total: Tensor, x: Tensor, keep: float = 1.0) -> None:
    """Makes the lower half of `total` that of `keep * total + x x^T`; of the upper half only a part is kept up.

    On a CPU that saves a quarter of the work for 100 rows, and towards half for many. On a GPU the product is computed
    whole: blocks would cost launches.
    """
    block = _BLOCK if x.device.type == "cpu" else max(_BLOCK, len(x))
    for i in range(0, len(x), block):
        total[i:, i : i + block].addmm_(x[i:], x[i : i + block].T, beta=keep)


def mirrored(half: Tensor) -> Tensor:
    """The symmetric matrix with this lower half."""
    return half.tril() + half.tril(-1).T


def _apart(gram: Tensor) -> tuple[Tensor, Tensor]:
    """The squared distances that inner products say, and which pairs i < j lost too many digits in it."""
    own = gram.diagonal()
    together = own[:, None] + own[None, :]
    apart = together - (gram + gram.T)
    cancelled = ~(apart > _CLOSE * together) & (together != 0)  # ~(a > b) is true of NaN as well
    return apart, cancelled.triu(1)


def _of_pairs(rows: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """||rows_i - rows_j||^2 from the differences, for pairs of rows."""
    total = torch.zeros(len(i), dtype=torch.float64, device=rows.device)
    for piece in columns(rows.shape[1], len(rows) + len(i), rows.device):
        x = rows[:, piece].double()
        total += (x[i] - x[j]).square().sum(1)
    return total.nan_to_num(nan=torch.inf, posinf=torch.inf)
