"""Points to resume a run from.

A checkpoint is two files in `<run>/checkpoint`: the tensors, then a manifest with the checksums of the tensors, of the
table parts that belong to it, and of itself. It exists only once its manifest does, so a run killed while saving has
the checkpoint before. One that fails any of its checksums is passed over, with a word about it.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise import files, large
from equipoise.core import State
from equipoise.errors import EquipoiseError

_FORMAT = 1
_MANIFEST = re.compile(r"r(\d{6,})\.json")
_FILE = re.compile(r"r(\d{6,})\.(json|safetensors)")
_NAME = "t:"  # before every tensor's name in the file, where the format keeps one name for itself
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on after `round`."""

    round: int
    tensors: Mapping[str, Tensor | large.Pieces]
    """Read from a folder, they lie in its file: nobody should hold on to them who has a memory of their own."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else JSON can hold."""
    parts: tuple[tuple[str, str], ...] = ()
    """(name, sha256) of the files in the run folder that hold the rows up to `round`."""

    @property
    def state(self) -> State:
        """The tensors of one that was read, where nothing is in pieces."""
        return {name: t for name, t in self.tensors.items() if isinstance(t, Tensor)}


def save(folder: Path | str, checkpoint: Checkpoint, keep: int = 2) -> None:
    """Write a checkpoint into the run `folder`; of those up to its round, the newest `keep` stay."""
    if keep < 1 or checkpoint.round < 0:
        raise EquipoiseError(f"checkpoint: keep is {keep}, round is {checkpoint.round}", "keep 1 or more, from round 0")
    place = files.make_folder(Path(folder) / "checkpoint")
    stem = f"r{checkpoint.round:06d}"
    digest = large.write(place / f"{stem}.safetensors", {_NAME + name: t for name, t in checkpoint.tensors.items()})
    body = {
        "format": _FORMAT,
        "round": checkpoint.round,
        "tensors": digest,
        "meta": checkpoint.meta,
        "parts": [list(part) for part in checkpoint.parts],
    }
    files.write_json(place / f"{stem}.json", {**body, "sha256": _seal(body)})
    _prune(place, checkpoint.round, keep)


def load_latest(folder: Path | str, warn: Callable[[str], None] = _log.warning) -> Checkpoint | None:
    """The newest checkpoint of the run `folder` that is whole; `warn` hears of every one that is not."""
    place = Path(folder) / "checkpoint"
    for round in sorted(_rounds(place), reverse=True):
        try:
            return _load(place, round)
        except EquipoiseError as e:
            warn(f"checkpoint of round {round} passed over: {e.message}")
    return None


def _seal(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(files.encode_json(body)).hexdigest()


def _rounds(place: Path) -> list[int]:
    names = [p.name for p in place.iterdir()] if place.is_dir() else []
    return [int(m[1]) for m in map(_MANIFEST.fullmatch, names) if m]


def _prune(place: Path, newest: int, keep: int) -> None:
    # Whatever is newer was passed over when the run was resumed, and would only shadow what is sound.
    stay = sorted(r for r in _rounds(place) if r <= newest)[-keep:]
    for path in sorted(place.iterdir()):  # of one checkpoint, the manifest goes first
        match = _FILE.fullmatch(path.name)
        if match and int(match[1]) not in stay:
            files.remove(path)


def _load(place: Path, round: int) -> Checkpoint:
    path = place / f"r{round:06d}.json"
    body = _manifest(path, round)
    tensors_path = path.with_suffix(".safetensors")
    if files.sha256(tensors_path) != body["tensors"]:
        raise EquipoiseError(f"{tensors_path} is not what was written", "the file is damaged")
    parts = tuple((str(name), str(digest)) for name, digest in body["parts"])
    for name, digest in parts:
        if files.sha256(place.parent / name) != digest:
            raise EquipoiseError(f"{place.parent / name} is not what was written", "the file is damaged")
    tensors = large.read(tensors_path)
    return Checkpoint(round, {k.removeprefix(_NAME): t for k, t in tensors.items()}, body["meta"], parts)


def _manifest(path: Path, round: int) -> dict[str, Any]:
    damaged = EquipoiseError(f"{path} is not what was written", "the file is damaged")
    data = files.read_bytes(path)
    whole = files.decode_json(data, path)
    # The bytes are compared too: a changed space would leave the content, and so its checksum, the same.
    if not isinstance(whole, dict) or files.encode_json(whole) != data:
        raise damaged
    body = {k: v for k, v in whole.items() if k != "sha256"}
    if whole.get("sha256") != _seal(body) or body.get("round") != round:
        raise damaged
    if body.get("format") != _FORMAT:
        raise EquipoiseError(f"{path} has format {body.get('format')}, not {_FORMAT}", "written by another version")
    return body


# ------------------------------------------------------------------------------------------------------- nested states


def flatten(nested: Mapping[str, Any]) -> dict[str, Tensor]:
    """{"a": {"b": t}} -> {"a/b": t}. In keys, "~" is written "~0" and "/" is written "~1"; "a/~" is an empty dict."""
    return dict(_walk(nested, ()))


def _walk(nested: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    if above and not nested:
        yield "/".join((*above, "~")), torch.empty(0)
    for key, value in nested.items():
        if not isinstance(key, str):
            raise EquipoiseError(f"state: the key {key!r} is a {type(key).__name__}", "keys of a state are strings")
        path = (*above, key.replace("~", "~0").replace("/", "~1"))
        if isinstance(value, Tensor):
            yield "/".join(path), value
        elif isinstance(value, Mapping):
            yield from _walk(value, path)
        else:
            raise EquipoiseError(f"state: {'/'.join(path)} is a {type(value).__name__}", "a state holds tensors only")


def unflatten(flat: Mapping[str, Tensor]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    nested: dict[str, Any] = {}
    for name, value in sorted(flat.items()):  # a tensor comes before the names that would lie inside it
        *above, last = name.split("/")
        place = nested
        for key in above:
            place = place.setdefault(key.replace("~1", "/").replace("~0", "~"), {})
            if not isinstance(place, dict):
                raise EquipoiseError(f"state: {name} lies inside a tensor", "a name is a tensor or a group, not both")
        if last != "~":
            place[last.replace("~1", "/").replace("~0", "~")] = value
    return nested
