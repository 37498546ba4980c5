"""What must be the same at the server and at every node: parts of one's own, and the settings that nodes work by.

Parts of one's own are .py files in the app's folder own/. They are code, and come with the app and in no other way:
every file in that folder is loaded, and no name in a config and nothing in a message leads to one. Settings are read
from the app's run.toml, by the server and by every node from a copy of its own. What the server says of both is
compared with what is here; data.py is the site's own matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise import config as configs
from equipoise import files, registry
from equipoise.engine.messages import Parcel
from equipoise.engine.post import Post
from equipoise.errors import EquipoiseError

FOLDER = "own"
_FACT = "app"
_SECTIONS = ("data", "method", "model", "train", "run")
_OF_RUN = ("seed", "dtype", "precision")
"""What nodes use of [run]; the rest of it, and other sections, are for the server alone."""


def gathered(own: Iterable[Path]) -> dict[str, bytes]:
    """Make the parts in these files known; their contents by file name. What cannot be deployed is an error."""
    found: dict[str, bytes] = {}
    homes: dict[str, Path] = {}
    for path in own:
        entry = registry.load_file(path)
        if entry.kind == "attacks":
            hint = "leave it out: nobody at a real site plays an attacker; try attacks with equipoise run"
            raise EquipoiseError(f"{path}: {entry.name!r} is an attack, and deployed runs have none", hint)
        if path.name.startswith("test_") or path.stem.endswith("_test"):
            hint = "Flower takes it for a test, and leaves it out of the app: give the file, and its part, another name"
            raise EquipoiseError(f"{path}: a deployed run cannot have a file called {path.name!r}", hint)
        if entry.name in homes:
            hint = "give one of the files, and its part, another name"
            raise EquipoiseError(f"{path}: {entry.name!r} is also in {homes[entry.name]}", hint)
        homes[entry.name], found[path.name] = path, files.read_bytes(path)
    return found


def load(config: Path) -> None:
    """Make the parts of the app with this config known: before the config, which may name them, is read."""
    for path in _held(config):
        registry.load_file(path)


def announced(post: Post, config: Path) -> Post:
    """A post whose messages say which parts and settings the server has."""
    told = files.encode_json(_prints(config), None).decode()

    def carry(letters: Mapping[int, Parcel]) -> Mapping[int, Parcel | str]:
        return post({k: replace(p, facts={**p.facts, _FACT: told}) for k, p in letters.items()})

    return carry


def compare(config: Path, parcel: Parcel) -> None:
    """An error that names the files and sections in which this node and the server, whose message this is, differ."""
    told = str(parcel.facts.get(_FACT, "{}"))
    here, there = _prints(config), files.decode_json(told.encode(), "the server's message")
    if here == there:
        return
    hint = f"at this node, remove {config.parent.parent}: the server's app comes anew with the next message"
    if not isinstance(there, dict):
        raise EquipoiseError(f"the server's message says of its app {there!r:.100}", hint)
    found = [_difference(name, here.get(name), there.get(name)) for name in sorted({*here, *there})]
    raise EquipoiseError("; ".join(line for line in found if line), hint)


def _difference(name: str, here: str | None, there: object) -> str:
    if here == there:
        return ""
    if here is None:
        return f"{name} is at the server, and not at this node"
    if there is None:
        return f"{name} is at this node, and not at the server"
    return f"{name} is not the server's: sha256 {here[:12]}... here, {there!s:.12}... there"


def _prints(config: Path) -> dict[str, str]:
    """A checksum of every file of one's own, and of every section of the config that nodes use."""
    own = {f"{FOLDER}/{path.name}": files.sha256(path) for path in _held(config)}
    return own | {f"[{name}] in {config.name}": _print(told) for name, told in _settings(config).items()}


def _print(value: object) -> str:
    return hashlib.sha256(files.encode_json(value)).hexdigest()


def _settings(config: Path) -> dict[str, Any]:
    """What nodes use of the config, as it is written there: its parts are not to be loaded before they are compared."""
    try:
        raw = configs.parse(configs.read_text(config))
    except EquipoiseError as error:
        raise EquipoiseError(f"{config}: {error.message}", error.hint) from error
    if isinstance(raw.get("run"), dict):
        raw["run"] = {k: v for k, v in raw["run"].items() if k in _OF_RUN}
    return {name: raw[name] for name in _SECTIONS if name in raw}


def _held(config: Path) -> list[Path]:
    return sorted(config.with_name(FOLDER).glob("*.py"))
