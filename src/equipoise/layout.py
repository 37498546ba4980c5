"""A model as one vector: where each of its named tensors lies, and which of them form a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Slot(NamedTuple):
    """Where one named tensor of the model lies in the vector of its parameters."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """How a model's named tensors lie in one vector of d numbers."""

    slots: tuple[Slot, ...] = ()

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        slots, at = [], 0
        for name, t in tensors.items():
            slots.append(Slot(name, tuple(t.shape), at, at + t.numel()))
            at += t.numel()
        return cls(tuple(slots))

    @property
    def size(self) -> int:
        return self.slots[-1].stop if self.slots else 0

    def tensors(self, rows: Tensor) -> dict[str, Tensor]:
        """Named views into `rows`: [d] or [K, d] gives {name: shape} or {name: [K, *shape]}."""
        return {s.name: rows[..., s.start : s.stop].view(*rows.shape[:-1], *s.shape) for s in self.slots}

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `tensors` for one model."""
        return torch.cat([tensors[s.name].detach().reshape(-1) for s in self.slots])

    def layers(self, by: str = "module") -> dict[str, list[slice]]:
        """The parts of the vector by module (weight and bias together) or by tensor, in the model's order."""
        groups: dict[str, list[slice]] = {}
        for s in self.slots:
            name = (s.name.rpartition(".")[0] or s.name) if by == "module" else s.name
            groups.setdefault(name, []).append(slice(s.start, s.stop))
        return groups


def joined(parts: Sequence[slice]) -> list[slice]:
    """The same numbers in as few slices as possible: a weight and its bias lie side by side."""
    out: list[slice] = []
    for part in sorted(parts, key=lambda p: p.start):
        if out and out[-1].stop == part.start:
            part = slice(out.pop().start, part.stop)
        out.append(part)
    return out


def pieces(parts: Sequence[slice], columns: int) -> list[slice]:
    """The same numbers in slices that are no longer than that."""
    return [
        slice(start, min(start + columns, part.stop))
        for part in joined(parts)
        for start in range(part.start, part.stop, columns)
    ]


def all_at_hand(good: Tensor) -> bool:
    """Whether all are good, where it costs nothing to ask; a GPU is not waited for."""
    return good.device.type == "cpu" and bool(good.all())


def finite_rows(t: Tensor, lead: int = 1) -> Tensor:
    """Which rows of t, counted by its first `lead` dimensions, are finite throughout.

    One NaN or infinity spoils a row's sum, and float32 numbers do not overflow in float64: one look, nothing written. A
    CPU, which has to turn them all into float64 first, looks at the sum in float32, and again only if that is wild.
    """
    if t.dim() == lead or t.dtype is torch.float64 or t.is_complex():
        return torch.isfinite(t).flatten(lead).all(-1) if t.dim() > lead else torch.isfinite(t)
    if t.device.type == "cpu" and t.dtype is torch.float32:
        likely = torch.isfinite(t.flatten(lead).sum(-1))
        if all_at_hand(likely):
            return likely
    return torch.isfinite(t.flatten(lead).sum(-1, dtype=torch.float64))
