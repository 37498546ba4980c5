"""Everything the report says, worked out once: intervals, tests, fronts, the levelling-down check, the headline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from equipoise.audit import evidence
from equipoise.audit.data import MEASURES, AuditData
from equipoise.report.words import CLEAN
from equipoise.results import Table

NOTIONS = ("accuracy_std", "class_std_mean", "gap_variance", "pearson")
"""One measure for each notion of evenness: what accuracy is drawn against."""

Array = np.ndarray[Any, Any]


class Interval(NamedTuple):
    mean: float
    low: float
    high: float
    seeds: int = 0
    note: str = ""


NOTHING = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Findings:
    data: AuditData
    intervals: Mapping[tuple[str, str, str], Interval]
    """By method, attack and measure."""
    tests: Table
    fronts: Mapping[str, Table]
    """By notion: accuracy against it, in every situation."""
    levelling: Table
    headline: Sequence[str]

    @property
    def methods(self) -> list[str]:
        return [card.name for card in self.data.methods]

    @property
    def attacks(self) -> list[str]:
        return [card.name for card in self.data.attacks]

    def interval(self, method: str, attack: str, measure: str) -> Interval:
        return self.intervals.get((method, attack, measure), NOTHING)

    def mean(self, method: str, attack: str, measure: str) -> float:
        return self.interval(method, attack, measure).mean

    def ranked(self, attack: str, measure: str) -> list[tuple[str, float]]:
        """The methods that have a number for it, best first; equals keep the methods' order."""
        sign = -1 if MEASURES[measure].better == "high" else 1
        known = [(m, self.mean(m, attack, measure)) for m in self.methods]
        return sorted(((m, v) for m, v in known if math.isfinite(v)), key=lambda pair: sign * pair[1])

    def over_attacks(self, method: str, measure: str) -> dict[str, float]:
        """A method's number under every attack that anyone has one for; nothing if one of them is missing.

        An attack that broke a method must not make it look better than those that it did not.
        """
        attacks = [a for a in self.attacks if a != CLEAN and self.ranked(a, measure)]
        found = {a: self.mean(method, a, measure) for a in attacks}
        return found if all(map(math.isfinite, found.values())) else {}

    def worst_attack(self, method: str) -> str | None:
        """The attack that costs this method most."""
        drops = self.over_attacks(method, "drop")
        return max(drops, key=lambda a: drops[a]) if drops else None

    def honest(self, method: str, attack: str, column: str) -> list[Array]:
        """A client column's values for honest clients that have one: an array for each seed."""
        if not len(self.data.clients):
            return []
        rows = self.data.clients.filter(method=method, attack=attack)
        values, seeds = rows[column].astype(np.float64), rows["seed"]
        keep = np.isfinite(values) & ~rows["malicious"].astype(bool)
        return [values[keep & (seeds == s)] for s in self.data.seeds if bool((keep & (seeds == s)).any())]


def find(data: AuditData) -> Findings:
    found = evidence.intervals(data)
    rows = zip(
        *(found[c] for c in ("method", "attack", "measure", "mean", "low", "high", "seeds", "note")), strict=True
    )
    intervals = {
        (str(m), str(a), str(name)): Interval(float(mean), float(low), float(high), int(seeds), str(note))
        for m, a, name, mean, low, high, seeds, note in rows
    }
    fronts = {name: evidence.fronts(data, "accuracy_mean", name) for name in NOTIONS}
    return Findings(
        data, intervals, evidence.tests(data), fronts, evidence.levelling_down(data), evidence.headline(data)
    )
