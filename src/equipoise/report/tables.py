"""The report's tables as HTML, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Literal

from equipoise import files
from equipoise.audit.data import AuditData
from equipoise.errors import EquipoiseError, nearest
from equipoise.report import sheets
from equipoise.report.findings import Findings, find
from equipoise.report.sheets import Cell, Column, Sheet

Format = Literal["markdown", "latex", "csv"]


def write_tables(data: AuditData, folder: Path | str, format: Format = "markdown") -> list[Path]:
    """Every table of the report, and that of the clients, as a file each; returns where they are."""
    if format not in _WRITERS:
        raise EquipoiseError(f"tables: format is {format!r}", nearest(format, _WRITERS))
    render, suffix = _WRITERS[format]
    place = files.make_folder(folder)
    paths = []
    for sheet in all_sheets(find(data)):
        path = place / f"{sheet.name}.{suffix}"
        files.write_atomic(path, render(sheet).encode())
        paths.append(path)
    return paths


def all_sheets(found: Findings) -> list[Sheet]:
    made = [
        sheets.headline(found),
        *sheets.notions(found),
        sheets.compared(found),
        sheets.tests(found),
        sheets.levelling(found),
    ]
    made += [sheets.failures(found), sheets.clients(found)]
    return [sheet for sheet in made if sheet is not None and sheet.rows]


# ------------------------------------------------------------------------------------------ HTML


def html(sheet: Sheet) -> str:
    """A table in a box of its own that scrolls when the page is narrow."""
    heads = "".join(_head(column) for column in sheet.columns)
    start = _row_head(sheet)
    rows = "\n".join(
        "<tr>" + "".join(_html_cell(cell, sheet.columns[i], i == start) for i, cell in enumerate(row)) + "</tr>"
        for row in sheet.rows
    )
    title = escape(sheet.title)
    return (
        f'<div class="scroll" role="region" aria-label="Table: {title}" tabindex="0">\n'
        f'<table class="sortable" id="t-{sheet.name}">\n<caption class="hidden">{title}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _pairs(row: tuple[Cell, ...], sheet: Sheet) -> zip[tuple[Cell, Column]]:
    return zip(row, sheet.columns, strict=True)


def _row_head(sheet: Sheet) -> int:
    """Which column names the row: the method's, or the first."""
    names = [column.name for column in sheet.columns]
    return names.index("method") if "method" in names else 0


def _head(column: Column) -> str:
    kind = ' class="number"' if column.number else ""
    explained = f'<small class="explained">{escape(column.words)}</small>' if column.words else ""
    return f'<th scope="col"{kind}><span class="label">{escape(column.label)}</span>{explained}</th>'


def _html_cell(cell: Cell, column: Column, row_head: bool) -> str:
    text = f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text)
    small = f"<small>{escape(cell.small)}</small>" if cell.small else ""
    value = f' data-value="{_raw(cell.value)}"' if column.number else ""
    kind = ' class="number"' if column.number else ""
    return f'<th scope="row">{text}{small}</th>' if row_head else f"<td{kind}{value}>{text}{small}</td>"


def _raw(value: float | int | str | None) -> str:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else escape(repr(value) if isinstance(value, float) else str(value))


# ------------------------------------------------------------------------------------------ files


def markdown(sheet: Sheet) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["--:" if c.number else "---" for c in sheet.columns]
    rows = [[_markdown_cell(cell) for cell in row] for row in sheet.rows]
    body = [line([_md(c.label) for c in sheet.columns]), line(rule), *map(line, rows)]
    return "\n".join([f"## {_md(sheet.title)}", "", *body, "", _md(sheet.words), ""])


def _markdown_cell(cell: Cell) -> str:
    text = f"**{_md(cell.text)}**" if cell.best else _md(cell.text)
    return f"{text} ({_md(cell.small)})" if cell.small else text


def _md(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#&~$" else c for c in flat)


def latex(sheet: Sheet) -> str:
    long = len(sheet.rows) > 40
    kind = "longtable" if long else "tabular"
    align = "".join("r" if c.number else "l" for c in sheet.columns)
    head = " & ".join(_tex(c.label) for c in sheet.columns)
    rows = [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in sheet.rows]
    lines = [
        f"% {' '.join(sheet.title.split())}. Needs \\usepackage{{{'booktabs,longtable' if long else 'booktabs'}}}.",
        f"% {' '.join(sheet.words.split())}",
        f"\\begin{{{kind}}}{{{align}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule" + (r" \endhead" if long else ""),
        *rows,
        r"\bottomrule",
        f"\\end{{{kind}}}",
        "",
    ]
    return "\n".join(lines)


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text)
    return rf"{text} {{\scriptsize ({_tex(cell.small)})}}" if cell.small else text


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "−": "$-$",
    "–": "--",
    "∞": r"$\infty$",
    "…": r"\ldots{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in " ".join(text.split()))


def comma_separated(sheet: Sheet) -> str:
    """Full precision, an interval in two columns of its own, missing values empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for c in sheet.columns for name in _csv_names(c)])
    for row in sheet.rows:
        writer.writerow([v for cell, column in _pairs(row, sheet) for v in _csv_values(cell, column)])
    return out.getvalue()


def _csv_names(column: Column) -> list[str]:
    return [column.name, *(f"{column.name}_{end}" for end in ("low", "high") if column.interval)]


def _csv_values(cell: Cell, column: Column) -> list[str]:
    values = [cell.value, cell.low, cell.high] if column.interval else [cell.value]
    return ["" if v is None or (isinstance(v, float) and math.isnan(v)) else _csv_text(v) for v in values]


def _csv_text(value: float | int | str) -> str:
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    # A spreadsheet would run a cell that starts like this; names come from users' files.
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


_WRITERS: Mapping[str, tuple[Callable[[Sheet], str], str]] = {
    "markdown": (markdown, "md"),
    "latex": (latex, "tex"),
    "csv": (comma_separated, "csv"),
}
