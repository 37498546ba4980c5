"""Random numbers as values: the same name always gives the same numbers.

A stream is a 64-bit key and nothing else. It has no position, so nothing has to be saved to resume a run, an extra
draw somewhere changes nothing elsewhere, and clients can be drawn in any order by any number of workers:

    Stream(seed).child("batch", round)                 a stream of its own for every name
    stream.bits(client[:, None], position[None, :])    one 64-bit number per (client, position), all at once

`bits` is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014) applied once per id. Integer arithmetic only, so CPU and GPU agree to the bit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_GOLDEN, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The two's complement reading of a 64-bit pattern, as torch's int64 wants it."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(z: Tensor, n: int) -> Tensor:
    return (z >> n) & ((1 << (64 - n)) - 1)  # torch's >> copies the sign bit; this one does not


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _signed(_MIX1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX2)
    return z ^ _shift(z, 31)


@dataclass(frozen=True)
class Stream:
    """A named source of random numbers; `Stream(seed)` is the root of a run."""

    key: int

    def child(self, *names: str | int) -> Stream:
        """The stream called `names` below this one. 1 and "1" are different names."""
        text = f"{self.key}/" + "/".join(f"{type(n).__name__}:{n}" for n in names)
        return Stream(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))

    def bits(self, *ids: Tensor) -> Tensor:
        """One int64 of random bits for every combination of the (broadcast) integer ids."""
        z = torch.full((), _signed(self.key % (1 << 64)), dtype=torch.int64, device=ids[0].device)
        for i in ids:
            z = _mix(z + (i.to(torch.int64) + 1) * _signed(_GOLDEN))
        return z

    def uniform(self, *ids: Tensor) -> Tensor:
        """A float64 in [0, 1) for every combination of ids."""
        return _shift(self.bits(*ids), 11).to(torch.float64) * 2.0**-53

    def normal(self, *ids: Tensor) -> Tensor:
        """A standard normal float64 for every combination of ids (Box and Muller, 1958)."""
        radius = (-2.0 * torch.log1p(-self.child("radius").uniform(*ids))).sqrt()
        return radius * torch.cos(2.0 * torch.pi * self.child("angle").uniform(*ids))

    def integers(self, high: int, *ids: Tensor) -> Tensor:
        """An integer in [0, high) for every combination of ids."""
        return (self.uniform(*ids) * high).to(torch.int64)

    def torch(self) -> torch.Generator:
        """A fresh CPU generator that starts at this stream's key."""
        return torch.Generator().manual_seed(_signed(self.key % (1 << 64)))

    def numpy(self) -> np.random.Generator:
        """A fresh numpy generator that starts at this stream's key."""
        return np.random.Generator(np.random.Philox(key=self.key % (1 << 64)))
