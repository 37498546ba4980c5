"""Ours against theirs: a verdict for every cell, and for everything that the paper claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """Ours in every column where it does not hold."""


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
    for column in claim.columns or table.head.columns:
        own = _mean(ours, row, column, claim.measure)
        others = (
            [claim.than]
            if isinstance(claim.than, int | float)
            else [_mean(ours, name, column, claim.measure) for name in claim.than or table.head.rows if name != row]
        )
        others = [v for v in others if not math.isnan(v)]
        if math.isnan(own) or not others:
            continue
        bound = min(others) - claim.by if claim.less else max(others) + claim.by
        outcomes.append(own <= bound if claim.less else own >= bound)
        if not outcomes[-1]:
            against.append(f"{table.head.columns[column].title}: {own:.4g} against {bound:.4g}")
    if not outcomes:
        return Held(claim, "not measured", "")
    verdict = "holds" if all(outcomes) else "holds in part" if any(outcomes) else "does not hold"
    return Held(claim, verdict, "; ".join(against))


def _mean(ours: dict[tuple[str, str, str], Found], row: str, column: str, measure: str) -> float:
    cell = ours.get((row, column, measure))
    return cell.mean if cell else float("nan")
