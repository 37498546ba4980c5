"""Datasets by name: `load` reads one, `get` downloads it, `where` and `verify` say what this machine has.

Files are looked for in the folder that you name, and only there; or else in EQUIPOISE_DATA/<name>, in the user's cache
folder, and where the system's packages put them. Nothing is downloaded unless you ask for it.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from equipoise.data.catalogue import CATALOGUE, DatasetInfo, Download
from equipoise.data.federation import Dataset
from equipoise.data.find import Found, cache, candidates, folders, lacking, locate, missing
from equipoise.data.formats import digest
from equipoise.data.loaders import LOADERS
from equipoise.errors import EquipoiseError, nearest


def catalogue() -> list[DatasetInfo]:
    """Every dataset that is known by name."""
    return list(CATALOGUE.values())


def _info(name: str) -> DatasetInfo:
    if name not in CATALOGUE:
        raise EquipoiseError(f"unknown dataset {name!r}", nearest(name, CATALOGUE))
    return CATALOGUE[name]


def load(name: str, *, folder: str | Path | None = None, download: bool = False, **options: Any) -> Dataset:
    """The dataset `name`, from files that are on this machine or, with `download`, from the network."""
    found, options = provide(name, folder=folder, download=download, **options)
    return LOADERS[name](found, **options)


def provide(
    name: str, *, folder: str | Path | None = None, download: bool = False, **options: Any
) -> tuple[Found, dict[str, Any]]:
    """Where the files are, and all options, the defaults too; an error, which says what is missing, if they are not."""
    info = _info(name)
    if name not in LOADERS:
        raise EquipoiseError(f"dataset {name!r} is {info.what}", "load mnist, which picks it up as attribute 'writer'")
    options = _complete(name, options)
    found = locate(info, folder, options)
    if found is None and download:
        get(name, folder=folder)
        found = locate(info, folder, options)
    if found is None:
        raise missing(info, folder, options)
    return found, options


def _complete(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The given options and the loader's defaults; a misspelt or mistyped one is an error."""
    takes = list(inspect.signature(LOADERS[name]).parameters.values())[1:]
    defaults = {p.name: p.default for p in takes}
    for key, value in options.items():
        if key not in defaults:
            raise EquipoiseError(
                f"dataset {name}: unknown option {key!r}", nearest(key, [*defaults, "folder", "download"])
            )
        wanted = (str, Path) if defaults[key] is None else (type(defaults[key]),)
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise EquipoiseError(
                f"dataset {name}: option {key} is {value!r}", f"give a value of type {wanted[0].__name__}"
            )
    return {**defaults, **options}


def where(name: str, *, folder: str | Path | None = None) -> Path | None:
    """The folder that holds all files of the dataset, if there is one."""
    found = locate(_info(name), folder)
    return found.folder if found else None


def verify(name: str, *, folder: str | Path | None = None) -> list[tuple[str, str]]:
    """(file, "ok" | "missing" | "differs: ..." | "no checksum known") in the folder that holds most of the dataset."""
    info = _info(name)
    places = [found for found in candidates(info, folder, info.variants) if any(found.paths.values())]
    if not places:
        return [(file.name, "missing") for file in info.variants[0].files if not file.optional]
    best = min(places, key=lambda found: len(lacking(found)))
    return [line for found in places if found.folder == best.folder for line in _statuses(found)]


def _statuses(found: Found) -> list[tuple[str, str]]:
    variant = next(v for v in found.info.variants if v.name == found.variant)
    lines = []
    for file in variant.files:
        paths = found.paths[file.name]
        lines += [(path.name, _status(path, file.check)) for path in paths]
        if not paths and not file.optional:
            lines.append((file.name, "missing"))
    return lines


def _status(path: Path, check: str | None) -> str:
    if check is None:
        return "no checksum known"
    algorithm, _, wanted = check.partition(":")
    try:
        seen = digest(path, algorithm)
    except EquipoiseError as problem:
        return f"differs: unreadable ({problem.message})"
    return "ok" if seen == wanted else f"differs: {algorithm} {seen} instead of {wanted}"


def get(name: str, *, folder: str | Path | None = None) -> Path:
    """Downloads the dataset, into the user's cache folder unless another is given, and checks what came."""
    info = _info(name)
    if info.embedded:
        return next(folders(info))
    if not info.downloads:
        raise EquipoiseError(f"dataset {name}: there is no address to download it from", info.prepare)
    target = Path(folder).expanduser() if folder is not None else cache() / info.folders[-1]
    for download in info.downloads:
        _fetch(name, download, target)
    if wrong := [f"{file}: {status}" for file, status in verify(name, folder=target) if status.startswith("differs")]:
        raise EquipoiseError(f"dataset {name} in {target}: {'; '.join(wrong)}", "delete these files and get them again")
    return where(name, folder=target) or target


def _fetch(name: str, download: Download, target: Path) -> None:
    """From the first address that answers with the right bytes."""
    import pooch  # only needed here: a machine without it still loads what it has

    unpack = pooch.Unzip if download.name.endswith(".zip") else pooch.Untar
    members = list(download.members)
    problems = []
    for url in download.urls:
        processor = unpack(members=members, extract_dir=".") if members else None
        try:
            pooch.retrieve(url, download.check, fname=download.name, path=target, processor=processor)
            return
        except (OSError, ValueError) as problem:
            problems.append(f"\n  {url}: {problem}")
    hint = f"fetch it elsewhere, put its files into {target}, and run `equipoise data verify {name}`"
    raise EquipoiseError(f"dataset {name}: {download.name} could not be downloaded{''.join(problems)}", hint)
