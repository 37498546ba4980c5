"""Malicious clients send noise instead of what they learned.

Attack A2 of Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021,
Definition 1 ("random updates").

    u_k ~ N(0, s_k^2 I)       s_k: standard deviation of the d numbers of the client's own update; scale = "unit": 1

Departures: none. The paper says only "zero-mean Gaussian"; s_k is what its released program uses. There the clients
are label-poisoned as well, which changes s_k: label_noise = true.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.aggregators._distances import columns
from equipoise.attacks.label_noise import LabelNoise
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery, Samples


@dataclass(frozen=True, kw_only=True)
class RandomUpdate(Attack):
    """scale: "matched" hides in the size of an honest update, "unit" does not. A zero update is matched by zero."""

    scale: Literal["matched", "unit"] = "matched"
    label_noise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale not in ("matched", "unit"):
            raise EquipoiseError(f"random-update: scale is {self.scale!r}", 'use "matched" or "unit"')

    def poison(self, samples: Samples, stream: Stream) -> Samples:
        return LabelNoise(count=0).poison(samples, stream) if self.label_noise else samples

    def corrupt(self, seen: Forgery) -> Tensor:
        noise = seen.stream.normal(seen.ids[:, None], torch.arange(seen.own.shape[1], device=seen.own.device))
        if self.scale == "matched":
            noise.mul_(_spreads(seen.own))
        return noise.to(seen.own.dtype)


def _spreads(rows: Tensor) -> Tensor:
    """[K, 1] float64: the standard deviation of every row's numbers, without a copy of all of them in float64."""
    (k, d), device = rows.shape, rows.device
    mean, variance = (torch.zeros(k, 1, dtype=torch.float64, device=device) for _ in range(2))
    for piece in columns(d, k, device):
        mean += rows[:, piece].sum(1, keepdim=True, dtype=torch.float64) / d
    for piece in columns(d, k, device):
        variance += (rows[:, piece] - mean).square().sum(1, keepdim=True) / d
    return variance.sqrt()
