"""What a report says of each method and attack: its own words, and those of the parts that were put into it."""

from __future__ import annotations

from collections.abc import Iterator

from equipoise import registry
from equipoise.audit.data import Card
from equipoise.config.parts import Table as Params
from equipoise.config.parts import named, part
from equipoise.registry import Entry


def method_card(label: str, table: Params) -> Card:
    """A method is robust if the server rule that it ends up with is."""
    _, made = part("methods", table, "method")
    return _card(registry.get("methods", table["name"]), label, table, made.server.robust)


def attack_card(label: str, table: Params | None) -> Card:
    if table is None:
        return Card(label, "Nobody attacks.")
    return _card(registry.get("attacks", table["name"]), label, table)


def _card(entry: Entry, label: str, table: Params, robust: bool = False) -> Card:
    doc, inside = entry.doc, list(_inside(table))
    equations = [doc.equation, *(f"{what}, {e.name}:\n{e.doc.equation}" for what, e in inside if e.doc.equation)]
    references = [doc.reference, *(e.doc.reference for _, e in inside if e.doc.reference)]
    departures = [doc.departures, *(f"{e.name}: {e.doc.departures}" for _, e in inside if e.doc.departures)]
    told = {k: v for k, v in table.items() if k != "name"}
    words = doc.summary, "; ".join(references), "\n\n".join(equations), " ".join(departures)
    return Card(label, *words, told, robust)


def _inside(table: Params) -> Iterator[tuple[str, Entry]]:
    """The parts that a method's table puts in place of the method's own, and what each is to it."""
    if "base" in table:
        yield "rounds", named("methods", table["base"], "method.base")[0]
    if "server" in table:
        yield "server rule in place of its own", named("rules", table["server"], "method.server")[0]
    for given in table.get("filters", ()):
        yield "filter in front of the rule", named("filters", given, "method.filters")[0]
