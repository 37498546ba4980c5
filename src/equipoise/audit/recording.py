"""Tells a tracker of a finished audit: every cell is a run there, with its curves and its final measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.audit.data import MEASURES, AuditData
from equipoise.audit.plan import cell_name
from equipoise.results import Table
from equipoise.tracking import Tracked, Tracker


def record(data: AuditData, tracker: Tracker) -> None:
    """One tracked run per cell; a failed one has no measures, and is told as not having come to its end."""
    methods, attacks = ({card.name: card.parameters for card in cards} for cards in (data.methods, data.attacks))
    for cell in _rows(data.cells):
        key = {name: cell[name] for name in ("method", "attack", "seed")}
        own = {"of_method": methods[cell["method"]], "of_attack": attacks[cell["attack"]]}
        with Tracked(tracker, cell_name(**key), {**key, **own, **data.scenario}) as told:
            for found in _rows(data.curves.filter(**key)) if len(data.curves) else ():
                told.log({name: value for name, value in found.items() if name not in key})
            if cell["status"] == "done":
                told.done({name: cell[name] for name in MEASURES})


def _rows(table: Table) -> list[Mapping[str, Any]]:
    columns = {name: table[name].tolist() for name in table}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
