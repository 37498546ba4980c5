"""Axes for numbers that differ a thousandfold: a run that diverged must not squeeze all others into one line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_FAR = 300.0
_MOST_TICKS = 7


@dataclass(frozen=True)
class Scale:
    """Values as they are, or, with a `unit`, on a scale that is even up to it and logarithmic beyond, on both sides."""

    unit: float | None = None

    def __call__(self, values: Any) -> Array:
        array = np.asarray(values, np.float64)
        return array if self.unit is None else np.sign(array) * np.log10(1.0 + np.abs(array) / self.unit)

    @property
    def said(self) -> str:
        return "" if self.unit is None else ", log scale"

    def axis(self, values: Array) -> dict[str, Any]:
        """What to add to an axis that holds these values: nothing, or ticks that say the true numbers."""
        if self.unit is None:
            return {}
        ticks = self._ticks(float(values.min()), float(values.max()))
        return {"tickvals": [float(f"{v:.6g}") for v in self(ticks)], "ticktext": [_shown(v) for v in ticks]}

    def _ticks(self, low: float, high: float) -> list[float]:
        assert self.unit is not None
        start = round(math.log10(self.unit))
        top = math.ceil(math.log10(max(abs(low), abs(high), self.unit)))
        step = max(1, math.ceil((top - start) / (_MOST_TICKS - 1)))
        sizes = [10.0**k for k in range(start, top + 1, step)][step > 1 :]  # the unit's tick would touch that of zero
        below = [-v for v in reversed(sizes) if v <= 2 * -low]
        return [*below, 0.0, *(v for v in sizes if v <= 2 * high)]


def scale(values: Any) -> Scale:
    """The plain scale, unless the largest value is far beyond what is usual."""
    sizes = np.abs(np.asarray(values, np.float64))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    usual = float(np.quantile(sizes, 0.25)) if len(sizes) else 0.0
    far = usual > 0 and float(sizes.max()) > _FAR * usual
    return Scale(10.0 ** round(math.log10(usual))) if far else Scale()


def _shown(value: float) -> str:
    power = round(math.log10(abs(value))) if value else 0
    sign = "−" if value < 0 else ""
    return f"{sign}10<sup>{power}</sup>" if abs(power) > 3 else f"{sign}{abs(value):g}"
