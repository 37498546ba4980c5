"""Parts of one's own in a deployed run: .py files in the app's folder own/, the same at the server and at every node.

They are code, and come with the app and in no other way: every file in that folder is loaded, and no name in a config
and nothing in a message leads to one. What the server says of its files is compared with those that are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from equipoise import files, registry
from equipoise.engine.messages import Parcel
from equipoise.engine.post import Post
from equipoise.errors import EquipoiseError

FOLDER = "own"
_FACT = "own"


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
    """A post whose messages say which parts the server has."""
    told = files.encode_json(_prints(config), None).decode()

    def carry(letters: Mapping[int, Parcel]) -> Mapping[int, Parcel | str]:
        return post({k: replace(p, facts={**p.facts, _FACT: told}) for k, p in letters.items()})

    return carry


def compare(config: Path, parcel: Parcel) -> None:
    """An error that names the files in which this node and the server, whose message this is, differ."""
    told = str(parcel.facts.get(_FACT, "{}"))
    here, there = _prints(config), files.decode_json(told.encode(), "the server's message")
    if here == there:
        return
    hint = f"at this node, remove {config.parent.parent}: the server's app comes anew with the next message"
    if not isinstance(there, dict):
        raise EquipoiseError(f"the server's message says of its own parts {there!r:.100}", hint)
    found = [_difference(name, here.get(name), there.get(name)) for name in sorted({*here, *there})]
    raise EquipoiseError("; ".join(line for line in found if line), hint)


def _difference(name: str, here: str | None, there: object) -> str:
    if here == there:
        return ""
    if here is None:
        return f"{FOLDER}/{name} is at the server, and not at this node"
    if there is None:
        return f"{FOLDER}/{name} is at this node, and not at the server"
    return f"{FOLDER}/{name} is not the server's file: sha256 {here[:12]}... here, {there!s:.12}... there"


def _prints(config: Path) -> dict[str, str]:
    return {path.name: files.sha256(path) for path in _held(config)}


def _held(config: Path) -> list[Path]:
    return sorted(config.with_name(FOLDER).glob("*.py"))
