"""Runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.results.result import Result
from equipoise.results.rows import table_of, typed
from equipoise.results.table import Table

_HEADLINE = ("accuracy_mean", "accuracy_std", "worst_10", "best_10", "angle")


def compare(results: Sequence[Result]) -> Table:
    """One row per run: which it was, then every number of its summary; what a run does not have is missing."""
    rows = [{**_numbers(r.summary()), **_identity(r, i)} for i, r in enumerate(results)]
    first = ["run", "method", "attack", "seed", *(n for n in _HEADLINE if any(n in row for row in rows))]
    return table_of(typed(rows, [*first, *sorted({n for row in rows for n in row} - set(first))]))


def _identity(result: Result, number: int) -> dict[str, Any]:
    known = {**result.config, **result.summary()}
    run = known.get("run")
    seed = known.get("seed", run.get("seed") if isinstance(run, Mapping) else None)
    named = {k: _name_of(known.get(k)) for k in ("method", "attack")}
    return {"run": result.path.name if result.path else str(number), **named, "seed": seed}


def _name_of(part: Any) -> str | None:
    if isinstance(part, Mapping):
        part = part.get("name")
    return part if isinstance(part, str) else None


def _numbers(summary: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in summary.items():
        if isinstance(value, Mapping):
            found.update(_numbers(value, f"{above}{name}."))
        elif value is None or isinstance(value, bool | int | float):
            found[above + name] = value
    return found
