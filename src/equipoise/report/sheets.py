"""The report's tables, before anyone has decided how they look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.audit.data import MEASURES
from equipoise.report import words
from equipoise.report.findings import Findings, Interval
from equipoise.results import Table

HEADLINE = ("accuracy_mean", "accuracy_std", "worst_10", "gap_variance", "pearson", "drop")
NOTION_TITLES = {
    "accuracy": "Accuracy",
    "parity": "Evenness of accuracy over clients",
    "class parity": "Evenness over a client's own classes",
    "gap parity": "Distance from each client's own best",
    "collaboration": "Reward for contribution",
    "robustness": "Attackers and defences",
    "conflict": "Conflicts between clients",
    "cost": "Cost",
}


@dataclass(frozen=True)
class Column:
    name: str
    """In files that machines read."""
    label: str
    """Above the column; a share's says "(%)"."""
    number: bool = False
    interval: bool = False
    words: str = ""


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | int | str | None
    """As it is, before rounding."""
    best: bool = False
    low: float = math.nan
    high: float = math.nan
    small: str = ""
    """A remark under the number: its interval."""


@dataclass(frozen=True)
class Sheet:
    name: str
    title: str
    words: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def measure_column(measure: str, explained: str = "", unit: str = "%") -> Column:
    m = MEASURES[measure]
    label = f"{m.label} ({unit})" if m.percent else m.label
    return Column(measure, label, number=True, interval=True, words=explained or m.words)


def headline(found: Findings) -> Sheet:
    """Methods × the six numbers that matter most, in the first situation; `drop` is that of a method's worst attack."""
    first = found.attacks[0]
    shown = [m for m in HEADLINE if m != "drop" or any(map(found.worst_attack, found.methods))]
    columns = [Column("method", "method"), *(measure_column(m, explained=words.PLAIN[m]) for m in shown)]
    rows = [[_text(method), *(_headline_cell(found, method, first, m) for m in shown)] for method in found.methods]
    remarks = dict.fromkeys(
        found.interval(m, first, name).note for m in found.methods for name in shown if name != "drop"
    )
    rough = "; ".join([remark for remark in remarks if remark][:3])
    where = words.under(first) + (", except the last column: each method's worst attack" * ("drop" in shown))
    note = f"{where}. Small print: 95% interval{f' ({rough})' * bool(rough)}. {_BOLD}{_missing(found)}"
    return Sheet("headline", "The short answer, in numbers", note, tuple(columns), _with_best(rows, shown, 1))


_BOLD = (
    "Bold: the best of its column; it need not be a real difference, and to be even or steady at a low accuracy is no "
    "merit."
)


def _missing(found: Findings) -> str:
    """In which situations there is no number of clients, and why."""
    why = [(words.under(attack), found.data.why_empty(attack)) for attack in found.attacks]
    return "".join(f" {where} there are no numbers: {reason}." for where, reason in why if reason)


def _headline_cell(found: Findings, method: str, attack: str, measure: str) -> Cell:
    worst = found.worst_attack(method) if measure == "drop" else attack
    if worst is None:
        return _text(words.MISSING, missing=True)
    cell = number_cell(found.interval(method, worst, measure), measure)
    if measure != "drop":
        return cell
    left = f"{worst} leaves {words.percent(found.mean(method, worst, 'accuracy_mean'))}"
    small = f"{cell.small}; {left}" if cell.small else left
    return Cell(cell.text, cell.value, False, cell.low, cell.high, small)


def notions(found: Findings) -> list[Sheet]:
    """A table for each notion: every method in every situation, with all measures of it that anyone has."""
    return [sheet for notion in NOTION_TITLES if (sheet := _notion(found, notion)) is not None]


def _notion(found: Findings, notion: str) -> Sheet | None:
    pairs = [(a, m) for a in found.attacks for m in found.methods]
    of = [name for name, m in MEASURES.items() if m.notion == notion]
    shown = [name for name in of if any(math.isfinite(found.mean(m, a, name)) for a, m in pairs)]
    if not shown:
        return None
    columns = (Column("attack", "situation"), Column("method", "method"), *map(measure_column, shown))
    rows: list[tuple[Cell, ...]] = []
    for attack in found.attacks:
        block = [
            [
                _text(words.situation(attack), attack),
                _text(method),
                *(number_cell(found.interval(method, attack, name), name) for name in shown),
            ]
            for method in found.methods
        ]
        rows += _with_best(block, shown, 2)
    title = NOTION_TITLES[notion]
    note = "; ".join(f"{MEASURES[n].label}: {MEASURES[n].words}" for n in shown) + ". " + _BOLD + _missing(found)
    return Sheet(notion.replace(" ", "_"), title, note[0].upper() + note[1:], columns, tuple(rows))


def number_cell(interval: Interval, measure: str) -> Cell:
    text = words.number(interval.mean, measure)
    small = words.span(interval.low, interval.high, measure)
    return Cell(text, interval.mean, False, interval.low, interval.high, small)


def _with_best(rows: Sequence[Sequence[Cell]], shown: Sequence[str], start: int) -> tuple[tuple[Cell, ...], ...]:
    """The rows with each measure's best cells marked: all that show the best's digits, unless everyone does."""
    marked = [list(row) for row in rows]
    for column, measure in enumerate(shown, start):
        values = [(float(row[column].value), row) for row in marked if _is_number(row[column])]  # type: ignore[arg-type]
        if not values:
            continue
        pick = max if MEASURES[measure].better == "high" else min
        best = pick(values, key=lambda pair: pair[0])[1][column].text
        if all(row[column].text == best for _, row in values):
            continue
        for _, row in values:
            c = row[column]
            row[column] = Cell(c.text, c.value, c.text == best, c.low, c.high, c.small)
    return tuple(map(tuple, marked))


def _is_number(cell: Cell) -> bool:
    return isinstance(cell.value, float) and math.isfinite(cell.value)


def _text(text: str, value: str | None = None, missing: bool = False) -> Cell:
    return Cell(text, None if missing else text if value is None else value)


# ------------------------------------------------------------------------------------------ other tables


_LABELS = {"attack": "situation", "p_holm": "p, corrected"}


def plain(name: str, title: str, note: str, table: Table) -> Sheet:
    """A table as it is: numbers with three digits, attacks and measures by their names for people."""
    columns = tuple(Column(c, _LABELS.get(c, c.replace("_", " ")), number=_numeric(table[c])) for c in table.columns)
    rows = tuple(tuple(_plain_cell(c.name, table[c.name][i]) for c in columns) for i in range(len(table)))
    return Sheet(name, title, note, columns, rows)


def _numeric(column: np.ndarray[Any, Any]) -> bool:
    return bool(np.issubdtype(column.dtype, np.number))


def _plain_cell(name: str, value: object) -> Cell:
    if isinstance(value, bool | np.bool_):
        return Cell("yes" if value else "no", "yes" if value else "no")
    if isinstance(value, float | np.floating):
        number = float(value)
        return Cell(words.digits(number), number)
    if isinstance(value, int | np.integer):
        return Cell(str(value), int(value))
    text = "" if value is None else str(value)
    if name == "attack":
        return Cell(words.situation(text), text)
    return Cell(MEASURES[text].label if name == "measure" and text in MEASURES else text, text)


def compared(found: Findings) -> Sheet | None:
    """Methods × the headline measures, in every situation: the difference to the baseline, and the verdict in words."""
    rows = {(str(row["method"]), str(row["attack"]), str(row["measure"])): row for row in _rows(found.tests)}
    shown = [m for m in HEADLINE if any(key[2] == m for key in rows)]
    others = [m for m in found.methods if m != found.data.baseline]
    if not shown or not others:
        return None
    columns = (
        Column("attack", "situation"),
        Column("method", "method"),
        *(measure_column(m, unit="points") for m in shown),
    )
    few = all(str(row["verdict"]) == _TOO_FEW for row in rows.values())
    body = tuple(
        (
            _text(words.situation(attack), attack),
            _text(method),
            *(_difference(_row(rows, method, attack, measure), measure, few) for measure in shown),
        )
        for attack in found.attacks
        for method in others
    )
    note = f"The number of each method minus that of {found.data.baseline}, run by run on the same clients. "
    note += _FEW if few else _ENOUGH
    return Sheet("compared", f"Compared with {found.data.baseline}", note, columns, body)


_TOO_FEW = "too few seeds to tell"
_FEW = f"Whether any of it is more than chance: {_TOO_FEW}. Small print: 95% interval."
_ENOUGH = (
    "The words say whether it is more than chance, by a paired test that is corrected for how many methods are "
    "compared. Bold: really better."
)


def _row(rows: Mapping[tuple[str, str, str], dict[str, Any]], method: str, attack: str, measure: str) -> Any:
    """A method's test; nothing drops where nobody attacks."""
    return None if measure == "drop" and attack == words.CLEAN else rows.get((method, attack, measure))


def _rows(table: Table) -> list[dict[str, Any]]:
    return [{name: table[name][i] for name in table.columns} for i in range(len(table))]


def _difference(row: Mapping[str, Any] | None, measure: str, few: bool) -> Cell:
    if row is None or not math.isfinite(float(row["difference"])):
        return Cell(words.MISSING, None)
    value, low, high, verdict = float(row["difference"]), float(row["low"]), float(row["high"]), str(row["verdict"])
    small = words.span(low, high, measure) if few else verdict
    return Cell(_signed(value, measure), value, verdict == "better", low, high, small)


def _signed(value: float, measure: str) -> str:
    text = words.number(value, measure)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def tests(found: Findings) -> Sheet:
    """Every measure of every method against the baseline, with everything that the verdict rests on."""
    note = f"Each method against {found.data.baseline}: paired over seeds; p_holm is corrected for several methods."
    return plain("tests", "Every test", note, found.tests)


def levelling(found: Findings) -> Sheet:
    """Where clients became more alike: who gained, who lost, and the verdict."""
    measures = {"deviation": "accuracy_std", "best_10": "best_10", "worst_10": "worst_10"}
    columns = (
        Column("attack", "situation"),
        Column("method", "method"),
        *(Column(c, f"{MEASURES[m].label} (points)", number=True) for c, m in measures.items()),
        Column("verdict", "verdict"),
    )
    rows = tuple(
        (
            _plain_cell("attack", row["attack"]),
            _text(str(row["method"])),
            *(Cell(_signed(float(row[c]), m), float(row[c])) for c, m in measures.items()),
            _text(str(row["verdict"])),
        )
        for row in _rows(found.levelling)
    )
    note = (
        f"Clients can be made alike by helping the worst-served or by harming the best-served. Differences to "
        f"{found.data.baseline}; a negative deviation means that clients are more alike."
    )
    return Sheet("levelling_down", "Who gained and who lost where clients became more alike?", note, columns, rows)


def failures(found: Findings) -> Sheet | None:
    cells = found.data.cells
    failed = cells.filter(status="failed") if len(cells) else cells
    if not len(failed):
        return None
    kept = Table({name: failed[name] for name in ("method", "attack", "seed", "error")})
    note = (
        f"{words.count(len(failed), 'run')} of {len(cells):,} did not finish. They count in no number of this report."
    )
    return plain("failures", "What failed", note, kept)


def clients(found: Findings) -> Sheet:
    note = "Every client at the end of every run: accuracy and loss on its own test data."
    return plain("clients", "Every client", note, found.data.clients)
