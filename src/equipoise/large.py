"""Files of tensors that may be too large for a memory to hold twice: written piece by piece, read where they lie.

They are in the safetensors format, like all of ours. To write one takes the memory of a piece; to read one takes none,
until somebody looks at a number: the file is mapped, and what is taken over from it is read in passing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from equipoise import files
from equipoise.errors import EquipoiseError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNED = 8  # bytes: no number that we write is longer
_AT_ONCE = 1 << 26  # bytes of a tensor


@dataclass(frozen=True)
class Pieces:
    """A tensor in pieces that follow each other along its first dimension, made when they are asked for."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    each: Callable[[], Iterable[Tensor]]


def whole(tensors: Mapping[str, Tensor | Pieces]) -> dict[str, Tensor]:
    """These tensors, each in one piece."""
    return {name: _whole(t) if isinstance(t, Pieces) else t for name, t in tensors.items()}


def size(tensors: Mapping[str, Tensor | Pieces]) -> int:
    """Their bytes."""
    return sum(math.prod(t.shape) * t.dtype.itemsize for t in tensors.values())


def _whole(pieces: Pieces) -> Tensor:
    out, at = torch.empty(pieces.shape, dtype=pieces.dtype), 0
    for piece in pieces.each():
        out[at : at + len(piece)] = piece
        at += len(piece)
    return out


def write(path: Path | str, tensors: Mapping[str, Tensor | Pieces]) -> str:
    """Write tensors, atomically; returns the file's sha256. The same tensors always give the same bytes."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # so that all are aligned

    def bytes_of() -> Iterator[bytes | memoryview]:
        yield _header({name: tensors[name] for name in order})
        for name in order:
            given = tensors[name]
            for piece in given.each() if isinstance(given, Pieces) else (given,):
                yield from _bytes(piece)

    return files.write_pieces(path, bytes_of())


def _header(tensors: Mapping[str, Tensor | Pieces]) -> bytes:
    told, at = dict[str, Any](), 0
    for name, t in tensors.items():
        if t.dtype not in _NAMES:
            raise EquipoiseError(f"tensors: {name} is {t.dtype}", f"use one of {', '.join(map(str, _NAMES))}")
        end = at + math.prod(t.shape) * t.dtype.itemsize
        told[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _bytes(t: Tensor) -> Iterator[memoryview]:
    flat = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    for part in torch.split(flat, _AT_ONCE) if len(flat) else ():
        yield part.numpy().data


def read(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a file, where they lie in it: the file may go, but must not be written to meanwhile."""
    try:
        with files.disk("read", path), safe_open(path, "pt") as held:
            return {name: held.get_tensor(name) for name in held.keys()}  # noqa: SIM118 - it is no dictionary
    except (SafetensorError, RuntimeError, ValueError) as e:
        raise EquipoiseError(f"{path} is not a safetensors file: {e}", "the file is damaged") from e
