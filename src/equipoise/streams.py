"""Random numbers as values: the same name always gives the same numbers.

A stream is a 64-bit key and nothing else. It has no position, so nothing has to be saved to resume a run, an extra
draw somewhere changes nothing elsewhere, and clients can be drawn in any order by any number of workers:

    Stream(seed).child("batch", round)                 a stream of its own for every name
    stream.bits(client[:, None], position[None, :])    one 64-bit number per (client, position), all at once

`bits` is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014) applied once per id. Integer arithmetic only, so CPU and GPU agree to the bit.

Ids are tensors, or numpy arrays of at least one dimension, and so is what comes back: the same numbers, which numpy has
several times sooner if they are few. The caller chooses: a tensor may be more than it seems (under vmap, or recorded).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Values = TypeVar("Values", Tensor, npt.NDArray[Any])


def _signed(value: int) -> int:
    """The two's complement reading of a 64-bit pattern, as torch's int64 wants it."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(z: Tensor, n: int) -> Tensor:
    return (z >> n) & ((1 << (64 - n)) - 1)  # torch's >> copies the sign bit; this one does not


class _Kind:
    """What `bits` is made of, for tensors of int64 or for arrays of uint64.

    The constants are kept as they are used: numpy needs twice as long where it is given a number of Python's.
    """

    def __init__(self, word: Callable[[int], Any], shift: Callable[[Any, Any], Any]) -> None:
        self.word, self.shift, self.one, self.golden = word, shift, word(1), word(0x9E3779B97F4A7C15)
        self.factors = word(0xBF58476D1CE4E5B9), word(0x94D049BB133111EB)
        self.shifts = word(30), word(27), word(31)

    def mix(self, z: Any) -> Any:
        shift, (a, b, c), (f, g) = self.shift, self.shifts, self.factors
        z = (z ^ shift(z, a)) * f
        z = (z ^ shift(z, b)) * g
        return z ^ shift(z, c)


def _mixed(kind: _Kind, z: Any, *ids: Any) -> Any:
    for i in ids:
        z = kind.mix(z + (i + kind.one) * kind.golden)
    return z


def bits_of(words: Tensor, *ids: Tensor) -> Tensor:
    """`bits` of many streams at once, of which a device knows the words: all of it broadcast, in int64."""
    mixed: Tensor = _mixed(_TENSORS, words, *ids)
    return mixed


_TENSORS, _ARRAYS = _Kind(_signed, _shift), _Kind(partial(np.array, dtype=np.uint64), np.right_shift)


def _cut(ids: npt.NDArray[Any], dim: int, at: int, length: int) -> npt.NDArray[Any]:
    """These of the ids, counted along a dimension from the end, unless they are the same all along it."""
    whole = ids.ndim < -dim or ids.shape[dim] == 1
    return ids if whole else np.moveaxis(np.moveaxis(ids, dim, 0)[at : at + length], 0, dim)


_PIECE = 1 << 16  # normal numbers that a CPU works out at once: what they are made of is still near when it is needed


@dataclass(frozen=True)
class Stream:
    """A named source of random numbers; `Stream(seed)` is the root of a run."""

    key: int

    def child(self, *names: str | int) -> Stream:
        """The stream called `names` below this one. 1 and "1" are different names."""
        text = f"{self.key}/" + "/".join(f"{type(n).__name__}:{n}" for n in names)
        return Stream(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))

    @property
    def word(self) -> int:
        """The key as a number of int64."""
        return _signed(self.key % (1 << 64))

    def bits(self, *ids: Values) -> Values:
        """One int64 of random bits for every combination of the (broadcast) integer ids."""
        kind = _TENSORS if isinstance(ids[0], Tensor) else _ARRAYS
        whole = (i.to(torch.int64) if isinstance(i, Tensor) else i.astype(np.uint64) for i in ids)
        z: Values = _mixed(kind, kind.word(self.key % (1 << 64)), *whole)
        return z if isinstance(z, Tensor) else z.view(np.int64)

    def uniform(self, *ids: Values) -> Values:
        """A float64 in [0, 1) for every combination of ids."""
        z = self.bits(*ids)
        if isinstance(z, Tensor):
            return _shift(z, 11).to(torch.float64) * 2.0**-53
        return (z.view(np.uint64) >> 11).astype(np.float64) * 2.0**-53

    def normal(self, *ids: Tensor) -> Tensor:
        """A standard normal float64 for every combination of ids (Box and Muller, 1958)."""
        shape = np.broadcast_shapes(*(tuple(i.shape) for i in ids))
        if math.prod(shape) <= _PIECE or ids[0].device.type != "cpu":
            return self._normal(*ids)
        out = torch.empty(shape, dtype=torch.float64)
        longest, arrays = max(range(len(shape)), key=shape.__getitem__), [i.numpy() for i in ids]
        step = max(1, _PIECE * shape[longest] // math.prod(shape))
        for at in range(0, shape[longest], step):
            piece = out.narrow(longest, at, min(step, shape[longest] - at))
            piece.copy_(self._normal(*(_cut(i, longest - len(shape), at, piece.shape[longest]) for i in arrays)))
        return out

    def _normal(self, *ids: Values) -> Tensor:
        radius, angle = (torch.as_tensor(self.child(name).uniform(*ids)) for name in ("radius", "angle"))
        return radius.neg_().log1p_().mul_(-2.0).sqrt_() * angle.mul_(2.0 * torch.pi).cos_()

    def integers(self, high: int, *ids: Values) -> Values:
        """An integer in [0, high) for every combination of ids."""
        x = self.uniform(*ids) * high
        return x.to(torch.int64) if isinstance(x, Tensor) else x.astype(np.int64)

    def torch(self) -> torch.Generator:
        """A fresh CPU generator that starts at this stream's key."""
        return torch.Generator().manual_seed(self.word)

    def numpy(self) -> np.random.Generator:
        """A fresh numpy generator that starts at this stream's key."""
        return np.random.Generator(np.random.Philox(key=self.key % (1 << 64)))
