"""What an audit found, in sentences for a person who never heard of federated learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.audit import people
from equipoise.audit.comparing import ENOUGH, LEVEL, average, numbers, tests
from equipoise.audit.data import MEASURES, AuditData
from equipoise.audit.plan import CLEAN
from equipoise.results import Table
from equipoise.results.rows import table_of, typed

KEPT = 0.9
"""The part of its own accuracy without an attack that a method keeps if it survives one."""
USEFUL = 0.75
"""The part of the best method's accuracy without an attack that it must still reach: nothing useless survives."""
ENOUGH_ACCURACY = 0.95
"""The part of the best accuracy below which evenness has been paid for."""
_SPREAD = ("accuracy_std", "best_10", "worst_10")
_LEVELLING = ("method", "attack", "deviation", "best_10", "worst_10", "seeds", "verdict", "sentence")


# ------------------------------------------------------------------------------------------------- levelling down


def levelling_down(data: AuditData) -> Table:
    """Each method against the baseline, by attack: did clients become more alike because the best-off lost?

    The columns deviation, best_10 and worst_10 are differences to the baseline. The verdict, from five seeds on by
    what is significant (as `tests` has it, with all methods counted), and below by the numbers as they are with
    "perhaps":

    - "levelling down": the deviation fell, the best-served 10% lost, and the worst-served 10% did not gain
    - "lifts the worst-off": the deviation fell, and the worst-served 10% gained
    - "unclear": the deviation fell, but nobody clearly gained or lost
    - "within noise": the deviation is smaller, but not significantly
    - "no smaller spread", "not measured"
    """
    rows = []
    compared = _by_key(tests(data, measures=_SPREAD))
    means = {key: average(found) for key, found in numbers(data).items()}
    for attack in (card.name for card in data.attacks):
        for name in (card.name for card in data.methods if card.name != data.baseline):
            row = [compared.get((name, attack, m), _NOTHING) for m in _SPREAD]
            seeds = min(int(r["seeds"]) for r in row)
            verdict = _levelled(*row) if seeds else "not measured"
            few = 0 < seeds < ENOUGH
            spread = [means.get((m, attack, "accuracy_std"), np.nan) for m in (name, data.baseline)]
            sentence = _levelling_sentence(verdict, name, data.baseline, attack, spread, row[1:])
            sentence += f" There are {_too_few(seeds)}." if few else ""
            found = (name, attack, *(r["difference"] for r in row), seeds, f"perhaps {verdict}" if few else verdict)
            rows.append(dict(zip(_LEVELLING, (*found, sentence), strict=True)))
    return table_of(typed(rows, _LEVELLING))


_NOTHING: Mapping[str, Any] = {"difference": float("nan"), "p_holm": float("nan"), "seeds": 0}


def _clear(row: Mapping[str, Any]) -> bool:
    """Whether a difference counts: a significant one, or any where there are too few seeds to tell."""
    return bool(row["seeds"] < ENOUGH or row["p_holm"] <= LEVEL)


def _levelled(spread: Mapping[str, Any], best: Mapping[str, Any], worst: Mapping[str, Any]) -> str:
    if not spread["difference"] < 0:
        return "no smaller spread"
    if not _clear(spread):
        return "within noise"
    if _clear(worst) and worst["difference"] > 0:
        return "lifts the worst-off"
    return "levelling down" if _clear(best) and best["difference"] < 0 else "unclear"


def _levelling_sentence(
    verdict: str, name: str, base: str, attack: str, spread: Sequence[float], tails: Sequence[Mapping[str, Any]]
) -> str:
    if verdict == "not measured":
        return f"{name} and {base} have no run in common {_where(attack)}."
    best, worst = map(_moved, tails)
    alike = f"deviation {percent(spread[0])}, {base} {percent(spread[1])}"
    if verdict == "no smaller spread":
        return f"{name} makes clients no more alike than {base} {_where(attack)} ({alike})."
    if verdict == "within noise":
        return f"Whether {name} makes clients more alike than {base} {_where(attack)} is not clear ({alike})."
    change = f"the best-served tenth of them {best}, the worst-served tenth {worst}"
    start = f"{name} makes clients more alike than {base} {_where(attack)} ({alike})"
    return {
        "levelling down": f"{start}, but by levelling down: {change}.",
        "lifts the worst-off": f"{start}, and lifts the worst-off: {change}.",
        "unclear": f"{start}, but it is unclear who gained or lost: {change}.",
    }[verdict]


def _moved(row: Mapping[str, Any]) -> str:
    noise = "" if _clear(row) else " (within noise)"
    if round(abs(row["difference"]), 3) == 0:
        return f"moved by {points(0.0)}"
    return f"{'gained' if row['difference'] > 0 else 'lost'} {points(abs(row['difference']))}{noise}"


# ------------------------------------------------------------------------------------------------- headline


@dataclass(frozen=True)
class _Story:
    """An audit, with its means and its tests at hand."""

    data: AuditData
    means: Mapping[tuple[str, str, str], float]
    had: Mapping[tuple[str, str], float]
    """Accuracy without an attack, by method and attack: that of the clients that are honest under it."""
    compared: Mapping[tuple[str, str, str], Mapping[str, Any]]

    def mean(self, method: str, attack: str, measure: str = "accuracy_mean") -> float:
        return self.means.get((method, attack, measure), float("nan"))

    def order(self, attack: str, measure: str = "accuracy_mean") -> list[str]:
        """Methods that have the measure, the best first."""
        known = [c.name for c in self.data.methods if (c.name, attack, measure) in self.means]
        sign = -1.0 if MEASURES[measure].better == "high" else 1.0
        return sorted(known, key=lambda name: round(sign * self.mean(name, attack, measure), 12))

    def real(self, order: Sequence[str], attack: str, measure: str = "accuracy_mean") -> str:
        """Whether the first is really ahead of the baseline; if it is the baseline, of the second."""
        ahead = order[0] != self.data.baseline
        row = self.compared.get((order[0] if ahead else order[1], attack, measure), _NOTHING)
        if row["seeds"] == 0:
            return f"{order[0]} and {self.data.baseline} have no run in common to compare."
        if row["seeds"] < ENOUGH:
            return f"Whether this difference is real: {_too_few(row['seeds'])}."
        if row["verdict"] == "no significant difference":
            return f"There is no significant difference ({row['seeds']} repeated runs)."
        if (row["verdict"] == "better") != ahead:
            return "In the seeds that both have, it is the other way round."
        chance = "p < 0.001" if row["p_holm"] < 0.001 else f"p = {row['p_holm']:.3f}"
        return f"Chance hardly explains the difference ({row['seeds']} repeated runs, {chance})."

    def rival(self, order: Sequence[str]) -> str:
        """Whom the first is compared with."""
        return self.data.baseline if order[0] != self.data.baseline else order[1]


def headline(data: AuditData) -> list[str]:
    """Who won on accuracy, who on evenness, who survived each attack, and whether the differences are real."""
    means = {key: average(found) for key, found in numbers(data).items()}
    compared = _by_key(tests(data, measures=("accuracy_mean", *_SPREAD)))
    story = _Story(data, means, people.means(people.before(data.clients)), compared)
    attacks = [card.name for card in data.attacks]
    first = CLEAN if CLEAN in attacks else attacks[0] if attacks else CLEAN
    sentences = [_accuracy(story, first), _evenness(story, first)]
    sentences += [_attack(story, attack, first if first == CLEAN else "") for attack in attacks if attack != first]
    return [s for s in (*sentences, _failures(data)) if s]


def _accuracy(story: _Story, attack: str) -> str:
    order = story.order(attack)
    if not order:
        return "No run was finished, so nothing can be said of accuracy."
    right = f"{percent(story.mean(order[0], attack))} of a client's test samples are answered right, on average"
    if len(order) == 1:
        return f"Only {order[0]} has a result: {right}. There is nothing to compare it with."
    rival = story.rival(order)
    against = f", against {percent(story.mean(rival, attack))} with {rival}" if rival in order else ""
    title = f"Most accurate {_where(attack)}: {_named(story, order, attack)}."
    return f"{title} {right[0].upper()}{right[1:]}{against}. {story.real(order, attack)}"


def _evenness(story: _Story, attack: str) -> str:
    order = story.order(attack, "accuracy_std")
    if len(order) < 2:
        return ""
    first, rival = order[0], story.rival(order)
    apart, against = (points(story.mean(name, attack, "accuracy_std")) for name in (first, rival))
    parts = [f"Most even {_where(attack)}: {_named(story, order, attack, 'accuracy_std')}."]
    parts[0] += f" Clients' accuracies lie {apart} around their mean (standard deviation)"
    parts[0] += f", against {against} with {rival}." if rival in order else "."
    parts.append(story.real(order, attack, "accuracy_std"))
    mean = story.mean(first, attack)
    best = max((story.mean(name, attack) for name in story.order(attack)), default=mean)
    if mean < ENOUGH_ACCURACY * best:
        parts.append(f"It pays with accuracy: {percent(mean)} on average, where {percent(best)} can be had.")
    tails = [story.compared.get((first, attack, m), _NOTHING) for m in ("best_10", "worst_10")]
    spread = story.compared.get((first, attack, "accuracy_std"), _NOTHING)
    if spread["seeds"] >= ENOUGH and _levelled(spread, *tails) == "levelling down":
        best_off, worst_off = map(_moved, tails)
        parts.append(f"It levels down: the best-served tenth {best_off}, the worst-served tenth {worst_off}.")
    return " ".join(parts)


def _attack(story: _Story, attack: str, clean: str) -> str:
    order = story.order(attack)
    if not order:
        return f"Under {attack}, no run was finished."
    first = order[0]
    share = attackers(story.data, attack)
    crowd = f" ({share:.0%} of the clients malicious)" if share > 0 else ""
    kept = f"{percent(story.mean(first, attack))} right"
    kept += f", where the same clients had {percent(story.had[first, attack])}" if (first, attack) in story.had else ""
    parts = [f"Under {attack}{crowd}, {_named(story, order, attack)} keeps the most accuracy: {kept}."]
    if len(order) > 1:
        rival = story.rival(order)
        parts += [f"{rival} keeps {percent(story.mean(rival, attack))}."] if rival in order else []
        parts.append(story.real(order, attack))
    known = [name for name in order if (name, attack) in story.had]
    if known:
        words = ", ".join(_survivors(story, known, attack, clean)) or "none"
        rule = f"at least {KEPT:.0%} of what they had and {USEFUL:.0%} of the best accuracy {_where(clean)}"
        parts.append(f"Survived, with {rule}: {words}.")
    return " ".join(parts)


def _survivors(story: _Story, names: Sequence[str], attack: str, clean: str) -> list[str]:
    best = max(story.mean(name, clean) for name in story.order(clean))

    def survived(name: str) -> bool:
        now = story.mean(name, attack)
        return now >= KEPT * story.had[name, attack] and now >= USEFUL * best

    return [name for name in names if survived(name)]


def _named(story: _Story, order: Sequence[str], attack: str, measure: str = "accuracy_mean") -> str:
    """The first, and whoever is level with it."""
    top = story.mean(order[0], attack, measure)
    return " and ".join(name for name in order if abs(story.mean(name, attack, measure) - top) < 1e-12)


def _failures(data: AuditData) -> str:
    cells = data.cells
    if "status" not in cells or "method" not in cells:
        return ""
    failed = cells["method"][np.asarray(cells["status"] != "done", bool)]
    if not len(failed):
        return ""
    counts = ", ".join(f"{name} ({int((failed == name).sum())})" for name in dict.fromkeys(failed.tolist()))
    verb = "is" if len(failed) == 1 else "are"
    return f"{len(failed)} of {len(cells)} runs failed and {verb} left out: {counts}."


# ------------------------------------------------------------------------------------------------- words


def attackers(data: AuditData, attack: str) -> float:
    """The share of clients that are malicious under an attack; NaN where the audit does not say."""
    table = data.clients
    if {"attack", "malicious"} <= set(table.columns):
        rows = table["malicious"][np.asarray(table["attack"] == attack, bool)]
        if len(rows):
            return float(rows.astype(np.float64).mean())
    given = next((card.parameters for card in data.attacks if card.name == attack), {})
    fraction, added = given.get("fraction"), given.get("added")
    if isinstance(added, int | float) and added >= 0:
        return added / (1.0 + added)
    return float(fraction) if isinstance(fraction, int | float) else float("nan")


def percent(value: float) -> str:
    return f"{100 * value:.1f}%" if np.isfinite(value) else "nothing"


def points(value: float) -> str:
    return f"{100 * value:.1f} points" if np.isfinite(value) else "nothing"


def _where(attack: str) -> str:
    return "without an attack" if attack == CLEAN else f"under {attack}"


def _too_few(seeds: int) -> str:
    return f"too few seeds to tell ({seeds} repeated run{'s' if seeds != 1 else ''}; it takes {ENOUGH})"


def _by_key(table: Table) -> dict[tuple[str, str, str], dict[str, Any]]:
    columns = {name: table[name].tolist() for name in table}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {(row["method"], row["attack"], row["measure"]): row for row in rows}
