"""Ours against theirs: a verdict for every cell, and for everything that the paper claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.reproduce.record import Entry, Record
from equipoise.reproduce.tables import Claim, Table


@dataclass(frozen=True)
class Found:
    """One measure of one row in one column: ours over seeds, and theirs."""

    row: str
    column: str
    measure: str
    values: tuple[float, ...]
    published: float | None
    within: float | None
    entries: Sequence[Entry]
    every: Sequence[Entry]
    """At other shares of the rounds too."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else float("nan")

    @property
    def deviation(self) -> float:
        """The sample's; NaN for one seed."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else float("nan")

    @property
    def verdict(self) -> str:
        """As near as the table asks for, or within two standard errors: "agrees"."""
        if not self.values:
            return "not measured"
        if self.published is None or self.within is None:
            return ""
        error = 0.0 if math.isnan(self.deviation) else 2 * self.deviation / math.sqrt(len(self.values))
        if abs(self.mean - self.published) <= max(self.within, error):
            return "agrees"
        return "higher" if self.mean > self.published else "lower"


@dataclass(frozen=True)
class Held:
    """Whether a claim holds, column by column."""

    claim: Claim
    verdict: str
    why: str
    """Ours in every column where it does not hold; and what was not compared, as numbers of rounds differ."""


def found(table: Table, record: Record) -> dict[tuple[str, str, str], Found]:
    """By row, column and measure."""
    out = {}
    for row, column in {(c.row, c.column): None for c in table.cells}:
        entries, every = record.of(row, column, table.cells), record.every(row, column, table.cells)
        for m in table.head.measures:
            values = tuple(e["numbers"][m] for e in entries if e["numbers"].get(m) is not None)
            published = table.published.get((row, column), {}).get(m)
            out[row, column, m] = Found(row, column, m, values, published, table.head.within.get(m), entries, every)
    return out


def held(table: Table, ours: dict[tuple[str, str, str], Found]) -> list[Held]:
    return [_held(claim, table, ours) for claim in table.head.claims]


def _held(claim: Claim, table: Table, ours: dict[tuple[str, str, str], Found]) -> Held:
    row = claim.less or claim.more or ""
    outcomes: list[bool] = []
    against: list[str] = []
    unlike: list[str] = []
    names = [None] if isinstance(claim.than, int | float) else claim.than or list(table.head.rows)
    for column in claim.columns or table.head.columns:
        for name in (n for n in names if n != row):
            if name is not None and _unlike(ours, claim.measure, column, row, name):
                unlike.append(f"{table.head.columns[column].title}, {table.head.rows[name].title}")
        pairs = [_paired(ours, row, name, column, claim) for name in names if name != row]
        pairs = [(own, other) for own, other in pairs if not math.isnan(own + other)]
        if not pairs:
            continue
        sign = 1 if claim.less else -1
        own, other = max(pairs, key=lambda pair: sign * (pair[0] - pair[1]))  # the hardest to beat
        bound = other - sign * claim.by
        outcomes.append(sign * own <= sign * bound)
        if not outcomes[-1]:
            against.append(f"{table.head.columns[column].title}: {own:.4g} against {bound:.4g}")
    if unlike:
        against.append(f"not compared, as the numbers of rounds differ: {'; '.join(unlike)}")
    verdict = "holds" if all(outcomes) and not unlike else "holds in part" if any(outcomes) else "does not hold"
    return Held(claim, verdict if outcomes else "not measured", "; ".join(against))


def _paired(
    ours: dict[tuple[str, str, str], Found], row: str, other: str | None, column: str, claim: Claim
) -> tuple[float, float]:
    """The means of two rows over the seeds that both have, or over all of each if they share none.

    Both after the same share of the rounds, the largest that both have; NaN if there is none.
    """
    rows = [row] if other is None else [row, other]
    runs = [_runs(ours, name, column, claim.measure) for name in rows]
    both = set.intersection(*map(set, runs))
    own, *others = (r[max(both)] if both else {} for r in runs)
    if other is None:
        return _mean(own.values()), float(claim.than)  # type: ignore[arg-type]
    seeds = own.keys() & others[0].keys()
    if not seeds:
        return _mean(own.values()), _mean(others[0].values())
    return _mean(own[s] for s in seeds), _mean(others[0][s] for s in seeds)


def _unlike(ours: dict[tuple[str, str, str], Found], measure: str, column: str, *rows: str) -> bool:
    """Whether these rows were run, but never for the same share of their rounds."""
    scales = [set(_runs(ours, row, column, measure)) for row in rows]
    return all(scales) and not set.intersection(*scales)


def _runs(
    ours: dict[tuple[str, str, str], Found], row: str, column: str, measure: str
) -> dict[float, dict[int, float]]:
    """What was measured of a row, by the share of the rounds and the seed."""
    cell, out = ours.get((row, column, measure)), {}  # type: ignore[var-annotated]
    for e in cell.every if cell else ():
        if e["numbers"].get(measure) is not None:
            out.setdefault(e["scale"], {})[e["seed"]] = e["numbers"][measure]
    return out


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else float("nan")
