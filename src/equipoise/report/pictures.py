"""Which figures the report has, in which order, with what is said about each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.audit.data import MEASURES
from equipoise.report import charts, readings, words
from equipoise.report.findings import NOTIONS, Findings
from equipoise.report.theme import Figure
from equipoise.results import Table

MOST_CLIENTS = 60
"""Drawn in a ledger: attackers and the removed first."""


@dataclass(frozen=True)
class Panel:
    name: str
    """Its id on the page, and its file's name."""
    attack: str | None
    """The situation it belongs to; None: all."""
    title: str
    figure: Figure
    reading: str


@dataclass(frozen=True)
class Picture:
    """Figures that are read together."""

    name: str
    title: str
    how: str
    panels: tuple[Panel, ...]


def pictures(found: Findings) -> list[Picture]:
    made = [
        Picture(
            "fronts",
            "What is traded for what",
            "Each mark is a method; better is always up and to the right. Coloured marks are on the front: nothing "
            "here beats them on both counts. Grey ones are matched or beaten on both.",
            tuple(_fronts(found)),
        ),
        Picture(
            "served",
            "Who is served well, and who is not",
            "All honest clients in order, from the one the model serves worst to the one it serves best.",
            tuple(_by_attack(found, "served", "Accuracy of every client", charts.served, readings.served)),
        ),
        Picture(
            "gaps",
            "What clients miss of their own best",
            "A dot is a client: how much worse the model it got is than the best one for its own data. Boxes hold the "
            "middle half, whiskers nine in ten. Left of zero the client gained from the others.",
            tuple(_by_attack(found, "gaps", "Gaps", charts.gaps, readings.gaps)),
        ),
        Picture(
            "heat",
            "Who survives which attack",
            "A row is a method, a column a situation; the stronger the colour, the more accurate.",
            tuple(_heat(found)),
        ),
        Picture(
            "learning",
            "How learning went",
            "Lines are means over the repetitions, bands go from the lowest to the highest of them.",
            tuple(_learning(found)),
        ),
        Picture(
            "ledger",
            "Reputations and removals",
            "What a server that keeps a ledger thought of each client, round by round, in the first run that finished.",
            tuple(_ledgers(found)),
        ),
        Picture(
            "partition",
            "Who holds what",
            "A column is a client, a row a class of the data; the stronger the colour, the more training samples.",
            tuple(_partition(found)),
        ),
    ]
    return [picture for picture in made if picture.panels]


def _fronts(found: Findings) -> Iterator[Panel]:
    for attack, i in _numbered(found):
        for notion in NOTIONS:
            figure = charts.front(found, notion, attack)
            if figure is not None:
                title = f"Accuracy against {MEASURES[notion].label}"
                yield Panel(f"front-{notion}-{i}", attack, title, figure, readings.front(found, notion, attack))


def _by_attack(found: Findings, name: str, title: str, draw: Any, read: Any) -> Iterator[Panel]:
    for attack, i in _numbered(found):
        figure = draw(found, attack)
        if figure is not None:
            yield Panel(f"{name}-{i}", attack, title, figure, read(found, attack))


def _heat(found: Findings) -> Iterator[Panel]:
    for measure, title in (("accuracy_mean", "Accuracy (%)"), ("worst_10", "Accuracy of the worst-served tenth (%)")):
        figure = charts.heat(found, measure)
        if figure is not None:
            yield Panel(f"heat-{measure}", None, title, figure, readings.heat(found, measure))


def _learning(found: Findings) -> Iterator[Panel]:
    titles = {"accuracy_mean": "Accuracy", "worst_10": "Accuracy of the worst-served tenth"}
    for attack, i in _numbered(found):
        for measure, title in titles.items():
            figure = charts.learning(found, measure, attack)
            if figure is not None:
                yield Panel(f"learning-{measure}-{i}", attack, title, figure, readings.learning(found, measure, attack))


def _partition(found: Findings) -> Iterator[Panel]:
    counts = found.data.partition
    figure = charts.partition(counts)
    if figure is not None:
        cut = f" The first {charts.MOST_POINTS} of {len(counts):,} clients are drawn."
        reading = readings.partition(counts) + (cut if len(counts) > charts.MOST_POINTS else "")
        yield Panel("partition", None, "Training samples by client and class", figure, reading)


def _numbered(found: Findings) -> Iterator[tuple[str, int]]:
    return ((attack, i) for i, attack in enumerate(found.attacks))


# ------------------------------------------------------------------------------------------ the ledger


def _ledgers(found: Findings) -> Iterator[Panel]:
    if not len(found.data.ledger):
        return
    for attack, i in _numbered(found):
        for j, method in enumerate(found.methods):
            rows = found.data.ledger.filter(method=method, attack=attack)
            if len(rows):
                seed = next(s for s in found.data.seeds if s in rows["seed"])
                yield from _ledger(found, rows.filter(seed=seed), method, attack, f"{j}-{i}")


def _ledger(found: Findings, rows: Table, method: str, attack: str, number: str) -> Iterator[Panel]:
    clients = found.data.clients.filter(method=method, attack=attack, seed=rows["seed"][0])
    malicious = sorted(int(k) for k in clients["client"][clients["malicious"].astype(bool)])
    removed = first_removals(rows)
    everyone = np.union1d(np.unique(rows["client"]), clients["client"])
    shown = _chosen(rows, malicious, removed)
    known = len(np.unique(rows["client"]))
    cut = f" {len(shown)} of {known:,} clients are drawn, attackers and the removed first."
    kept = Table({c: rows[c][np.isin(rows["client"], shown)] for c in rows.columns})
    for column in ("reputation", "quota"):
        figure = charts.ledger(kept, column, malicious, removed)
        if figure is not None:
            reading = (
                readings.ledger(method, attack, malicious, len(everyone), removed)
                if column == "reputation"
                else readings.quota(rows, malicious, method, attack)
            ) + (cut if len(shown) < known else "")
            title = f"{words.short(method, 40)}: {column} of every client"
            yield Panel(f"ledger-{column}-{number}", attack, title, figure, reading)


def first_removals(rows: Table) -> dict[int, int]:
    """The round in which each removed client was removed."""
    out: dict[int, int] = {}
    gone = rows["removed"].astype(bool)
    for client, at in zip(rows["client"][gone].tolist(), rows["round"][gone].tolist(), strict=True):
        out[client] = min(at, out.get(client, at))
    return out


def _chosen(rows: Table, malicious: list[int], removed: dict[int, int]) -> list[int]:
    everyone = [int(k) for k in np.unique(rows["client"])]
    special = set(malicious) | set(removed)
    return sorted(everyone, key=lambda k: k not in special)[:MOST_CLIENTS]
