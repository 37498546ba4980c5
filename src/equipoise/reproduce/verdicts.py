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
        entries = record.of(row, column, table.cells)
        for m in table.head.measures:
            values = tuple(e["numbers"][m] for e in entries if e["numbers"].get(m) is not None)
            published = table.published.get((row, column), {}).get(m)
            out[row, column, m] = Found(row, column, m, values, published, table.head.within.get(m), entries)
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
        others = [name for name in names if name != row]
        apart = [n for n in others if n is not None and _unlike(ours, claim.measure, column, row, n)]
        unlike += [f"{table.head.columns[column].title}, {table.head.rows[n].title}" for n in apart]
        pairs = [_paired(ours, row, name, column, claim) for name in others if name not in apart]
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
    verdict = "holds" if all(outcomes) else "holds in part" if any(outcomes) else "does not hold"
    return Held(claim, verdict if outcomes else "not measured", "; ".join(against))


def _unlike(ours: dict[tuple[str, str, str], Found], measure: str, column: str, *rows: str) -> bool:
    """Whether these rows were run for different shares of their rounds."""
    cells = [ours.get((row, column, measure)) for row in rows]
    return len({e["scale"] for cell in cells if cell for e in cell.entries}) > 1


def _paired(
    ours: dict[tuple[str, str, str], Found], row: str, other: str | None, column: str, claim: Claim
) -> tuple[float, float]:
    """The means of two rows over the seeds that both have, or over all of each if they share none."""
    own = _by_seed(ours, row, column, claim.measure)
    if other is None:
        return _mean(own.values()), float(claim.than)  # type: ignore[arg-type]
    theirs = _by_seed(ours, other, column, claim.measure)
    both = own.keys() & theirs.keys()
    if not both:
        return _mean(own.values()), _mean(theirs.values())
    return _mean(own[s] for s in both), _mean(theirs[s] for s in both)


def _by_seed(ours: dict[tuple[str, str, str], Found], row: str, column: str, measure: str) -> dict[int, float]:
    cell = ours.get((row, column, measure))
    numbers = {e["seed"]: e["numbers"].get(measure) for e in cell.entries} if cell else {}
    return {seed: value for seed, value in numbers.items() if value is not None}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else float("nan")
