"""What min-max and min-sum share: the ray from the honest mean along which they go."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.attacks._forging import Forging, Line, deviation, mean
from equipoise.errors import EquipoiseError


@dataclass(frozen=True, kw_only=True)
class Perturbed(Forging, ABC):
    """perturbation: the way p that forged updates lie from the mean; "unit": against the mean, "std": against the
    deviations, "sign": against the mean's signs."""

    perturbation: Literal["unit", "std", "sign"] = "unit"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.perturbation not in ("unit", "std", "sign"):
            told = f"{type(self).__name__}: perturbation is {self.perturbation!r}"
            raise EquipoiseError(told, 'use "unit", "std" or "sign"')

    @abstractmethod
    def farthest(self, rows: Tensor, line: Line) -> float:
        """gamma, for a p that is not zero."""

    def line(self, rows: Tensor, f: int) -> Line:
        mu = mean(rows)
        ray = Line(mu, self._p(rows, mu), 0.0)
        return ray._replace(scale=self.farthest(rows, ray)) if bool(ray.p.any()) else ray

    def _p(self, rows: Tensor, mu: Tensor) -> Tensor:
        if self.perturbation == "unit":
            return -torch.nn.functional.normalize(mu, dim=0, eps=1e-300)
        return -deviation(rows) if self.perturbation == "std" else -mu.sign()
