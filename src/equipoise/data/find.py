"""Where a dataset's files lie on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from equipoise.data.catalogue import DatasetInfo, File, Variant
from equipoise.errors import EquipoiseError

SYSTEM = (Path("/usr/share/datasets"),)
"""Where Debian's packages put datasets (dataset-fashion-mnist, for one)."""

Paths = Mapping[str, list[Path]]


@dataclass(frozen=True)
class Found:
    """A dataset's files, in one of its forms; a file that is optional and absent has no paths."""

    info: DatasetInfo
    variant: str
    folder: Path
    paths: Paths

    def one(self, name: str) -> Path:
        return self.paths[name][0]


def cache() -> Path:
    """The user's own folder for downloads."""
    try:
        import pooch
    except ImportError:  # it only downloads; a machine without it still loads what lies there
        return Path.home() / ".cache" / "equipoise"
    return Path(pooch.os_cache("equipoise"))


def folders(info: DatasetInfo, folder: str | Path | None = None) -> Iterator[Path]:
    """Where to look, in order. A folder that the user names is the only one: nothing else is loaded in its place."""
    if info.embedded:
        yield Path(str(resources.files("equipoise.data") / "files"))
    elif folder is not None:
        yield Path(folder).expanduser()
    else:
        if root := os.environ.get("EQUIPOISE_DATA"):
            yield from (Path(root).expanduser() / name for name in info.folders)
        yield from (root / name for root in (cache(), *SYSTEM) for name in info.folders)


def _match(folder: Path, file: File) -> list[Path]:
    names = (file.name, f"{file.name}.gz")
    try:
        if "*" in file.name:
            return sorted(path for name in names for path in folder.glob(name))
        return [path for name in names if (path := folder / name).is_file()][:1]
    except OSError:
        return []


def candidates(info: DatasetInfo, folder: str | Path | None, variants: tuple[Variant, ...]) -> Iterator[Found]:
    """Every place and form, complete or not."""
    for root in folders(info, folder):
        for variant in variants:
            for under in variant.under:
                place = root / under
                yield Found(info, variant.name, place, {f.name: _match(place, f) for f in variant.files})


def lacking(found: Found) -> list[File]:
    """The files that are not there."""
    variant = next(v for v in found.info.variants if v.name == found.variant)
    return [f for f in variant.files if not f.optional and not found.paths[f.name]]


def fitting(info: DatasetInfo, options: Mapping[str, Any]) -> tuple[Variant, ...]:
    """The forms that serve these options."""
    return tuple(v for v in info.variants if all(options.get(key, value) == value for key, value in v.only))


def locate(
    info: DatasetInfo, folder: str | Path | None = None, options: Mapping[str, Any] | None = None
) -> Found | None:
    """The first place that holds the whole dataset."""
    places = candidates(info, folder, fitting(info, options or {}))
    return next((found for found in places if not lacking(found)), None)


def missing(info: DatasetInfo, folder: str | Path | None, options: Mapping[str, Any]) -> EquipoiseError:
    """What is not there, where it was looked for, and what to do about it."""
    places = list(candidates(info, folder, fitting(info, options)))
    nearest = max(places, key=lambda found: sum(map(bool, found.paths.values())))  # the first of the best
    files = "".join(f"\n  {f.name} ({f.check or 'no checksum known'})" for f in lacking(nearest))
    searched = list(folders(info, folder))
    looked = "".join(f"\n  {path}" for path in searched)
    get = f"run `equipoise data get {info.name}`, or" if info.downloads else f"{info.prepare}, and"
    hint = f"{get} put the files, plain or gzipped, into {searched[0]}"
    return EquipoiseError(f"dataset {info.name}: missing files{files}\nsearched in{looked}", hint)
