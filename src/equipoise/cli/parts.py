"""Commands that tell what there is, and whether a part of your own fits: list, show, keys, check."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.terminal import Json, Verbose, guarded, put, put_json, put_table
from equipoise.errors import EquipoiseError, nearest

if TYPE_CHECKING:
    from equipoise.registry import Entry


Markdown = Annotated[bool, typer.Option("--markdown", help="Print the page of docs/reference.")]


class What(StrEnum):
    methods = "methods"
    rules = "rules"
    filters = "filters"
    attacks = "attacks"
    objectives = "objectives"
    datasets = "datasets"
    models = "models"
    partitions = "partitions"


@guarded
def list_parts(
    what: Annotated[What | None, typer.Argument(help="One kind only.", show_default=False)] = None,
    markdown: Markdown = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the methods, rules, filters, attacks, objectives, datasets, models and partitions that there are.

    \b
    Examples:
      equipoise list
      equipoise list attacks
      equipoise list methods --json
    """
    if markdown:
        from equipoise.reference import parts_page

        put(parts_page([kind.value for kind in ([what] if what else What)]).rstrip())
        return
    rows = [row for kind in ([what] if what else What) for row in _rows(kind)]
    if as_json:
        put_json([dict(zip(("kind", "name", "summary"), row, strict=True)) for row in rows])
    elif what:
        put_table((what.value, "in one line"), [row[1:] for row in rows])
    else:
        put_table(("kind", "name", "in one line"), rows)


def _rows(kind: What) -> list[tuple[str, str, str]]:
    from equipoise import registry

    return [(kind.value, e.name, " ".join(e.doc.summary.split())) for e in registry.entries(kind.value).values()]


@guarded
def show(
    name: Annotated[str, typer.Argument(help="A name that `equipoise list` prints.", show_default=False)],
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show what a part is: its paper, its equation, its parameters, and where it departs from the paper.

    \b
    Examples:
      equipoise show fedprox
      equipoise show label-noise --json
    """
    from equipoise import registry

    known = {kind: registry.entries(kind) for kind in registry.KINDS}
    found = [entries[name] for entries in known.values() if name in entries]
    if not found:
        names = {n for entries in known.values() for n in entries}
        raise EquipoiseError(f"nothing is called {name!r}", nearest(name, names))
    if as_json:
        put_json([_facts(entry) for entry in found])
    else:
        put("\n\n".join(_page(entry) for entry in found))


def _facts(entry: Entry) -> dict[str, Any]:
    from equipoise import reference, registry
    from equipoise.config.parts import plain

    doc = entry.doc
    parameters = [
        {"name": p.name, "type": registry.describe(p.type), "required": p.required, "meaning": key.meaning}
        | ({} if p.required else {"default": plain(p.default)})
        for p, key in zip(entry.parameters, reference.settings(entry), strict=True)
    ]
    texts = {"summary": doc.summary, "reference": doc.reference, "equation": doc.equation, "notes": doc.notes}
    return {"kind": entry.kind, "name": entry.name, **texts, "departures": doc.departures, "parameters": parameters}


def _page(entry: Entry) -> str:
    from equipoise import reference, registry

    doc, settings = entry.doc, reference.lines(reference.settings(entry))
    first = "About" if entry.kind in ("models", "partitions") else "Reference"
    sections = {first: doc.reference, "Equation": doc.equation, "Notes": doc.notes}
    sections |= {"Parameters": "\n".join(settings), "Departures": doc.departures}
    blocks = [f"{entry.name} ({registry.SINGULAR[entry.kind]})\n\n{textwrap.indent(doc.summary, '  ')}"]
    blocks += [f"{title}\n{textwrap.indent(text, '  ')}" for title, text in sections.items() if text]
    return "\n\n".join(blocks)


@guarded
def keys(
    section: Annotated[str | None, typer.Argument(help="One section only, such as train.", show_default=False)] = None,
    markdown: Markdown = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the keys that the files of runs, audits, sweeps and published tables can have, and what they mean.

    \b
    Examples:
      equipoise keys
      equipoise keys train
      equipoise keys --json
    """
    from equipoise import reference

    if markdown:
        put(reference.config_page().rstrip())
        return
    known = {s.name or "table": (file.name, s) for file in reference.files() for s in file.sections}
    if section is not None and section not in known:
        raise EquipoiseError(f"no section is called {section!r}", nearest(section, known))
    found = [(file, key) for file, s in ([known[section]] if section else known.values()) for key in s.keys]
    if as_json:
        put_json([{"file": file, **asdict(key)} for file, key in found])
        return
    rows = [(file, key.full, key.takes, key.default, key.meaning) for file, key in found]
    put_table(("file", "key", "takes", "default", "what it means"), rows)


@guarded
def check(
    file: Annotated[Path, typer.Argument(help="A .py file with a part of its own name.", show_default=False)],
    verbose: Verbose = False,
) -> None:
    """Check a method, rule, filter or attack of your own against the contract that every built-in part keeps.

    Shapes, purity, determinism, the order of clients, clients as rows against clients one by one, odd clients, and the
    sections of its docstring.

    \b
    Example:
      equipoise check ./mine.py
    """
    from equipoise import contract, registry

    entry = registry.load_file(file)
    if entry.kind == "models":
        hint = f"equipoise run CONFIG --own {file} --dry-run builds it for the config's data, and says what is wrong"
        raise EquipoiseError(f"{file}: a model has no contract, since not every one fits all data", hint)
    who = {"fraction": 0.25} if entry.kind == "attacks" else {}
    problems = contract.problems(entry.make(**who), entry.doc)
    for line in problems:
        put(f"broken: {line}")
    if problems:
        raise EquipoiseError(f"{file} breaks {len(problems)} of its promises", "see CONTRIBUTING.md for what they are")
    put(f"{entry.name} keeps the contract")
