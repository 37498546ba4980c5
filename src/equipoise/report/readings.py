"""The sentence under each figure, worked out from the numbers it shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.audit.data import MEASURES
from equipoise.audit.people import before, means
from equipoise.report import charts, words
from equipoise.report.findings import Findings
from equipoise.report.words import CLEAN, listed, under

Array = np.ndarray[Any, Any]

_EVENNESS = {
    "accuracy_std": "more evenly accurate over clients",
    "class_std_mean": "more even over each client's classes",
    "gap_variance": "more equal in what clients miss of their own best",
    "pearson": "better at rewarding contribution",
}


def front(found: Findings, notion: str, attack: str) -> str:
    table = found.fronts[notion].filter(attack=attack)
    known = np.isfinite(table["x"].astype(float)) & np.isfinite(table["y"].astype(float))
    names, beaten = table["method"][known], table["dominated"][known].astype(bool)
    best = [str(n) for n in names[~beaten]]
    if len(names) == 1:
        return f"{under(attack)}, {best[0]} is the only method here, so there is nothing to trade off."
    comparison = f"both more accurate and {_EVENNESS[notion]}"
    first = f"{under(attack)}, no method is {comparison} than {listed(best)}"
    losers = [str(n) for n in names[beaten]]
    if not losers:
        return f"{first}: every method here is a different trade-off."
    verb = "is" if len(losers) == 1 else "are"
    return f"{first}; {listed(losers)} (grey) {verb} matched or beaten on both by another."


def served(found: Findings, attack: str) -> str:
    ranked = found.ranked(attack, "worst_10")
    if not ranked:
        return f"{under(attack)}, no run finished."
    (best, high), (worst, low) = ranked[0], ranked[-1]
    if best == worst:
        return f"{under(attack)}, the worst-served tenth of clients reach {words.percent(high)}% with {best}."
    return (
        f"{under(attack)}, the worst-served tenth of clients are best off with {best} ({words.percent(high)}%) "
        f"and worst off with {worst} ({words.percent(low)}%); a flat line serves all alike."
    )


def gaps(found: Findings, attack: str) -> str:
    ranked = found.ranked(attack, "gap_variance")
    if not ranked:
        return f"{under(attack)}, gaps are known for too few clients to compare them."
    (best, low), (worst, high) = ranked[0], ranked[-1]
    if best == worst:
        return f"{under(attack)}, the gaps of {best} have a variance of {words.digits(low)}."
    return (
        f"{under(attack)}, clients' gaps are most alike with {best} (variance {words.digits(low)}) "
        f"and differ most with {worst} ({words.digits(high)})."
    )


def heat(found: Findings, measure: str) -> str:
    attacks = [a for a in found.attacks if a != CLEAN]
    had = means(before(found.data.clients, measure))
    hit = {(m, a): had[m, a] - found.mean(m, a, measure) for m in found.methods for a in attacks if (m, a) in had}
    hit = {key: lost for key, lost in hit.items() if math.isfinite(lost)}
    if not hit:
        method, value = max(
            ((m, found.mean(m, a, measure)) for m in found.methods for a in found.attacks),
            key=lambda pair: -math.inf if math.isnan(pair[1]) else pair[1],
        )
        return f"The highest {MEASURES[measure].label} here is {words.percent(value)}%, with {method}."
    worst = max(hit, key=lambda k: hit[k])
    hurt = (
        f"The hardest hit is {worst[0]} under {worst[1]}: its honest clients come from {words.percent(had[worst])}% "
        f"to {words.percent(found.mean(*worst, measure))}%"
        if hit[worst] > 0
        else "No attack costs honest clients anything here, with any method"
    )
    left = {m: min(kept.values()) for m in found.methods if (kept := found.over_attacks(m, measure))}
    if not left:
        return f"{hurt}."
    steady = max(left, key=lambda m: left[m])
    return f"{hurt}; whatever the attack, {steady} keeps at least {words.percent(left[steady])}%, the most of all."


def learning(found: Findings, measure: str, attack: str) -> str:
    rows = found.data.curves.filter(attack=attack)
    ends, early = {}, {}
    for method in found.methods:
        rounds, _, mean, _ = charts.over_seeds(rows["round"], rows[measure], rows["method"] == method)
        if len(rounds):
            ends[method] = (int(rounds[-1]), float(mean[-1]))
            early[method] = int(rounds[np.argmax(mean >= 0.95 * mean[-1])])
    best, worst = (pick(ends, key=lambda m: ends[m][1]) for pick in (max, min))
    label = "accuracy" if measure == "accuracy_mean" else "accuracy for the worst-served tenth"
    first = f"{under(attack)}, {best} ends highest: {words.percent(ends[best][1])}% {label} after round {ends[best][0]}"
    soon = f"it first came within a twentieth of that in round {early[best]}"
    if len(ends) == 1:
        return f"{first}; {soon}."
    return f"{first}; {soon}. {worst} ends lowest, at {words.percent(ends[worst][1])}%."


def ledger(name: str, attack: str, malicious: Sequence[int], n: int, removed: Mapping[int, int]) -> str:
    """Of one run; `n` is how many clients there are."""
    caught = [k for k in removed if k in set(malicious)]
    honest = len(removed) - len(caught)
    start = f"{under(attack)}, {name}"
    if not removed:
        return f"{start} removed nobody."
    first = f"the first in round {min(removed.values())}"
    if not malicious:
        return f"{start} removed {honest} of {words.count(n, 'client')}, all of them honest, {first}."
    return (
        f"{start} removed {len(caught)} of {words.count(len(malicious), 'attacker')} and {honest} of "
        f"{words.count(n - len(malicious), 'honest client')}, {first}."
    )


def quota(rows: Any, malicious: Sequence[int], name: str, attack: str) -> str:
    """What clients of one run are given at the end, by who they are."""
    known = np.isfinite(rows["quota"].astype(np.float64))
    clients, rounds, values = (rows[c][known] for c in ("client", "round", "quota"))
    last = {int(k): float(values[clients == k][np.argmax(rounds[clients == k])]) for k in np.unique(clients)}
    bad = [v for k, v in last.items() if k in set(malicious)]
    good = [v for k, v in last.items() if k not in set(malicious)]
    start = f"{under(attack)}, {name} last gave honest clients"
    if not good:
        return f"{under(attack)}, {name} last gave attackers {words.digits(float(np.mean(bad)))} on average."
    if bad:
        mean, other = (words.digits(float(np.mean(v))) for v in (good, bad))
        return f"{start} {mean} on average and attackers {other}."
    low, high = words.digits(min(good)), words.digits(max(good))
    return f"{start} between {low} and {high}." if low != high else f"{start} {low} each."


def partition(counts: Array) -> str:
    held, sizes = (counts > 0).sum(axis=1), counts.sum(axis=1)
    classes = f"{held.min()}" if held.min() == held.max() else f"between {held.min()} and {held.max()}"
    samples = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
    return f"A client holds {classes} of the {counts.shape[1]} classes, and {samples} training samples."
