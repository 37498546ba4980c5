"""Ours against theirs: a verdict for every cell, and for everything that the paper claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equipoise.reproduce.record import Entry, Record
from equipoise.reproduce.tables import Claim, Table

_MISSING, _NONE, _UNLIKE = "not measured", "no such number", "not compared, as the numbers of rounds differ"
_FEW = 4  # comparisons that are named one by one


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
        """As near as the table asks for: "agrees". Farther, but within two standard errors: these seeds do not tell."""
        if not self.values:
            return "not measured"
        if self.published is None or self.within is None:
            return ""
        error = 0.0 if math.isnan(self.deviation) else 2 * self.deviation / math.sqrt(len(self.values))
        if abs(self.mean - self.published) <= self.within:
            return "agrees"
        if abs(self.mean - self.published) <= error:
            return "undecided"
        return "higher" if self.mean > self.published else "lower"


@dataclass(frozen=True)
class Held:
    """Whether a claim holds, column by column."""

    claim: Claim
    verdict: str
    why: str
    """Ours in every column where it does not hold, and what was not compared."""
    pairs: Sequence[Pair] = ()
    """All that was compared."""
    each: Sequence[Sequence[bool]] = ()
    """By column: whether it holds of all that was compared, for every seed that all of it has."""

    @property
    def seed_by_seed(self) -> str:
        """In how many columns and seeds the whole claim holds, where there are several seeds.

        A verdict is about means, and does not tell whether one seed makes them.
        """
        several = any(len(column) > 1 for column in self.each)
        return f"seed by seed {sum(map(sum, self.each))} of {sum(map(len, self.each))}" if several else ""


@dataclass(frozen=True)
class Pair:
    """The means of two rows, or of a row and the number it is held against; NaN if there is nothing to compare."""

    own: float
    other: float
    seeds: int = 0
    """How many each mean is over, the fewer of the two."""
    share: float = math.nan
    """Of the rounds."""
    apart: bool = False
    """Whether the two rows share no seed, so that the scenarios differ too."""
    by_seed: Mapping[int, bool] = field(default_factory=dict)
    """Whether the claim holds of the two, for every seed that they share."""


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
    row, sign = claim.less or claim.more or "", 1 if claim.less else -1
    names = [None] if isinstance(claim.than, int | float) else claim.than or list(table.head.rows)
    rivals = [name for name in names if name != row]
    outcomes: list[bool] = []
    told: list[str] = []
    short = 0  # columns in which it neither fails nor quite holds
    made: list[tuple[str, str]] = []
    compared: list[Pair] = []
    each: list[list[bool]] = []
    for column in claim.columns or table.head.columns:
        title = table.head.columns[column].title
        made += _comparisons(table, ours, claim.measure, column, row, rivals)
        if _without_number(ours, row, column, claim.measure):
            outcomes.append(False)
            told.append(f"{title}: there is no such number")
            continue
        pairs = [_paired(ours, row, name, column, claim) for name in rivals]
        pairs = [pair for pair in pairs if not math.isnan(pair.own + pair.other)]
        if not pairs:
            continue
        compared += pairs
        shared = set.intersection(*(set(pair.by_seed) for pair in pairs))
        each.append([all(pair.by_seed[seed] for pair in pairs) for seed in sorted(shared)])
        hardest = min(pairs, key=lambda pair: _ahead(claim, pair.own, pair.other))
        own, ahead = hardest.own, _ahead(claim, hardest.own, hardest.other)
        bound = hardest.other - sign * claim.by
        if ahead == 0 and rivals != [None]:
            short += 1
            told.append(f"{title}: both {own:.4g}" if not claim.by else f"{title}: {own:.4g}, just {bound:.4g}")
            continue
        never = _never(ours, row, column, claim.measure)
        outcomes.append(ahead >= 0)
        if not outcomes[-1]:
            told.append(f"{title}: {own:.4g} against {bound:.4g}")
        elif never:
            short += 1
            told.append(f"{title}: there is no such number with {never}")
    missing, *unlike = (_named(made, why) for why in (_MISSING, _NONE, _UNLIKE))
    left = [text for text in unlike if text]
    if not outcomes:
        return Held(claim, "undecided" if told else "not measured", "; ".join([*told, *left]), compared, each)
    left = [missing, *left] if missing else left
    verdict = "holds in part" if any(outcomes) else "does not hold"
    if all(outcomes) and not short:
        verdict = "holds so far" if left else "holds"
    return Held(claim, verdict, "; ".join([*told, *left]), compared, each)


def _comparisons(
    table: Table, ours: dict[tuple[str, str, str], Found], measure: str, column: str, row: str, rivals: Sequence[Any]
) -> Iterator[tuple[str, str]]:
    """For every rival that has a cell in this column: why there is no comparison with it, if there is none, and what
    there should be."""
    for name in rivals:
        rows = [row] if name is None else [row, name]
        if not all((r, column, measure) in ours for r in rows):
            continue
        absent = [r for r in rows if not ours[r, column, measure].entries]
        why = _MISSING if absent else ""
        if name is not None and not absent:
            none, other = _without_number(ours, name, column, measure), _unlike(ours, measure, column, row, name)
            why = _NONE if none else _UNLIKE if other else ""
        yield why, f"{table.head.columns[column].title}, {table.head.rows[(absent or rows[-1:])[0]].title}"


def _named(made: Sequence[tuple[str, str]], why: str) -> str:
    """The comparisons that were not made for this reason, in one line; empty if there are none."""
    which = [what for reason, what in made if reason == why]
    named = dict.fromkeys(which)
    short = f"{len(which)} of {len(made)} comparisons" if len(named) > _FEW else "; ".join(named)
    return f"{why}: {short}" if which else ""


def _without_number(ours: dict[tuple[str, str, str], Found], row: str, column: str, measure: str) -> bool:
    """Whether it was run, and nothing came of it: nobody was removed, say, so that there is no round of removal."""
    cell = ours.get((row, column, measure))
    return cell is not None and bool(cell.every) and not _runs(ours, row, column, measure)


def _never(ours: dict[tuple[str, str, str], Found], row: str, column: str, measure: str) -> str:
    """The seeds, of those that a claim counts, whose run gave no number; empty if all gave one."""
    counted = _runs(ours, row, column, measure)
    runs = [e for e in ours[row, column, measure].every if e["scale"] == max(counted)]
    seeds = sorted({e["seed"] for e in runs} - counted[max(counted)].keys())
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else ""


def _paired(ours: dict[tuple[str, str, str], Found], row: str, other: str | None, column: str, claim: Claim) -> Pair:
    """Two rows over the seeds that both have, or over all of each if they share none.

    Both after the same share of the rounds, the largest that both have.
    """
    rows = [row] if other is None else [row, other]
    runs = [_runs(ours, name, column, claim.measure) for name in rows]
    both = set.intersection(*map(set, runs))
    if not both:
        return Pair(math.nan, math.nan)
    share = max(both)
    own, theirs = runs[0][share], runs[-1][share]
    if other is None:
        asked = float(claim.than)  # type: ignore[arg-type]
        reached = {seed: _ahead(claim, value, asked) >= 0 for seed, value in own.items()}
        return Pair(_mean(own.values()), asked, len(own), share, by_seed=reached)
    if seeds := own.keys() & theirs.keys():
        better = {s: _ahead(claim, own[s], theirs[s]) > 0 for s in seeds}
        return Pair(_mean(own[s] for s in seeds), _mean(theirs[s] for s in seeds), len(seeds), share, by_seed=better)
    return Pair(_mean(own.values()), _mean(theirs.values()), min(len(own), len(theirs)), share, apart=True)


def _ahead(claim: Claim, own: float, other: float) -> float:
    """By how much the claim holds; below 0 if it does not. Sums of the same numbers in another order are equal."""
    return round((other - own if claim.less else own - other) - claim.by, 12)


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
    return float(np.mean(list(values)))
