"""Small convex problems that server rules share: the projection onto the simplex, and the shortest vector of a hull.

Both take a whole batch at once, in float64. The hull's is solved in host memory, where some hundred operations take a
microsecond each; as many launches on a GPU would take ten times as long. Most of them are numpy's, which are shorter
than torch's; but products and large factorisations never are, as numpy's threads and LAPACK's are not ours to limit
(torch's are, see the engine's `steady`). For rules that would have to ask a GPU for products first, small hulls are
also solved there, in one launch (`hull_kernels`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PIVOTS, _CHANCES = 20, 3  # exchanges at most, and how many in a row may fail to bring the number of wrong rows down
_START = 1e-2  # the ridge of the first guess at which rows are used
_EXACT = 1e-12  # the error of an answer that needs no second method; nearly all have 1e-16
_SIGN = 1e-13  # what is this small, relative to sum x, has no sign
_THERE = 128  # rows that a GPU takes at most
_FEW = 96  # fewer rows than this LAPACK takes in one thread, in a third of the time of torch
_TINY = float(np.finfo(np.float64).tiny)

_STEPS, _FIRST_LOOK, _LOOK_EVERY = 60, 6, 2  # to look at whether all are solved
_DONE = 1e-18  # mean v_i s_i of a solved problem, relative to (sum v)^2
_CLOSE = 1e-12  # below this, a step that does not halve it has met rounding
_FLOOR = 1e-13  # least addition to the diagonal of C: above the rounding of its factorisation
_RIDGE = 1e-10
_BACK = 0.995  # how much of the way to the boundary a step may go


def project_simplex(v: Tensor) -> Tensor:
    """The nearest point to v [..., n] among the w >= 0 with sum_i w_i = 1.

    It is w = max(v - theta, 0), with theta found by sorting (Held, Wolfe, Crowder, "Validation of subgradient
    optimization", Mathematical Programming 6, 1974), so no iteration decides how exact it is.
    """
    x = v.to(torch.float64)
    x = x - x.amax(-1, keepdim=True)  # a common shift changes no answer, and keeps large numbers exact
    down = x.sort(-1, descending=True).values
    count = torch.arange(1, v.shape[-1] + 1, dtype=torch.float64, device=v.device)
    theta = (down.cumsum(-1) - 1.0) / count
    last = (down > theta).sum(-1, keepdim=True) - 1
    w = (x - theta.gather(-1, last)).clamp(min=0.0)
    return (w / w.sum(-1, keepdim=True)).to(v.dtype)


@torch.no_grad()  # to keep track of what made a number costs a microsecond each time
@np.errstate(all="ignore")  # an answer that is not a number loses every comparison, as in torch
def min_norm(gram: Tensor, mask: Tensor | None = None) -> Tensor:
    """The weights [L, n] of the shortest vector in the convex hull of n rows, for L sets of rows at once.

        min_w  w' G w   over  w >= 0, sum_i w_i = 1        G = X X', the rows' inner products [L, n, n]

    `mask` [L, n] says which rows there are; a set without any gets no weights. At the answer (G w)_j >= w' G w for
    every row j, with equality where w_j > 0, up to 1e-8 ||x_j|| sum_i w_i ||x_i|| (nearly always 1e-15): the shortest
    vector X' w has a positive product with every row, or it is zero. A row that is zero gets the weight 1. Where rows
    depend on each other the weights are one choice of many; the vector is the same for all of them.

    Both methods work on v_i = w_i ||x_i|| / min_j ||x_j||. G then becomes the matrix C of cosines, so that rows of very
    different lengths do no harm. First comes block principal pivoting (`_pivoted`): a handful of factorisations. What
    it does not solve to 1e-12 (some sets of about twice as many rows as the rows have dimensions), a primal-dual
    interior point does (Mehrotra, "On the implementation of a primal-dual interior point method", SIAM Journal on
    Optimization 2, 1992): about a dozen steps, each of them a factorisation and many small operations.
    """
    g = gram.detach().to("cpu", torch.float64).numpy()
    squares = g.diagonal(axis1=-2, axis2=-1)
    there = np.ones_like(squares, dtype=np.bool_) if mask is None else mask.cpu().numpy()
    zero = there & (squares <= _TINY)
    real = there & ~zero
    length = np.sqrt(np.where(real, squares, 1.0))
    c = g / length[..., :, None]
    c /= length[..., None, :]
    if not real.all():
        c[~(real[..., :, None] & real[..., None, :])] = 0.0
    b = np.where(real, np.where(real, length, np.inf).min(-1, keepdims=True) / length, 0.0)
    cosines, shares, some = (torch.from_numpy(x) for x in (c, b, real))
    v = _pivoted(cosines, shares, some)
    hard = torch.from_numpy(np.flatnonzero(real.any(-1) & ~(_error(c, b, v.numpy()) <= _EXACT)[..., 0]))
    if len(hard):
        inside = torch.where(some[hard], _interior_point(cosines[hard], shares[hard], some[hard]), 0.0)
        v = v.index_copy(0, hard, _polished(cosines[hard], shares[hard], inside))
    w = b * v.numpy()
    total = w.sum(-1, keepdims=True)
    w /= np.where(total > 0, total, 1.0)
    first = zero & (zero.cumsum(-1) == 1)
    return torch.from_numpy(np.where(zero.any(-1, keepdims=True), first, w)).to(gram.device)


def min_norm_unasked(gram: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The same [L, n], without asking a GPU about it, and whether each answer is exact [L]: else `min_norm` knows.

    Only where `solves_there` says so, and in host memory.
    """
    if not gram.is_cuda:
        return min_norm(gram, mask), torch.ones(len(gram), dtype=torch.bool)
    from equipoise.hull_kernels import shortest

    weights, error = shortest(gram, mask)
    return weights, error <= _EXACT


def solves_there(device: torch.device, rows: int) -> bool:
    """Whether hulls of so many rows are solved where they are: in host memory, and small ones on a GPU, with Triton."""
    return device.type == "cpu" or (rows <= _THERE and _has_kernel(device, 1 << (rows - 1).bit_length()))


@cache
def _has_kernel(device: torch.device, rows: int) -> bool:
    """Compiled now, so that nobody depends on what cannot be."""
    try:
        from equipoise.hull_kernels import shortest

        shortest(*(torch.ones((1,) + (rows,) * n, dtype=torch.float64, device=device) for n in (2, 1)))
    except Exception:  # no Triton, no compiler, no room: whatever it raises
        return False
    return True


def _pivoted(c: Tensor, b: Tensor, real: Tensor) -> Tensor:
    """v = x / b' x, where x >= 0, y = C x - b >= 0 and x' y = 0, by block principal pivoting; [L, n].

    Judice, Pires, "A block principal pivoting algorithm for large-scale strictly monotone linear complementarity
    problems", Computers and Operations Research 21, 1994; Kim, Park, "Fast nonnegative matrix factorization: an
    active-set-like method and comparisons", SIAM Journal on Scientific Computing 33, 2011, Algorithm 2.

    x solves C x = b on the rows that are used and is 0 elsewhere. Rows that are used with x < 0, or not used with
    y < 0, are wrong, and all of them change sides. Ours: (1) the rows used first are those that a large ridge likes;
    all of them would depend on each other (FedLF's fair row is made of others). (2) A small ridge stays. It moves the
    slacks by less than 1e-13 sum x, so that even hulls around the origin are solved, and one correction takes its
    effect away where the rows used are independent. (3) A set whose wrong rows do not become fewer is given up, instead
    of changing one row at a time. So whoever asks has to look at `_error`.
    """
    sets = zip(c.numpy(), b.numpy(), real.numpy(), strict=True)
    return torch.from_numpy(np.stack([_pivoted_set(*each) for each in sets])) if len(c) else torch.zeros_like(b)


def _pivoted_set(c: Floats, b: Floats, real: Bools) -> Floats:
    """One set, with only the rows that are used in the equations, which are often a third of them."""
    used, at = np.zeros_like(real), real.nonzero()[0]
    used[at] = _solved(_block(c, at, _START), b[at])[0] > 0
    fewest, chances = len(b) + 1, _CHANCES
    for _ in range(_PIVOTS):
        x, at = np.zeros_like(b), used.nonzero()[0]
        x[at], again = _solved(_block(c, at, _FLOOR), b[at])
        y = np.einsum("ij,j->i", c, x) - b  # its own loop, in this thread
        wrong = real & (np.where(used, x, y) < -_SIGN * np.abs(x).sum())
        count = int(np.count_nonzero(wrong))
        chances = _CHANCES if count < fewest else chances - 1
        fewest = min(fewest, count)
        if count == 0 or chances < 0:
            break
        used = used ^ wrong
    x[at] -= again(y[at])
    v = np.maximum(x, 0.0)
    total = (b * v).sum()
    return v / total if total > 0 else v


def _block(c: Floats, at: Ints, ridge: float) -> Floats:
    """The rows and columns `at` of C, with a ridge."""
    block = c.take(at, 0).take(at, 1)
    block.flat[:: len(at) + 1] += ridge
    return block


def _solved(block: Floats, b: Floats) -> tuple[Floats, Callable[[Floats], Floats]]:
    """The answer for b, and how to find those for other right sides; NaN where there is none. `block` is used up."""
    lapack = _lapack() if 0 < len(b) < _FEW else None
    if lapack is not None:
        small, x, failed = lapack.dposv(block.T, b, overwrite_a=True)
        return np.full_like(b, np.nan) if failed else x, lambda b: lapack.dpotrs(small, b)[0]
    large, broken = torch.linalg.cholesky_ex(torch.from_numpy(block))

    def solve(b: Floats) -> Floats:
        return torch.cholesky_solve(torch.from_numpy(b)[:, None], large)[:, 0].numpy()

    return np.full_like(b, np.nan) if broken else solve(b), solve


@cache
def _lapack() -> Any:
    """What scipy knows of it, when it is first needed, as that takes half a second; None where it is not installed."""
    try:
        from scipy.linalg import lapack
    except ImportError:
        return None
    return lapack


def _interior_point(c: Tensor, b: Tensor, real: Tensor) -> Tensor:
    """min v' C v / 2 over v >= 0, b' v = 1 [L, n]; in the dual are lam and the slacks s = C v - lam b >= 0.

    Rows that are not there take part, apart from the others and at a price q = 1, which makes their v vanish.
    """
    q = 1.0 - real.to(c.dtype)
    c = c + torch.diag_embed(q)
    b = torch.where(real.any(-1, keepdim=True), b, 1.0)
    v = (1.0 / _sum(b)).expand_as(b)
    lam = _sum(v * _times(c, v))
    s = (_times(c, v) + q - lam * b).clamp(min=0.0) + 0.1 * v
    last = torch.full_like(lam, torch.inf)
    for step in range(_STEPS):
        mu, scale = (v * s).mean(-1, keepdim=True), _sum(v).square()
        busy = (mu > _DONE * scale) & ((mu > _CLOSE * scale) | (mu < 0.5 * last))
        if step >= _FIRST_LOOK and step % _LOOK_EVERY == 0 and not bool(busy.any()):
            break
        new = _newton(c, b, q, v, s, lam, mu)
        good = busy & torch.isfinite(torch.cat(new, -1)).all(-1, keepdim=True)
        v, s, lam = (torch.where(good, x, old) for x, old in zip(new, (v, s, lam), strict=True))
        last = mu
    return torch.where(v > s, v, 0.0)


def _newton(
    c: Tensor, b: Tensor, q: Tensor, v: Tensor, s: Tensor, lam: Tensor, mu: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step, predictor and corrector, towards C v + q - lam b = s, b' v = 1 and v s = 0."""
    d = (s / v).clamp(min=_FLOOR)
    factor, failed = torch.linalg.cholesky_ex(c + torch.diag_embed(d))
    dual, primal = _times(c, v) + q - lam * b - s, 1.0 - _sum(b * v)

    def towards(product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The direction in which v s + v ds + s dv becomes `product`."""
        aim = product / v - s
        x = torch.cholesky_solve(torch.stack([aim - dual, b], -1), factor)
        d_lam = (primal - _sum(b * x[..., 0])) / _sum(b * x[..., 1])
        d_v = x[..., 0] + d_lam * x[..., 1]
        return d_v, aim - d * d_v, d_lam

    def reach(d_v: Tensor, d_s: Tensor) -> Tensor:
        """How far v and s stay >= 0, at most the whole step: x + a dx >= 0 for a <= 1 / max(-dx / x)."""
        return 1.0 / torch.maximum(-d_v / v, -d_s / s).amax(-1, keepdim=True).clamp(min=1.0)

    d_v, d_s, _ = towards(torch.zeros_like(v))
    far = reach(d_v, d_s)
    left = ((v + far * d_v) * (s + far * d_s)).mean(-1, keepdim=True)
    d_v, d_s, d_lam = towards((left / mu) ** 3 * mu - d_v * d_s)
    # Along the step v's is a parabola. Without stopping at its lowest point, one problem in a thousand cycles.
    slope, bend = _sum(v * d_s + s * d_v), _sum(d_v * d_s)
    lowest = torch.where((bend > 0) & (slope < 0), -slope / (2.0 * bend), 1.0)
    a = torch.minimum(_BACK * reach(d_v, d_s), lowest)
    a = torch.where(failed[..., None] == 0, a, torch.nan)  # no step is better than one along a broken factor
    return v + a * d_v, s + a * d_s, lam + a * d_lam


def _polished(c: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """C x = lam b, b' x = 1 solved on the rows that v uses, wherever that is nearer to the answer than v.

    Rows that are only just needed leave the interior point some 1e-9 away. A ridge and corrections from v, instead of
    a solution from scratch, keep the choice that was made among rows which depend on each other.
    """
    used = v > 0
    pair = used[..., :, None] & used[..., None, :]
    ridge = torch.where(used, _RIDGE, 1.0)
    factor, _ = torch.linalg.cholesky_ex(torch.where(pair, c, 0.0) + torch.diag_embed(ridge))
    x = v
    for _ in range(3):
        z = torch.cholesky_solve(torch.stack([torch.where(used, -_times(c, x), 0.0), b * used], -1), factor)
        lam = (1.0 - _sum(b * (x + z[..., 0]))) / _sum(b * z[..., 1])
        x = x + z[..., 0] + lam * z[..., 1]
    x, v = (y / _or_one(_sum(b * y)) for y in (x.clamp(min=0.0), v))
    error, before = (torch.from_numpy(_error(c.numpy(), b.numpy(), y.numpy())) for y in (x, v))
    return torch.where(error < before, x, v)


def _error(c: Floats, b: Floats, v: Floats) -> Floats:
    """[L, 1]: how far the slacks are from being >= 0 everywhere and 0 where v > 0. NaN loses every comparison."""
    cv = np.einsum("lij,lj->li", c, v)
    slack = cv - (v * cv).sum(-1, keepdims=True) * b
    error: Floats = np.where(v > 0, np.abs(slack), -slack).max(-1, keepdims=True) / v.sum(-1, keepdims=True)
    return error


def _times(c: Tensor, v: Tensor) -> Tensor:
    return (c @ v[..., None])[..., 0]


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


def _or_one(x: Tensor) -> Tensor:
    """A divisor that is never 0."""
    return torch.where(x > 0, x, 1.0)
