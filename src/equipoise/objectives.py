"""Losses of single samples, tilted into the one loss that a client descends.

Li, Beirami, Sanjabi, Smith, "Tilted empirical risk minimization", ICLR 2021, Equation 2; and, for two levels, Zhang,
Mares De La Cruz, Wang, "FedTilt: towards multi-level fairness-preserving and robust federated learning", 2025,
footnote 3.

    R(t; l) = (1/t) log mean_i exp(t l_i)        t > 0 leans to the largest losses, t < 0 to the smallest, 0 is the mean

Everything in here works in float64 through log-sum-exp: 1/t magnifies rounding when t is small, exp overflows when it
is large, and the numbers are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from equipoise.core import EquipoiseError, Objective

NO_TILT = 1e-8
"""A tilt closer to 0 than this means the plain mean."""

_LOWEST = torch.finfo(torch.float64).min  # in place of -inf, which gives NaN gradients where nothing is real


def tilted(values: Tensor, t: float, mask: Tensor | None = None) -> Tensor:
    """[..., B] -> [...]: R(t; values) over the entries whose mask is True; 0 without gradient where there are none."""
    v = values.to(torch.float64)
    real = torch.ones_like(v, dtype=torch.bool) if mask is None else mask
    count = real.sum(-1)
    some = count.clamp(min=1).to(torch.float64)
    if abs(t) < NO_TILT:
        out = torch.where(real, v, 0.0).sum(-1) / some
    else:
        out = (torch.logsumexp(torch.where(real, t * v, _LOWEST), -1) - some.log()) / t
    return torch.where(count > 0, out, 0.0).to(values.dtype)


def tilts(values: Tensor, t: float) -> Tensor:
    """[B] -> [B]: the gradient of R(t; values), which is softmax(t values): weights that sum to 1."""
    return torch.softmax((0.0 if abs(t) < NO_TILT else t) * values.to(torch.float64), -1)


def check_tilt(who: str, name: str, value: float) -> None:
    if not isfinite(value):
        raise EquipoiseError(f"{who}: {name} is {value}", "any finite number; 0 is the plain mean")


@dataclass(frozen=True)
class Tilted(Objective):
    """R(t; losses) over a batch: (1/t) log mean exp(t loss)."""

    t: float = 1.0
    """The tilt, any sign; 0 is the mean, towards +infinity the maximum, towards -infinity the minimum."""

    def __post_init__(self) -> None:
        check_tilt("tilted", "t", self.t)

    def __call__(self, losses: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return tilted(losses, self.t, mask)


@dataclass(frozen=True)
class ClassTilted(Objective):
    """R_c = R(lam; losses of class c), then (1/tau) log sum_c (n_c / n) exp(tau R_c).

    Classes without a sample in the batch are left out. lam = tau is `Tilted`; both 0 are the mean. The gradient gives
    sample z of class c the weight

        n_c exp(tau R_c) / sum_j n_j exp(tau R_j)  *  exp(lam l_z) / sum_{z' in c} exp(lam l_z')

    It compares all pairs of samples in a batch, so memory grows with the square of the batch.
    """

    lam: float = 1.0
    """The tilt between the samples of a class, any sign; 0 is their mean."""
    tau: float = 1.0
    """The tilt between the classes of the batch, any sign; 0 is their mean by size."""

    def __post_init__(self) -> None:
        check_tilt("class-tilted", "lam", self.lam)
        check_tilt("class-tilted", "tau", self.tau)

    def __call__(self, losses: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        if labels.is_floating_point() or labels.ndim != losses.ndim:
            found = f"{str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}"
            raise EquipoiseError(f"class-tilted: labels are {found}", "it needs class labels; Tilted(t) does not")
        same = (labels[..., :, None] == labels[..., None, :]) & mask[..., None, :]
        # Every sample stands for its class, so that class c counts n_c times at the second level.
        of_class = _within(torch.where(mask, losses, 0.0).to(torch.float64), same, mask, self.lam)
        return tilted(of_class, self.tau, mask).to(losses.dtype)


def _within(values: Tensor, same: Tensor, mask: Tensor, t: float) -> Tensor:
    """[..., B]: for every sample R(t; values) over its class. Only sums and maxima are over pairs, no exponentials."""
    pairs = same.to(values.dtype)
    count = pairs.sum(-1).clamp(min=1.0)
    if abs(t) < NO_TILT:
        return (pairs @ values[..., None]).squeeze(-1) / count
    tv = t * values
    peak = torch.where(same, tv.detach()[..., None, :], _LOWEST).amax(-1)
    powers = torch.where(mask, tv - peak, _LOWEST).exp()
    total = (pairs @ powers[..., None]).squeeze(-1)  # at least 1, from the peak, wherever there is a real sample
    return (peak + (total.clamp(min=0.5) / count).log()) / t
