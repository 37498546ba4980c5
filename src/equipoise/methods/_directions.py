"""What server rules that look for a direction share: the products of all rows, and a bounded mixture of them.

Products are told in host memory, and all that follows from them is worked out there: a GPU would have to be asked at
every turn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.methods._rows import ZERO, Table, whole
from equipoise.questions import answer

_STEPS = 100  # a dozen are enough, nearly always
_DONE = 1e-22  # mean product of a distance and its price at the answer; the objective is of order 1
_CLOSE = 1e-17  # below this, a step that does not halve it has met rounding
_BACK = 0.995  # how much of the way to the boundary a step may go
_FLOOR = 1e-14  # least addition to the diagonal, above the rounding of its factorisation


def told(updates: Tensor, past: Tensor | None, known: Tensor | None, *more: Tensor) -> list[Tensor]:
    """[n, n]: the products of the rows [updates; past], of which those among the past ones may be `known`; and `more`
    numbers in the same answer; all in float64."""
    table = Table(updates, past)
    among = torch.zeros((len(table.past),) * 2, dtype=torch.float64) if known is None else known.cpu()
    new, *others = (torch.from_numpy(x) for x in answer(table.products([_every(updates)]), *more))
    return [whole(new, among)[0], *others]


def mixture(weights: Tensor, updates: Tensor, past: Tensor | None = None) -> Tensor:
    """[d]: the sum of weight times row over [updates; past], rounded once."""
    return Table(updates, past).mixture([_every(updates)], weights[None])


def along(updates: Tensor, direction: Tensor) -> Tensor:
    """[K] float64: the product of every row with the direction."""
    out = updates.new_zeros(len(updates), dtype=torch.float64)
    for p, x in Table(updates).read(_every(updates)):
        out += x @ direction[p].double()
    return out


def _every(rows: Tensor) -> list[slice]:
    return [slice(0, rows.shape[1])]


def length(weights: Tensor, gram: Tensor) -> Tensor:
    """The length of a mixture; 0 where it is no more than rounding of what it is made of."""
    square = (weights @ gram @ weights).clamp(min=0.0)
    made_of = weights.abs() @ gram.diagonal().clamp(min=0.0).sqrt()
    return torch.where(square.sqrt() > ZERO * made_of, square.sqrt(), 0.0)


def contributions(weights: Tensor, gram: Tensor) -> Tensor:
    """[n]: which share of a mixture came from whom, by the length of what each put in; they sum to 1, or all are 0."""
    put_in = weights.abs() * gram.diagonal().clamp(min=0.0).sqrt()
    return put_in / put_in.sum().clamp(min=torch.finfo(torch.float64).tiny)


# ------------------------------------------------------------------------------------------------ a bounded mixture


def shortest_within(gram: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The weights [n] of the shortest mixture of n rows, each weight within bounds of its own.

        min_w  w' G w   over  low <= w <= high, sum_i w_i = 1        G = X X', the rows' inner products [n, n]

    At the answer there is a nu with (G w)_i >= nu where w_i < high_i and (G w)_i <= nu where w_i > low_i. Where rows
    depend on each other the weights are one choice of many; the vector X' w is the same for all of them. Bounds that
    leave only one answer (sum low = 1, or sum high = 1) are answered with it.

    The method is a primal-dual interior point (Mehrotra, "On the implementation of a primal-dual interior point
    method", SIAM Journal on Optimization 2, 1992) from the point that is equally far, relatively, between all bounds.
    """
    g, low, high = (t.to(torch.float64) for t in (gram, low, high))
    width = high - low
    share = (1.0 - low.sum()) / width.sum().clamp(min=torch.finfo(torch.float64).tiny)
    fixed = width <= 1e-15
    if bool(fixed.all()) or not 1e-13 < float(share) < 1 - 1e-13:
        return low + share.clamp(0.0, 1.0) * width
    g = g / g.diagonal().max().clamp(min=torch.finfo(torch.float64).tiny)
    # A weight that cannot move is left out, as a row that is always there.
    free = ~fixed
    linear = (g @ torch.where(fixed, low, 0.0))[free]
    up = _interior_point(g[free][:, free], linear, share * width[free], (1.0 - share) * width[free], low[free])
    w = low.clone()
    w[free] = torch.minimum(low[free] + up, high[free])
    return w


def _interior_point(g: Tensor, q: Tensor, up: Tensor, down: Tensor, low: Tensor) -> Tensor:
    """The distances above `low` at the answer, from `up` above it and `down` below the upper bound, all positive.

    Their prices are s and t: G w + q - nu - s + t = 0, up s = 0, down t = 0, s, t >= 0; sum w stays as it is.
    """
    grad = g @ (low + up) + q
    nu = grad.mean()
    s, t = (grad - nu).clamp(min=0.0) + 0.1, (nu - grad).clamp(min=0.0) + 0.1
    last = torch.inf
    for _ in range(_STEPS):
        mu = (up @ s + down @ t) / (2 * len(up))
        if float(mu) <= _DONE or (float(mu) <= _CLOSE and float(mu) > 0.5 * last):
            break
        last = float(mu)
        new = _newton(g, g @ (low + up) + q, up, down, s, t, nu, mu)
        if new is None:
            break
        up, down, s, t, nu = new
    return up


def _newton(
    g: Tensor, grad: Tensor, up: Tensor, down: Tensor, s: Tensor, t: Tensor, nu: Tensor, mu: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """One step, predictor and corrector; None where rounding leaves nothing to gain."""
    factor, failed = torch.linalg.cholesky_ex(g + torch.diag((s / up + t / down).clamp(min=_FLOOR)))
    if int(failed):
        return None
    dual = grad - nu - s + t

    def towards(aim_s: Tensor, aim_t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The direction in which up s becomes aim_s, and down t becomes aim_t."""
        rest_s, rest_t = aim_s / up - s, aim_t / down - t
        x = torch.cholesky_solve(torch.stack([rest_s - rest_t - dual, torch.ones_like(up)], -1), factor)
        d_nu = -x[:, 0].sum() / x[:, 1].sum()
        d_w = x[:, 0] + d_nu * x[:, 1]
        return d_w, rest_s - s / up * d_w, rest_t + t / down * d_w, d_nu

    def reach(d_w: Tensor, d_s: Tensor, d_t: Tensor) -> Tensor:
        """How far everything stays positive, at most the whole step."""
        return 1.0 / torch.cat([-d_w / up, d_w / down, -d_s / s, -d_t / t]).amax().clamp(min=1.0)

    none = torch.zeros_like(up)
    d_w, d_s, d_t, _ = towards(none, none)
    far = reach(d_w, d_s, d_t)
    left = ((up + far * d_w) @ (s + far * d_s) + (down - far * d_w) @ (t + far * d_t)) / (2 * len(up))
    centre = (left / mu).clamp(0.0, 1.0) ** 3 * mu
    d_w, d_s, d_t, d_nu = towards(centre - d_w * d_s, centre + d_w * d_t)
    a = _BACK * reach(d_w, d_s, d_t)
    new = (up + a * d_w, down - a * d_w, s + a * d_s, t + a * d_t, nu + a * d_nu)
    return new if all(bool(torch.isfinite(x).all()) for x in new) else None
