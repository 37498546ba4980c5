"""What an audit has found, as plain tables: the one thing that evidence, report and advice are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from equipoise import metrics
from equipoise.results import Table

Notion = Literal["accuracy", "parity", "class parity", "gap parity", "collaboration", "robustness", "conflict", "cost"]


@dataclass(frozen=True)
class Measure:
    """One number per cell: what it is called, what it says, and which way is better."""

    name: str
    label: str
    notion: Notion
    better: Literal["high", "low"]
    words: str
    percent: bool = False
    """Whether it is a share, shown as a percentage."""


def _m(
    name: str, label: str, notion: Notion, better: Literal["high", "low"], words: str, percent: bool = False
) -> Measure:
    return Measure(name, label, notion, better, words, percent)


MEASURES: Mapping[str, Measure] = {
    m.name: m
    for m in (
        _m(
            "accuracy_mean",
            "accuracy",
            "accuracy",
            "high",
            "mean accuracy of honest clients on their own test data",
            True,
        ),
        _m("accuracy_weighted", "accuracy by samples", "accuracy", "high", "the same, weighted by test samples", True),
        _m("loss_mean", "loss", "accuracy", "low", "mean test loss of honest clients"),
        _m("accuracy_std", "deviation", "parity", "low", "standard deviation of accuracy over honest clients", True),
        _m("accuracy_variance", "variance", "parity", "low", "its square"),
        _m("worst_5", "worst 5%", "parity", "high", "mean accuracy of the worst-served 5% of honest clients", True),
        _m("worst_10", "worst 10%", "parity", "high", "mean accuracy of the worst-served 10%", True),
        _m("best_5", "best 5%", "parity", "high", "mean accuracy of the best-served 5%", True),
        _m("best_10", "best 10%", "parity", "high", "mean accuracy of the best-served 10%", True),
        _m("angle", "angle", "parity", "low", "angle in radians between the clients' accuracies and equal ones"),
        _m("gini", "Gini", "parity", "low", "Gini coefficient of accuracy"),
        _m(
            "class_std_mean",
            "class deviation",
            "class parity",
            "low",
            "how unevenly a client's own classes fare, mean",
            True,
        ),
        _m("class_std_std", "its deviation", "class parity", "low", "and how that differs between clients", True),
        _m(
            "gap_variance",
            "gap variance",
            "gap parity",
            "low",
            "sample variance of loss above the client's own optimum",
        ),
        _m("gap_max", "largest gap", "gap parity", "low", "largest loss above the client's own optimum"),
        _m("gap_min", "smallest gap", "gap parity", "low", "smallest loss above the client's own optimum"),
        _m("pearson", "reward correlation", "collaboration", "high", "correlation of what clients reach alone and get"),
        _m("spearman", "reward rank correlation", "collaboration", "high", "the same, of ranks"),
        _m(
            "drop",
            "drop",
            "robustness",
            "low",
            "accuracy that the honest clients lost against the clean run of the same method and seed",
            True,
        ),
        _m(
            "attack_success",
            "attack success",
            "robustness",
            "low",
            "share of the attacker's targets on which honest clients' models say what it wants",
            True,
        ),
        _m(
            "caught",
            "attackers caught",
            "robustness",
            "high",
            "share of malicious updates kept out; a removed client counts in every round from then on",
            True,
        ),
        _m(
            "honest_filtered",
            "honest filtered",
            "robustness",
            "low",
            "the same of honest clients",
            True,
        ),
        _m(
            "honest_downweighted",
            "honest down-weighted",
            "robustness",
            "low",
            "share of honest updates that counted for less than half of an equal say",
            True,
        ),
        _m(
            "conflicts",
            "conflicts",
            "conflict",
            "low",
            "mean share of a round's clients whose update opposes the step",
            True,
        ),
        _m("megabytes_up", "MB up", "cost", "low", "sent by clients, in all, in megabytes"),
        _m("megabytes_down", "MB down", "cost", "low", "sent to clients, in all, in megabytes"),
        _m("seconds", "seconds", "cost", "low", "wall time of the rounds"),
    )
}
TIMES = ("seconds",)
"""Measures of the machine as much as of the method: nothing else differs when an audit is run again."""


@dataclass(frozen=True)
class Card:
    """What a method or an attack says of itself."""

    name: str
    """As in the tables: the config name, with parameters where two would otherwise be called the same."""
    summary: str = ""
    reference: str = ""
    equation: str = ""
    departures: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    robust: bool = False


@dataclass(frozen=True)
class AuditData:
    """Everything about an audit that can be looked at."""

    title: str
    scenario: Mapping[str, Any]
    """Facts in words: dataset, clients, partition, model, rounds, ..."""
    methods: tuple[Card, ...]
    attacks: tuple[Card, ...]
    """The first is "none", the clean run, where there is one."""
    seeds: tuple[int, ...]
    baseline: str
    """The method that the others are compared with."""
    cells: Table
    """A row per (method, attack, seed): status "done" or "failed", error, and a float column for each of MEASURES."""
    clients: Table
    """A row per (method, attack, seed, client) at the end: accuracy, loss, n, malicious, gap, standalone (accuracy of
    the client alone), filtered (share of the rounds in which it was kept out, of those that it answered in and of all
    after its removal), downweighted (share in which it had less than half of an equal say) and influence (its mean say;
    1 is an equal one)."""
    curves: Table
    """A row per (method, attack, seed, round) that was evaluated: accuracy_mean, accuracy_std, worst_10."""
    ledger: Table
    """A row per (method, attack, seed, round, client) for methods that keep reputations: reputation, quota, removed."""
    partition: np.ndarray[Any, Any]
    """[N, C]: training samples of each class that each client holds, in the first seed's federation."""
    environment: Mapping[str, Any]
    config: str

    def why_empty(self, attack: str) -> str:
        """Why there are no measures of clients under an attack, if there are none though its runs are done."""
        rows = self.clients.filter(attack=attack) if len(self.clients) else self.clients
        return metrics.why_nobody(rows["n"], rows["malicious"]) if len(rows) else ""

    def without_times(self) -> AuditData:
        """The same without the measures in TIMES: what is written of it has the same bytes for the same audit."""
        unknown = {name: np.full(len(self.cells), np.nan) for name in TIMES if name in self.cells}
        return replace(self, cells=Table({name: unknown.get(name, self.cells[name]) for name in self.cells}))
