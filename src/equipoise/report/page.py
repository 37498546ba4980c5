"""The report as one HTML page: no network, opens from disk, the same bytes for the same audit."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import files
from equipoise.audit.data import AuditData, Card
from equipoise.errors import EquipoiseError
from equipoise.report import charts, sheets, tables, theme, words
from equipoise.report.findings import Findings, find
from equipoise.report.pictures import Panel, Picture, pictures
from equipoise.report.sheets import Sheet

MOST_ROWS = 20_000
"""Of the table of clients, on the page; the files have all."""
_NETWORK_OFF = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_SECTIONS = {
    "answers": "Answers",
    "pictures": "Pictures",
    "evidence": "Is it real?",
    "numbers": "Numbers",
    "clients": "Clients",
    "methods": "Methods",
    "attacks": "Attacks",
    "setup": "Setup",
}


def write_report(data: AuditData, path: Path | str) -> Path:
    """Write the page; returns where it is."""
    place = Path(path)
    files.make_folder(place.parent)
    files.write_atomic(place, page(data).encode())
    return place


def page(data: AuditData) -> str:
    found = find(data)
    drawn = pictures(found)
    body = "\n".join(
        (
            _bar(),
            '<main id="main">',
            _answers(found),
            _pictures(found, drawn),
            _evidence(found),
            _numbers(found),
            _clients(data),
            _cards("methods", "What the methods do", data.methods),
            _cards("attacks", "What the attacks do", data.attacks),
            _setup(data),
            "</main>",
            "<footer><p>Written by Equipoise. This page is one file and asks nothing of any network.</p></footer>",
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_NETWORK_OFF}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(data.title)} · Equipoise</title>\n<style>\n{_colours()}\n{_asset('style.css')}</style>\n"
        f"</head>\n<body>\n{body}\n{_scripts(found, drawn)}\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return resources.files("equipoise.report").joinpath("assets", name).read_text(encoding="utf-8")


def _colours() -> str:
    """The themes as CSS variables: the page and its charts share one set of colours."""
    light, dark = (" ".join(f"--{k}: {v};" for k, v in t.items()) for t in (theme.LIGHT, theme.DARK))
    return (
        f":root {{ {light} color-scheme: light; }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} color-scheme: dark; }} }}\n"
        f":root[data-theme=dark] {{ {dark} color-scheme: dark; }}\n"
        f"@media print {{ :root, :root[data-theme], :root:not([data-theme=light]) {{ {light} color-scheme: light; }} }}"
    )


def _scripts(found: Findings, drawn: Iterable[Picture]) -> str:
    figures = {panel.name: panel.figure for picture in drawn for panel in picture.panels}
    data = {
        "figures": figures,
        "themes": {"light": theme.LIGHT, "dark": theme.DARK},
        "clients": client_rows(found.data),
    }
    return (
        f'<script type="application/json" id="data">{embedded(data)}</script>\n'
        f"<script>{_library()}</script>\n<script>\n{_asset('script.js')}</script>"
    )


def _library() -> str:
    """The charts' library, as it comes with its Python package."""
    try:
        return str(importlib.import_module("plotly.offline").get_plotlyjs())
    except ImportError as e:
        raise EquipoiseError("report: plotly is not installed", "pip install plotly") from e


def embedded(value: Any) -> str:
    """JSON that no text in it can break out of."""
    plain = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=dict)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ------------------------------------------------------------------------------------------ the first screen


def _bar() -> str:
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in _SECTIONS.items())
    return (
        '<a class="skip" href="#main">Skip to the answers</a>\n<header class="bar">'
        f'<p class="brand">Equipoise</p><nav aria-label="Contents"><ul>{links}</ul></nav>'
        '<button type="button" id="theme">Dark</button></header>'
    )


def _answers(found: Findings) -> str:
    data = found.data
    said = "".join(f"<li>{_answer(sentences)}</li>" for sentences in found.headline)
    sheet = sheets.headline(found)
    return _section(
        "answers",
        f'<h1>{escape(data.title)}</h1>\n<p class="lead">{escape(words.what_was_run(data))}</p>\n'
        f'<p class="how">{_FOR_STRANGERS}</p>\n'
        f'<h2 class="hidden">Answers</h2>\n<ul class="said">{said}</ul>\n'
        f'{tables.html(sheet)}\n<p class="note">{escape(sheet.words)}</p>',
    )


def _answer(sentences: str) -> str:
    """The first sentence is the answer, the others are its reasons."""
    first, dot, rest = sentences.partition(". ")
    return f"<b>{escape(first + dot.strip())}</b> {escape(rest)}".rstrip()


_FOR_STRANGERS = (
    "In federated learning, clients such as hospitals or telephones train a model together without showing each other "
    "their data. Some may lie. All numbers here are about the honest ones, each tested on data of its own."
)


def _section(name: str, body: str, title: str = "") -> str:
    heading = f"<h2>{escape(title)}</h2>\n" if title else ""
    label = f' aria-label="{escape(_SECTIONS[name])}"'
    return f'<section id="{name}"{label}>\n{heading}{body}\n</section>'


# ------------------------------------------------------------------------------------------ pictures


def _pictures(found: Findings, drawn: list[Picture]) -> str:
    body = "\n".join(_picture(found, picture) for picture in drawn)
    blocked = "<noscript><p>The pictures need JavaScript; every number they show is also in the tables.</p></noscript>"
    return _section("pictures", f"{blocked}\n{_chooser(found)}\n{body}", "The pictures")


def _chooser(found: Findings) -> str:
    """One choice of situation, and one of a method to bring out, for all pictures."""
    radios = "".join(
        f'<label><input type="radio" name="attack" value="{i}"{" checked" * (i == 0)}>'
        f"<span>{escape(words.situation(attack))}</span></label>"
        for i, attack in enumerate(found.attacks)
    )
    options = "".join(f'<option value="{i}">{escape(name)}</option>' for i, name in enumerate(found.methods))
    return (
        f'<div class="chooser"><fieldset><legend>Situation</legend>{radios}</fieldset>'
        '<label class="highlight">Bring out <select id="highlight"><option value="">all methods</option>'
        f"{options}</select></label></div>"
    )


def _picture(found: Findings, picture: Picture) -> str:
    panels = "\n".join(_panel(found, panel) for panel in picture.panels)
    most = max(sum(p.attack in (None, a) for p in picture.panels) for a in found.attacks)
    kind = "panels" if most > 1 else "panels single"
    return (
        f'<article class="picture" id="p-{picture.name}">\n<h3>{escape(picture.title)}</h3>\n'
        f'<p class="how">{escape(picture.how)}</p>\n<div class="{kind}">\n{panels}\n</div>\n</article>'
    )


def _panel(found: Findings, panel: Panel) -> str:
    where = found.attacks.index(panel.attack) if panel.attack is not None else None
    belongs = f' data-attack="{where}"{" hidden" * (where != 0)}' if where is not None else ""
    label = escape(f"{panel.title}. {panel.reading}")
    height = panel.figure["layout"]["height"]
    return (
        f'<figure class="panel"{belongs}><h4>{escape(panel.title)}</h4>'
        f'<div class="chart" id="{panel.name}" role="img" aria-label="{label}" style="min-height: {height}px"></div>'
        f"<figcaption>{escape(panel.reading)}</figcaption></figure>"
    )


# ------------------------------------------------------------------------------------------ tables


def _evidence(found: Findings) -> str:
    compared, levelling, failures = sheets.compared(found), sheets.levelling(found), sheets.failures(found)
    parts = [_titled(s) + _by_situation(found, s) for s in (compared, levelling) if s is not None and s.rows]
    parts += [_titled(failures) + tables.html(failures)] if failures else []
    alone = f"<p>There is no other method to compare {escape(found.data.baseline)} with.</p>"
    return _section("evidence", "\n".join(parts or [alone]), "Is it real?")


def _titled(sheet: Sheet) -> str:
    return f'<h3>{escape(sheet.title)}</h3>\n<p class="how">{escape(sheet.words)}</p>\n'


def _by_situation(found: Findings, sheet: Sheet) -> str:
    """A table for each attack, the first one open; the sheet's first column says which."""
    parts = []
    for i, attack in enumerate(found.attacks):
        here = [row for row in sheet.rows if row[0].value == attack]
        told = [k for k in range(1, len(sheet.columns)) if any(row[k].value is not None for row in here)]
        rows = tuple(tuple(row[k] for k in told) for row in here)
        title = f"{sheet.title}: {words.situation(attack)}"
        part = Sheet(f"{sheet.name}-{i}", title, sheet.words, tuple(sheet.columns[k] for k in told), rows)
        opened = " open" * (i == 0)
        parts.append(f"<details{opened}><summary>{escape(words.under(attack))}</summary>{tables.html(part)}</details>")
    return "\n".join(parts)


def _numbers(found: Findings) -> str:
    parts = [
        f"<details{' open' * (i == 0)}><summary>{escape(s.title)}</summary>\n"
        f'<p class="note">{escape(s.words)}</p>\n{tables.html(s)}</details>'
        for i, s in enumerate(sheets.notions(found))
    ]
    return _section("numbers", "\n".join(parts), "All numbers")


_CLIENT_COLUMNS = {
    "method": "method",
    "attack": "situation",
    "seed": "seed",
    "client": "client",
    "malicious": "role",
    "n": "test samples",
    "accuracy": "accuracy (%)",
    "loss": "loss",
    "gap": "gap",
    "standalone": "alone (%)",
    "filtered": "kept out (%)",
    "downweighted": "little say (%)",
    "influence": "say",
}


def _clients(data: AuditData) -> str:
    numeric = set(_CLIENT_COLUMNS) - {"method", "attack", "malicious"}
    heads = "".join(
        f'<th scope="col" data-column="{name}"{" class=number" * (name in numeric)}>'
        f'<span class="label">{title}</span></th>'
        for name, title in _CLIENT_COLUMNS.items()
    )
    total = len(data.clients)
    cut = (
        f" The page holds the first {MOST_ROWS:,} of {total:,} rows, by seed; the table written as CSV has all."
        if total > MOST_ROWS
        else ""
    )
    return _section(
        "clients",
        f'<p class="how">Every client at the end of every run. "Alone" is what it would reach on its own, "kept out" '
        f"how often a defence used nothing it sent.{cut}</p>\n"
        '<div class="search"><label for="search">Search</label> '
        '<input type="search" id="search" placeholder="fedavg honest 12" autocomplete="off" spellcheck="false">'
        ' <span id="shown" role="status"></span></div>\n'
        '<div class="scroll" role="region" aria-label="Table: every client" tabindex="0"><table id="t-clients">'
        f'<caption class="hidden">Every client</caption><thead><tr>{heads}</tr></thead><tbody></tbody></table></div>\n'
        '<p><button type="button" id="more">Show more</button></p>',
        "Every client",
    )


def client_rows(data: AuditData) -> dict[str, Any]:
    """The clients' table as columns: methods and attacks by number, the rest with five digits."""
    table = data.clients
    out: dict[str, Any] = {
        "methods": [card.name for card in data.methods],
        "attacks": [words.situation(card.name) for card in data.attacks],
        "columns": {},
    }
    if not len(table):
        return out
    kept = table.sort("seed").head(MOST_ROWS) if len(table) > MOST_ROWS else table
    codes = {"method": [c.name for c in data.methods], "attack": [c.name for c in data.attacks]}
    for name in _CLIENT_COLUMNS:
        column = kept[name]
        if name in codes:
            number = {word: i for i, word in enumerate(codes[name])}
            out["columns"][name] = [number.get(str(v), -1) for v in column]
        elif name in ("seed", "client", "n", "malicious"):
            out["columns"][name] = [int(v) for v in column]
        else:
            out["columns"][name] = charts.numbers(column)
    return out


# ------------------------------------------------------------------------------------------ what it was made of


def _cards(name: str, title: str, cards: Iterable[Card]) -> str:
    made = "\n".join(_card(card) for card in cards)
    return _section(name, f'<div class="cards">\n{made}\n</div>', title)


def _card(card: Card) -> str:
    robust = ' <span class="tag">tolerates attackers</span>' if card.robust else ""
    equation = f"<pre tabindex=0>{escape(card.equation)}</pre>" if card.equation else ""
    parameters = ", ".join(f"{k} = {v}" for k, v in card.parameters.items())
    facts = {"Reference": card.reference, "Parameters": parameters}
    departures = (
        f"<details><summary>Departures from the paper</summary><p>{escape(card.departures)}</p></details>"
        if card.departures
        else ""
    )
    return (
        f'<article class="card"><h3>{escape(words.situation(card.name))}{robust}</h3>'
        f"<p>{escape(card.summary)}</p>{equation}{_facts(facts)}{departures}</article>"
    )


def _facts(facts: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{escape(str(k))}</dt><dd>{_fact(v)}</dd>" for k, v in facts.items() if v not in ("", None))
    return f"<dl>{rows}</dl>" if rows else ""


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return escape(", ".join(f"{k} {v}" for k, v in value.items()))
    if isinstance(value, list | tuple | np.ndarray):
        return escape(", ".join(map(str, value)))
    return escape(str(value))


def _setup(data: AuditData) -> str:
    seeds = {"seeds": data.seeds, "compared with": data.baseline}
    return _section(
        "setup",
        f"<h3>Scenario</h3>\n{_facts({**data.scenario, **seeds})}\n"
        f"<details open><summary>Config</summary><pre tabindex=0>{escape(data.config)}</pre></details>\n"
        f"<details><summary>Environment</summary>{_facts(data.environment)}</details>",
        "Setup",
    )
