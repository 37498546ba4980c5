"""Runs that several tables have, such as a paper's table and its figure: one measures them, the others take over.

Where nothing is chosen on validation data, two cells with the same settings and seed are one run (`Cell.key`), whatever
their rows and columns are called. Only entries of the very same share of the rounds are taken: a claim compares rows
after equally many. What was taken over is not handed on, so that it does not outlive the numbers that it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from equipoise import files
from equipoise.errors import EquipoiseError
from equipoise.reproduce.record import Entry, Record, final, leave, unfinished
from equipoise.reproduce.tables import Cell, Table

Cells = Mapping[str, Sequence[Cell]]
"""By table."""
Run = tuple[str, int, float]
"""Key, seed and share of the rounds."""


class Shared:
    """What tables of one command run for each other."""

    def __init__(self, out: Path, scales: Sequence[float], tables: Mapping[str, Table], cells: Cells) -> None:
        self.out, self.scales, self.tables = out, scales, tables
        self.cells = {name: [cell for cell in some if len(cell.grid) == 1] for name, some in cells.items()}
        self.begun: dict[tuple[str, int], str] = {}
        """By key and seed: the table that runs it."""

    def go_on(self, records: Mapping[str, Record]) -> None:
        """Let tables that were stopped in a run, and have not measured it since, go on with it."""
        for name, cells in self.cells.items():
            for cell in cells:
                stopped = unfinished(self.out, name, cell, cell.seed).is_dir()
                if stopped and not records[name].has(final(cell, self.scales[0])):
                    self.begun.setdefault((cell.key, cell.seed), name)

    def claims(self, table: Table, cell: Cell) -> bool:
        """Whether this table runs it: who goes on with it does, or else the first that asks, for all others."""
        if len(cell.grid) > 1:
            return True
        owner = self.tables[self.begun.setdefault((cell.key, cell.seed), table.name)]
        return owner is table or not set(table.head.measures) <= set(owner.head.measures)

    def take_over(self, records: Mapping[str, Record]) -> None:
        """Let every table have what others have measured and it has not."""
        for name, cells in self.cells.items():
            record, known = records[name], self._measured(self.tables[name])
            for cell in cells:
                taken = [scale for scale in self.scales if _take(record, known, cell, scale, self.tables[name])]
                if self.scales[0] in taken:
                    self._forget(name, cell)
            record.take_in()

    def _forget(self, name: str, cell: Cell) -> None:
        """What this table was stopped in is measured now."""
        with suppress(EquipoiseError):
            files.remove_folder(unfinished(self.out, name, cell, cell.seed))

    def _measured(self, table: Table) -> Mapping[Run, Entry]:
        """Runs of other tables that have all that this one measures; what cannot be read is passed over."""
        found, wanted = {}, set(table.head.measures)
        for path in sorted(self.out.glob("*/measured/*.json")):
            name = f"{path.parents[1].name}/{path.stem}"
            with suppress(EquipoiseError, KeyError, TypeError):
                for e in files.read_json(path)["entries"] if name != table.name else ():
                    if e["seed"] is not None and "table" not in e and wanted <= e["numbers"].keys():
                        found[e["key"], e["seed"], e["scale"]] = {**e, "table": name}
        return found


def _take(record: Record, known: Mapping[Run, Entry], cell: Cell, scale: float, table: Table) -> bool:
    head, entry = final(cell, scale), known.get((cell.key, cell.seed, scale))
    if entry is None or record.holds(head):
        return False
    own = {measure: entry["numbers"][measure] for measure in table.head.measures}
    rest = {name: value for name, value in entry.items() if name != "within"}  # a row of the other table
    leave(record.inbox, {**rest, **head, "numbers": own})
    return True
