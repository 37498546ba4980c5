"""Readers of the file formats that datasets come in. Every reader takes plain and gzipped files alike.

Files are not trusted: nothing in them is executed, no header makes a reader allocate more than the file holds, and
whatever is wrong is told as an EquipoiseError that names the file.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import EquipoiseError

_CHUNK = 1 << 20
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def broken(path: Path, why: str, hint: str = "") -> EquipoiseError:
    """The error for a file that cannot be read."""
    return EquipoiseError(f"{path}: {why}", hint or "the file is damaged or not what its name says; fetch it again")


# ------------------------------------------------------------------------------------------------------- bytes


@contextmanager
def plain(path: Path) -> Iterator[BinaryIO]:
    """The uncompressed bytes of a file. Its first bytes tell whether it is gzipped; browsers rename and unpack."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else nullcontext(raw) as stream:
                yield cast(BinaryIO, stream)
    except (OSError, EOFError, zlib.error) as problem:
        raise broken(path, str(problem)) from problem


def take(stream: IO[bytes], limit: int | None = None) -> bytearray:
    """Up to `limit` bytes, in chunks: asking a stream for a gigabyte allocates one even where ten bytes are left."""
    body = bytearray()
    while limit is None or len(body) < limit:
        chunk = stream.read(_CHUNK if limit is None else min(_CHUNK, limit - len(body)))
        if not chunk:
            break
        body += chunk
    return body


def content(path: Path) -> bytearray:
    """All uncompressed bytes of a file."""
    with plain(path) as stream:
        return take(stream)


def digest(path: Path, algorithm: str) -> str:
    """The checksum of a file's uncompressed bytes: gzip headers differ between sources, the content does not."""
    total = hashlib.new(algorithm, usedforsecurity=False)
    with plain(path) as stream:
        while chunk := stream.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


# ------------------------------------------------------------------------------------------------------ arrays


def _array(path: Path, body: bytearray, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any = "C") -> NDArray[Any]:
    """`body` as an array, provided that it holds exactly what `shape` promises."""
    size = math.prod(shape) * dtype.itemsize
    if len(body) != size:
        found = f"more than {size}" if len(body) > size else f"only {len(body)}"
        raise broken(path, f"promises an array of shape {shape}, {size} bytes, but holds {found}")
    try:
        return np.frombuffer(body, dtype).reshape(shape, order=order)
    except ValueError as problem:
        raise broken(path, f"promises an array of shape {shape}: {problem}") from problem


def read_idx(path: Path) -> NDArray[Any]:
    """An IDX file (MNIST and its family): two zero bytes, a type, the number of dimensions, their sizes, the data."""
    with plain(path) as stream:
        magic = bytes(take(stream, 4))
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES or magic[3] == 0:
            raise broken(path, f"starts with bytes [{magic.hex(' ')}], which is not how an IDX file starts")
        sizes = bytes(take(stream, 4 * magic[3]))
        if len(sizes) < 4 * magic[3]:
            raise broken(path, f"ends within its head, which promises {magic[3]} dimensions")
        shape, dtype = struct.unpack(f">{magic[3]}I", sizes), np.dtype(_IDX_TYPES[magic[2]])
        body = take(stream, math.prod(shape) * dtype.itemsize + 1)
    return _array(path, body, dtype, shape).astype(dtype.newbyteorder("="), copy=False)


def read_cifar(path: Path, labels: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """CIFAR's binary version: per image, `labels` label bytes and 3 x 32 x 32 pixels. Images and labels [n, labels]."""
    body, width = content(path), labels + 3072
    if len(body) == 0 or len(body) % width:
        raise broken(path, f"holds {len(body)} bytes, which is no multiple of {width}, the size of an image")
    rows = np.frombuffer(body, np.uint8).reshape(-1, width)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, :labels]


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file; Python objects are refused, since reading them would run code."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _npy(path, archive, name) for name in archive.namelist()}
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as problem:
        raise broken(path, f"cannot be read as .npz: {problem}") from problem


def _npy(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"array {name} has format version {version}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        if dtype.hasobject:
            hint = "save numbers, such as np.asarray(x, dtype=np.float32); number texts from 0, alike in all files"
            raise broken(path, f"array {name.removesuffix('.npy')!r} holds Python objects", hint)
        body = take(stream, math.prod(shape) * dtype.itemsize + 1)
    return _array(path, body, dtype, shape, "F" if fortran else "C")


# -------------------------------------------------------------------------------------------------------- text


def text(path: Path, encoding: str = "utf-8") -> str:
    """The file as text."""
    try:
        return content(path).decode(encoding)
    except UnicodeDecodeError as problem:
        raise broken(path, f"is not {encoding} text: {problem}") from problem


def read_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """The non-empty lines of a text file. Only a line feed ends a line: splitlines also stops at latin-1 marks."""
    lines = [line.strip() for line in text(path, encoding).split("\n")]
    found = [line for line in lines if line]
    if not found:
        raise broken(path, "holds no text")
    return found


def read_table(path: Path, columns: int) -> list[list[str]]:
    """The rows of a CSV file with this many columns; blank lines and lines that start with | are left out."""
    try:
        rows = list(csv.reader(io.StringIO(text(path), newline=""), skipinitialspace=True, strict=True))
    except csv.Error as problem:
        raise broken(path, f"is not a CSV file: {problem}") from problem
    found = []
    for number, row in enumerate(rows, 1):
        if not any(row) or row[0].startswith("|"):
            continue
        if len(row) != columns:
            raise broken(path, f"row {number} has {len(row)} columns instead of {columns}")
        found.append([value.strip() for value in row])
    if not found:
        raise broken(path, "holds no rows")
    return found


def read_leaf(path: Path) -> dict[str, tuple[list[Any], list[Any]]]:
    """A JSON file of the LEAF benchmark: {user: (x, y)} from {"users": [...], "user_data": {user: {"x", "y"}}}."""
    try:
        whole = json.loads(text(path))
    except (ValueError, RecursionError) as problem:
        raise broken(path, f"is not JSON: {problem}") from problem
    users = whole.get("users") if isinstance(whole, dict) else None
    held = whole.get("user_data") if isinstance(whole, dict) else None
    if not isinstance(users, list) or not isinstance(held, dict):
        raise broken(path, 'has no "users" list and "user_data" object, as LEAF\'s files do')
    return {str(user): _pair(path, user, held.get(str(user))) for user in users}


def _pair(path: Path, user: object, data: object) -> tuple[list[Any], list[Any]]:
    x, y = (data.get("x"), data.get("y")) if isinstance(data, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list):
        raise broken(path, f'user {user!r} has no lists "x" and "y"')
    if len(x) != len(y):
        raise broken(path, f"user {user!r} has {len(x)} samples but {len(y)} labels")
    return x, y


def numbers(path: Path, values: object, what: str, width: int | None = None) -> NDArray[np.float64]:
    """Numbers that came as text or JSON, as an array [n] or, with a width, [n, width]; all of them finite."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as problem:
        raise broken(path, f"{what}: not numbers, or rows of different lengths ({problem})") from problem
    if found.ndim != (1 if width is None else 2) or (width is not None and found.shape[1] != width):
        raise broken(path, f"{what}: has shape {found.shape} instead of {'[n]' if width is None else f'[n, {width}]'}")
    if not np.isfinite(found).all():
        raise broken(path, f"{what}: holds NaN or infinity")
    return found
