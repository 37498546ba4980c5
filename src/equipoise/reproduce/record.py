"""What was measured for a table, in one file of JSON that is written anew after every run.

An entry says which cell it is of (row, column, seed, and a key made of all its settings), what share of the rounds was
run, the numbers, and with what: commit, device, day; `within` names the row whose run it was measured in, `table` the
table that it was taken over from. Entries of settings that the table has no more are kept and not looked at. A run of a
grid is an entry without a seed, with what was tried and its score on validation data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from equipoise import files
from equipoise.config.parts import Table as Params
from equipoise.reproduce.tables import Cell, Table

Entry = Mapping[str, Any]


class Record:
    """The entries of one table, by what they are of."""

    def __init__(self, table: Table, out: Path) -> None:
        paper, name = table.name.split("/")
        self.path = out / paper / "measured" / f"{name}.json"
        self.inbox = self.path.with_suffix("")
        """Where a run leaves its entry, in a file of its own."""
        known = files.read_json(self.path)["entries"] if self.path.is_file() else []
        self.entries: dict[str, Entry] = {_key(e): e for e in known}
        self.take_in()

    def take_in(self) -> None:
        """Move what lies in the inbox into the record; an entry of the same cell at the same scale is replaced."""
        left = sorted(self.inbox.glob("*.json"))
        if left:
            self.entries |= {_key(e): e for e in map(files.read_json, left)}
            ordered = [self.entries[k] for k in sorted(self.entries)]
            files.write_atomic(self.path, files.encode_json({"entries": ordered}))
        for path in left:
            path.unlink()
        with suppress(OSError):  # it is not there, or not empty: a run is leaving its entry just now
            self.inbox.rmdir()

    def has(self, entry: Entry) -> bool:
        """Whether this was measured, at this scale or a larger one."""
        same = (e for k, e in self.entries.items() if k == _key({**entry, "scale": e["scale"]}))
        return any(e["scale"] >= entry["scale"] for e in same)

    def holds(self, entry: Entry) -> bool:
        """Whether this was measured, at this very scale."""
        return _key(entry) in self.entries

    def chosen(self, cell: Cell, scale: float) -> Params | None:
        """What did best on validation data, the first of equals; None if some of the grid is still to be tried."""
        if len(cell.grid) == 1:
            return cell.grid[0]
        scores = []
        for tried in cell.grid:
            entry = self.entries.get(_key(trial(cell, tried, scale)))
            if entry is None:
                return None
            scores.append(float("-inf") if entry["score"] is None else entry["score"])
        return cell.grid[scores.index(max(scores))]

    def of(self, row: str, column: str, cells: Iterable[Cell]) -> list[Entry]:
        """The runs of a row in a column, whatever their seeds, all at the largest scale that there is."""
        found = self.every(row, column, cells)
        return [e for e in found if e["scale"] == max(e["scale"] for e in found)]

    def every(self, row: str, column: str, cells: Iterable[Cell]) -> list[Entry]:
        """The runs of a row in a column, at all scales."""
        keys = {c.key for c in cells if (c.row, c.column) == (row, column)}
        mine = (e for e in self.entries.values() if (e["row"], e["column"]) == (row, column) and e["key"] in keys)
        return sorted((e for e in mine if e["seed"] is not None), key=lambda e: int(e["seed"]))


def final(cell: Cell, scale: float) -> dict[str, Any]:
    """The head of an entry of a cell."""
    return {"row": cell.row, "column": cell.column, "seed": cell.seed, "key": cell.key, "scale": scale}


def trial(cell: Cell, tried: Params, scale: float) -> dict[str, Any]:
    """The head of an entry of one of a grid's runs."""
    return {**final(cell, scale), "seed": None, "tried": tried}


def unfinished(out: Path, table: str, cell: Cell, seed: int | None) -> Path:
    """Where runs of a cell leave points to go on from; its trials, which end before final runs begin, have no seed."""
    return out / "unfinished" / digest(repr([table, cell.row, cell.column, seed]))


def digest(told: str) -> str:
    """A name for a file or a folder that is told by so much."""
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def leave(inbox: Path, entry: Entry) -> None:
    """Put an entry where its record takes it in."""
    files.make_folder(inbox)
    data = files.encode_json(entry)
    files.write_atomic(inbox / f"{digest(_key(entry))}.json", data)


def _key(entry: Entry) -> str:
    head = {name: entry.get(name) for name in ("row", "column", "seed", "key", "scale", "tried")}
    return files.encode_json(head, indent=None).decode()
