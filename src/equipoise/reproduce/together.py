"""Which cells of a table are measured in one run: those that differ in rounds alone, and those that send the same.

Ditto trains a personal model beside what its base sends, and the global model that comes of it is FedAvg's own, if the
server does the same: a row for the global model is measured in the run of the row for Ditto, where both are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from equipoise.config import Config
from equipoise.engine.simulator import barest
from equipoise.reproduce.measures import MEASURES, SUMMARY
from equipoise.reproduce.record import Entry
from equipoise.reproduce.tables import Cell

_OF_BOTH = {*MEASURES, *SUMMARY}
"""Measures that a run has of the global model too, beside that of models of clients' own."""


@dataclass(frozen=True)
class Head:
    """An entry to leave of a run of so many rounds, and which model it is about."""

    cell: Cell
    config: Config
    entry: Entry
    model: str

    @property
    def rounds(self) -> int:
        return self.config.train.rounds


def longest(heads: Sequence[Head]) -> Head:
    """The one whose run the others are measured in: the first of the longest."""
    return max(heads, key=lambda head: head.rounds)


def together(runs: Sequence[list[Head]], measures: Sequence[str]) -> list[list[Head]]:
    """The runs that are left when all that send the same as a personalised method are measured in its run."""
    hosts = {i: list(heads) for i, heads in enumerate(runs)}
    for i, heads in enumerate(runs if _OF_BOTH.issuperset(measures) else ()):
        at = next((at for at, others in enumerate(runs) if at in hosts and _carries(others, heads)), None)
        if at is not None:
            name = longest(runs[at]).cell.row
            hosts[at] += [replace(h, entry={**h.entry, "within": name}, model="global") for h in hosts.pop(i)]
    return list(hosts.values())


def _carries(host: Sequence[Head], guest: Sequence[Head]) -> bool:
    """Whether the global model of one run is what another is about."""
    one, other = longest(host), longest(guest)
    if one.cell.extra_epoch or other.cell.extra_epoch or not {h.rounds for h in guest} <= {h.rounds for h in host}:
        return False
    same = replace(one.config.train, rounds=other.rounds)
    if replace(one.config, method=other.config.method, train=same) != other.config:
        return False
    has, asked = one.config.make_method(), other.config.make_method()
    sends = (barest(has.client), has.server) == (asked.client, asked.server)
    return sends and has.client != asked.client and not asked.client.personalised
