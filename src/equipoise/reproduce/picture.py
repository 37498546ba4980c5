"""Published accuracies against ours as one picture: a panel for each paper, a mark for each cell, ours upwards.

On the line both are the same. The paper's own method stands out, and so does what was run for fewer rounds than the
paper's, which is expected below the line. Plain SVG, a function of the tables and the record, as pages are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from equipoise.reproduce.record import Record
from equipoise.reproduce.tables import Table
from equipoise.reproduce.verdicts import found

_SIDE, _GAP, _TOP = 210, 30, 46  # of a panel, between panels, above them: pixels
_TICKS = (0.0, 0.5, 1.0)
_OWN, _OTHER, _INK = "#c2410c", "#64748b", "#475569"  # told apart on a light and on a dark ground


class Mark(NamedTuple):
    """One cell: the accuracies, whether it is the paper's own method, whether it had all rounds, and its name."""

    published: float
    ours: float
    own: bool
    full: bool
    name: str


def draw(tables: Sequence[Table], out: Path) -> str:
    """The picture of everything measured under `out`; papers without a published accuracy have no panel."""
    papers: dict[str, list[Mark]] = {t.name.split("/")[0]: [] for t in tables}
    for table in tables:
        papers[table.name.split("/")[0]] += marks(table, Record(table, out))
    panels = [(paper, some) for paper, some in papers.items() if some]
    wide = len(panels) * (_SIDE + _GAP) + _GAP
    body = [_panel(name, some, _GAP + i * (_SIDE + _GAP)) for i, (name, some) in enumerate(panels)]
    size = f'width="{wide}" height="{_TOP + _SIDE + 52}" viewBox="0 0 {wide} {_TOP + _SIDE + 52}"'
    style = f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *body, _legend(), "</svg>", ""])


def marks(table: Table, record: Record) -> Iterator[Mark]:
    """The cells with a published accuracy; of several kinds of accuracy the first that the table has."""
    kinds = [m for m in table.head.measures if "accuracy" in m and not m.endswith("_std")]
    paper = table.name.split("/")[0]
    for (row, column, measure), cell in found(table, record).items():
        if measure in kinds[:1] and cell.published is not None and cell.values:
            name = f"{table.name}: {table.head.rows[row].title}, {table.head.columns[column].title}"
            own = table.head.rows[row].set.get("method", {}).get("name") == paper
            yield Mark(cell.published, cell.mean, own, all(e["scale"] == 1 for e in cell.entries), name)


def _panel(paper: str, some: Sequence[Mark], left: int) -> str:
    """Others first, so that the paper's own method lies on top."""
    bottom = _TOP + _SIDE
    ticks = "".join(
        f'<text x="{left + t * _SIDE:g}" y="{bottom + 15}" text-anchor="middle">{t:g}</text>'
        + (f'<text x="{left - 4}" y="{bottom - t * _SIDE + 4:g}" text-anchor="end">{t:g}</text>' if t else "")
        for t in _TICKS
    )
    return "\n".join(
        [
            f'<text x="{left}" y="{_TOP - 8}" font-weight="bold">{escape(paper)}</text>',
            f'<rect x="{left}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="{_INK}" opacity="0.5"/>',
            f'<path d="M{left} {bottom}L{left + _SIDE} {_TOP}" stroke="{_INK}" stroke-dasharray="3 3"/>',
            ticks,
            *(_mark(m, left) for m in sorted(some, key=lambda m: m.own)),
        ]
    )


def _mark(mark: Mark, left: int) -> str:
    x, y = left + _SIDE * mark.published, _TOP + _SIDE * (1 - mark.ours)
    told = escape(f"{mark.name}: published {mark.published:.3f}, ours {mark.ours:.3f}")
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" {_ink(mark.own, mark.full)}><title>{told}</title></circle>'


def _ink(own: bool, full: bool) -> str:
    colour = _OWN if own else _OTHER
    return f'r="3.5" stroke="{colour}" fill="{colour if full else "none"}" fill-opacity="0.6"'


def _legend() -> str:
    """What marks mean, and the axes."""
    words = [
        (True, True, "the paper's own method and its variants"),
        (False, True, "others"),
        (True, False, "after fewer rounds than the paper's"),
    ]
    parts, x = [], _GAP
    for own, full, text in words:
        parts.append(f'<circle cx="{x + 4}" cy="14" {_ink(own, full)}/><text x="{x + 14}" y="18">{text}</text>')
        x += 40 + 7 * len(text)
    return "\n".join([*parts, f'<text x="{_GAP}" y="{_TOP + _SIDE + 40}">across: published accuracy; up: ours</text>'])
