"""Commands that tell what there is, and whether a part of your own fits: list, show, check."""

from __future__ import annotations

import inspect
import textwrap
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.terminal import Json, Verbose, guarded, put, put_json, put_table
from equipoise.errors import EquipoiseError, nearest

if TYPE_CHECKING:
    from equipoise.registry import Entry


class What(StrEnum):
    methods = "methods"
    rules = "rules"
    filters = "filters"
    attacks = "attacks"
    datasets = "datasets"
    models = "models"
    partitions = "partitions"


@guarded
def list_parts(
    what: Annotated[What | None, typer.Argument(help="One kind only.", show_default=False)] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the methods, rules, filters, attacks, datasets, models and partitions that a config can name.

    \b
    Examples:
      equipoise list
      equipoise list attacks
      equipoise list methods --json
    """
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
    from equipoise import registry
    from equipoise.config.parts import plain

    doc = entry.doc
    parameters = [
        {"name": p.name, "type": registry.describe(p.type), "required": p.required}
        | ({} if p.required else {"default": plain(p.default)})
        for p in entry.parameters
    ]
    texts = {"summary": doc.summary, "reference": doc.reference, "equation": doc.equation, "notes": doc.notes}
    return {"kind": entry.kind, "name": entry.name, **texts, "departures": doc.departures, "parameters": parameters}


def _page(entry: Entry) -> str:
    from equipoise import registry

    doc = entry.doc
    first = "About" if entry.kind in ("models", "partitions") else "Reference"
    sections = {first: doc.reference, "Equation": doc.equation, "Notes": doc.notes}
    sections |= {"Parameters": _parameters(entry), "Parts": _parts(entry), "Departures": doc.departures}
    blocks = [f"{entry.name} ({registry.SINGULAR[entry.kind]})\n\n{textwrap.indent(doc.summary, '  ')}"]
    blocks += [f"{title}\n{textwrap.indent(text, '  ')}" for title, text in sections.items() if text]
    return "\n\n".join(blocks)


def _parameters(entry: Entry) -> str:
    from equipoise import registry
    from equipoise.config.parts import plain, write

    lines = []
    for p in entry.parameters:
        default = None if p.required else plain(p.default)
        told = "required" if p.required else "left out by default" if default is None else f"default {write(default)}"
        lines.append(f"{p.name}: {registry.describe(p.type)}; {told}")
    return "\n".join(lines)


def _parts(entry: Entry) -> str:
    """What the classes of the part's module say of their parameters."""
    module = inspect.getmodule(entry.make)
    if entry.kind not in ("methods", "rules", "filters", "attacks") or module is None:
        return ""
    classes = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    told = {c.__name__: inspect.getdoc(c) for c in classes if "__doc__" in vars(c)}
    return "\n".join(f"{n}: {d}" for n, d in told.items() if d and not d.startswith(f"{n}("))


@guarded
def check(
    file: Annotated[Path, typer.Argument(help="A .py file with a method of its own name.", show_default=False)],
    verbose: Verbose = False,
) -> None:
    """Check a method of your own against the contract that every built-in part keeps.

    Shapes, purity, determinism, the order of clients, clients as rows against clients one by one, odd clients, and the
    sections of its docstring.

    \b
    Example:
      equipoise check ./mine.py
    """
    from equipoise import contract, registry

    entry = registry.load_file(file, "methods")
    problems = contract.problems(entry.make(), entry.doc)
    for line in problems:
        put(f"broken: {line}")
    if problems:
        raise EquipoiseError(f"{file} breaks {len(problems)} of its promises", "see CONTRIBUTING.md for what they are")
    put(f"{entry.name} keeps the contract")
