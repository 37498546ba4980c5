"""Runs that several tables have, such as a paper's table and its figure: one measures them, the others take over.

Where nothing is chosen on validation data, two cells with the same settings and seed are one run (`Cell.key`), whatever
their rows and columns are called. Only entries of the very same share of the rounds are taken: a claim compares rows
after equally many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise import files
from equipoise.reproduce.record import Entry, Record, final, leave
from equipoise.reproduce.tables import Cell, Table


class Shared:
    """What tables of one command run for each other."""

    def __init__(self, out: Path, scales: Sequence[float]) -> None:
        self.out, self.scales = out, scales
        self.begun: dict[tuple[str, int], tuple[str, frozenset[str]]] = {}
        """By key and seed: the table that runs it, and what that measures."""

    def left_to(self, table: Table, cell: Cell) -> bool:
        """Whether another table of this command runs it; if none does yet, this one will."""
        if len(cell.grid) > 1:
            return False
        measures = frozenset(table.head.measures)
        owner, has = self.begun.setdefault((cell.key, cell.seed), (table.name, measures))
        return owner != table.name and measures <= has

    def take_over(self, table: Table, record: Record, cells: Sequence[Cell]) -> None:
        """Take over what other tables have measured and this one has not."""
        known = self._measured(table)
        for cell in cells if known else ():
            for scale in self.scales if len(cell.grid) == 1 else ():
                head, entry = final(cell, scale), known.get((cell.key, cell.seed, scale))
                numbers = (entry or {}).get("numbers", {})
                if entry and not record.has(head) and numbers.keys() >= set(table.head.measures):
                    own = {measure: numbers[measure] for measure in table.head.measures}
                    leave(record.inbox, {**entry, **head, "numbers": own})
        record.take_in()

    def _measured(self, table: Table) -> Mapping[tuple[str, int, float], Entry]:
        """All entries of other tables, each with the name of its table."""
        found = {}
        for path in sorted(self.out.glob("*/measured/*.json")):
            name = f"{path.parents[1].name}/{path.stem}"
            for entry in files.read_json(path)["entries"] if name != table.name else ():
                if entry["seed"] is not None:
                    # an entry that was itself taken over keeps the name of the table that ran it
                    found[entry["key"], entry["seed"], entry["scale"]] = {"table": name, **entry}
        return found
