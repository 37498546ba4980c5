"""Files that are either whole or not there: atomic writing, checksums, canonical JSON, tensors, one writer at a time.

A file is written beside its place under a temporary name, brought to the disk, and renamed. A reader therefore sees the
old content or the new and never a half, whenever the writer is killed. The same content always gives the same bytes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import math
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_in
from safetensors.torch import save as bytes_of
from torch import Tensor

from equipoise.errors import EquipoiseError

_PARTIAL = ".partial"
_METADATA = "equipoise"
_serial = itertools.count()
_HOST = re.sub(r"[^\w.-]", "-", platform.node())  # on shared storage, processes of two machines may have one number

_FULL = "free some space and resume; what was there before is whole"
_DENIED = "check who may write there, or choose another folder"
_HINTS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a file is in the place of a folder",
    errno.EEXIST: "a file is in the place of a folder",
}


@contextmanager
def disk(action: str, path: Path | str) -> Iterator[None]:
    """What the disk refuses becomes an error that a user can read."""
    try:
        yield
    except OSError as e:
        raise EquipoiseError(f"cannot {action} {path}: {e.strerror or e}", _HINTS.get(e.errno or 0, "")) from e


# ---------------------------------------------------------------------------------------------------- bytes and folders


def write_atomic(path: Path | str, data: bytes) -> str:
    """Put `data` at `path`, all of it or nothing; returns its sha256."""
    return write_pieces(path, (data,))


def write_pieces(path: Path | str, pieces: Iterable[bytes | memoryview]) -> str:
    """Put these at `path`, one behind the other, all of them or nothing; returns the sha256 of the whole."""
    path, digest = Path(path), hashlib.sha256()
    temp = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{next(_serial)}{_PARTIAL}")
    with disk("write", path):
        try:
            _write_new(temp, pieces, digest.update)
            os.replace(temp, path)  # noqa: PTH105 - one layer of calls for every file operation
        except BaseException:
            with suppress(OSError):
                os.unlink(temp)  # noqa: PTH108
            raise
        sync_folder(path.parent)
    return digest.hexdigest()


def _write_new(path: Path, pieces: Iterable[bytes | memoryview], seen: Callable[[bytes | memoryview], None]) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - left by a killed process that had our number
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in pieces:
            seen(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk: without it, a rename may be lost when the power goes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot, and need not
            raise
    finally:
        os.close(fd)


def make_folder(path: Path | str) -> Path:
    path = Path(path)
    with disk("make the folder", path):
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            sync_folder(path.parent)
    return path


def remove_folder(path: Path | str) -> None:
    """Remove a folder and what is in it, if it is there."""
    with disk("remove", path):
        if Path(path).exists():
            shutil.rmtree(path)


def remove(path: Path | str) -> None:
    """Remove a file, if it is there."""
    with disk("remove", path):
        Path(path).unlink(missing_ok=True)


def is_partial(name: str) -> bool:
    """Whether this is the name of a file that was never finished."""
    return name.startswith(".") and name.endswith(_PARTIAL)


def clean(folder: Path | str) -> None:
    """Remove what killed writers left behind; only for the one who holds the folder's lock."""
    for path in Path(folder).rglob(f".*{_PARTIAL}"):
        remove(path)


def read_bytes(path: Path | str) -> bytes:
    with disk("read", path):
        return Path(path).read_bytes()


def sha256(path: Path | str) -> str:
    with disk("read", path), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ----------------------------------------------------------------------------------------------------------------- JSON


def _plain(value: Any) -> Any:
    """`value` in JSON's own types; what JSON has no word for (NaN, infinity) becomes null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.ndarray | np.generic | Tensor):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        plain = {str(k): _plain(v) for k, v in value.items()}
        if len(plain) == len(value):
            return plain
        raise EquipoiseError(f"JSON: two keys of {sorted(map(repr, value))} read the same", "use strings as keys")
    raise EquipoiseError(
        f"JSON: cannot write {value!r}, a {type(value).__name__}", "use numbers, text, lists and dicts"
    )


def encode_json(value: Any, indent: int | None = 1) -> bytes:
    """The one way to write `value`: sorted keys, shortest exact floats, ASCII, a newline at the end."""
    return (json.dumps(_plain(value), sort_keys=True, indent=indent, allow_nan=False) + "\n").encode()


def decode_json(data: bytes, where: Path | str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise EquipoiseError(f"{where} is not JSON: {e}", "the file is damaged") from e


def write_json(path: Path | str, value: Any) -> str:
    """Write canonical JSON, atomically; returns its sha256."""
    return write_atomic(path, encode_json(value))


def read_json(path: Path | str) -> Any:
    return decode_json(read_bytes(path), path)


# -------------------------------------------------------------------------------------------------------------- tensors


def encode_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Tensors in the safetensors format; the same tensors always give the same bytes."""
    for name in tensors:
        if name == "__metadata__" or not _is_unicode(name):
            raise EquipoiseError(f"tensors: the name {name!r} cannot be written", "choose another name")
    whole = {k: t.detach().cpu().clone(memory_format=torch.contiguous_format) for k, t in tensors.items()}
    # The format's library writes several metadata keys in random order, so there is one key, holding canonical JSON.
    return bytes_of(whole, {_METADATA: encode_json(metadata or {}, indent=None).decode().strip()})


def _is_unicode(name: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in name)


def decode_tensors(data: bytes, where: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the metadata; nothing in the file is ever executed."""
    try:
        tensors = tensors_in(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return tensors, json.loads(header.get("__metadata__", {}).get(_METADATA, "{}"))
    except Exception as e:  # damage can trip the parser anywhere; it is all the same to the caller
        raise EquipoiseError(f"{where} is not a safetensors file: {e}", "the file is damaged") from e


def write_tensors(path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> str:
    """Write tensors, atomically; returns the file's sha256."""
    return write_atomic(path, encode_tensors(tensors, metadata))


def read_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return decode_tensors(read_bytes(path), path)


# ------------------------------------------------------------------------------------------------------------- the lock


class Lock:
    """The right to write in a folder, for one process at a time. The kernel takes it back when the process dies."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock now, or say who has it."""
        with disk("lock", self.folder):
            fd = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                self._take(fd)
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd

    def _take(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise EquipoiseError(
                f"{self.folder} is being written by another run, process {holder}",
                "wait until it ends, stop it, or choose another folder",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
