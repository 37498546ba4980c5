"""Which method to take for a stated wish, from audits already run: nothing is trained for it.

A method is a name with its parameters. In each audit, those are considered that no other method beats both in accuracy
and in what is wished for (the front; for the wish accuracy, in that of the worst-served). Wishes that a useless model
could fulfil, such as evenness, also ask for nearly the best accuracy. With several audits, being considered in more of
them comes first, then the mean place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.audit.comparing import ENOUGH, against, average, numbers, tests
from equipoise.audit.data import MEASURES, AuditData
from equipoise.audit.findings import ENOUGH_ACCURACY, attackers, percent
from equipoise.audit.fronts import beaten
from equipoise.audit.plan import CLEAN
from equipoise.errors import EquipoiseError, nearest
from equipoise.results import Table
from equipoise.results.rows import table_of, typed

_COLUMNS = ("audit", "method", "attack", "accuracy", "measure", "value", "place", "front", "considered", "chosen")


@dataclass(frozen=True)
class Wish:
    """What a person may want, the measure that says how far it is fulfilled, and whether accuracy has to be kept."""

    name: str
    measure: str
    words: str
    beside: str = "accuracy_mean"
    """The measure that the front weighs it against."""
    keep: bool = False
    attacked: bool = False


WISHES: Mapping[str, Wish] = {
    w.name: w
    for w in (
        Wish("accuracy", "accuracy_mean", "the highest mean accuracy", beside="worst_10"),
        Wish("worst-10", "worst_10", "the highest accuracy of the worst-served 10% of clients"),
        Wish("evenness", "accuracy_std", "the smallest deviation of accuracy between clients", keep=True),
        Wish("gaps", "gap_variance", "the smallest variance of clients' losses above their own optimum", keep=True),
        Wish("under-attack", "accuracy_mean", "the highest accuracy under the worst of the attacks", attacked=True),
        Wish(
            "reward-contribution", "pearson", "the highest correlation of what clients reach alone and get", keep=True
        ),
    )
}
_OTHER_NAMES = {
    "worst 10 first": "worst-10",
    "worst": "worst-10",
    "even": "evenness",
    "gap": "gaps",
    "reward": "reward-contribution",
    "contribution": "reward-contribution",
}
_SHARE = r"(\d+(?:\.\d+)?) ?(%?)"
_ATTACKED = re.compile(rf"under (?:attack|{_SHARE} attack(?:s|ers)?)(?: {_SHARE})?")


@dataclass(frozen=True)
class Advice:
    """What to take, why, and how sure that is."""

    method: str
    """Empty where the audits say nothing of the wish."""
    parameters: Mapping[str, Any]
    rule: str
    confidence: str
    table: Table
    """A row per (audit, method): audit, method, attack, accuracy, measure, value, place, front, considered, chosen."""


def advise(audits: Sequence[AuditData], wish: str) -> Advice:
    """The method for a wish: one of WISHES; "under-attack" may name a share, as in "under-attack 20%"."""
    wanted, share = parse(wish)
    if not audits:
        raise EquipoiseError("advise: no audit given", "equipoise audit runs one")
    rows, remarks = [], []
    for k, data in enumerate(audits):
        attacks, remark = _attacks(data, wanted, share)
        rows += _rows(k, data, wanted, attacks)
        remarks += [remark] if remark else []
    order = _order(rows)
    chosen = order[0] if order else ("", "{}")
    for row in rows:
        row["chosen"] = row["key"] == chosen
    rule = _rule(wanted, share, len(audits))
    sure = _confidence(audits, wanted, rows, order)
    found: Mapping[str, Any] = next((row["parameters"] for row in rows if row["chosen"]), {})
    table = table_of(typed([{name: row[name] for name in _COLUMNS} for row in rows], _COLUMNS))
    return Advice(chosen[0], dict(found), rule, " ".join([sure, *dict.fromkeys(remarks)]), table)


def parse(wish: str) -> tuple[Wish, float | None]:
    """A wish in words, and the share of attackers that it names."""
    plain = "" if re.search(r"(?<!\w)-", wish) else " ".join(re.split(r"[\s_=-]+", wish.strip().lower()))
    attacked = _ATTACKED.fullmatch(plain)
    if attacked:
        share, unit = (attacked[1], attacked[2]) if attacked[1] else (attacked[3], attacked[4])
        return WISHES["under-attack"], _share(float(share), bool(unit), wish) if share else None
    plain = plain.replace("%", "")
    known = {name.replace("-", " "): name for name in WISHES} | _OTHER_NAMES
    if plain not in known:
        raise EquipoiseError(f"advise: {wish!r} is not a wish", nearest(plain.replace(" ", "-"), WISHES))
    return WISHES[known[plain]], None


def _share(value: float, in_percent: bool, wish: str) -> float:
    share = value / 100 if in_percent or value >= 1 else value
    if not 0.0 < share < 1.0:
        raise EquipoiseError(f"advise: {wish!r} names {share:.0%} attackers", "a share above 0%, below 100%")
    return share


# ------------------------------------------------------------------------------------------------- one audit


def _attacks(data: AuditData, wish: Wish, share: float | None) -> tuple[list[str], str]:
    """The attacks to look at, and what has to be said of them."""
    names = [card.name for card in data.attacks]
    if not wish.attacked:
        return ([CLEAN] if CLEAN in names else names[:1]), ""
    bad = [name for name in names if name != CLEAN]
    if share is None:
        return bad, ""
    shares = {name: attackers(data, name) for name in bad}
    enough = [name for name in bad if shares[name] >= share - 0.005]
    if enough or not bad:
        return enough, ""
    most = max((s for s in shares.values() if np.isfinite(s)), default=float("nan"))
    said = f"has at most {percent(most)} attackers" if np.isfinite(most) else "does not say how many attackers it had"
    return [n for n in bad if shares[n] == most or not np.isfinite(most)], f'But the audit "{data.title}" {said}.'


def _rows(k: int, data: AuditData, wish: Wish, attacks: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each method that has both numbers."""
    found = numbers(data)
    usual = [CLEAN] if wish.attacked and CLEAN in {card.name for card in data.attacks} else attacks
    rows = []
    for card in data.methods:
        value, attack = _worst(found, card.name, wish.measure, attacks)
        accuracy, _ = _worst(found, card.name, "accuracy_mean", usual)
        if np.isnan(value) or np.isnan(accuracy):
            continue
        row = {"audit": data.title, "number": k, "method": card.name, "parameters": card.parameters, "attack": attack}
        row["attacks"] = attacks
        row["key"] = card.name, json.dumps(dict(card.parameters), sort_keys=True, default=str)
        row["beside"], _ = _worst(found, card.name, wish.beside, usual)
        rows.append({**row, "accuracy": accuracy, "measure": wish.measure, "value": value})
    _judge(rows, MEASURES[wish.measure].better == "high", wish.keep)
    return rows


def _worst(found: Mapping[tuple[str, str, str], Any], method: str, measure: str, attacks: Sequence[str]) -> Any:
    """The least mean under any of the attacks, and which; NaN where one of them has none. Only accuracy has several."""
    values = [(average(found.get((method, attack, measure), {})), attack) for attack in attacks]
    return min(values) if values and not any(np.isnan(v) for v, _ in values) else (float("nan"), "")


def _judge(rows: list[dict[str, Any]], high: bool, keep: bool) -> None:
    """Who is on the front, who is considered, and in which place each is."""
    if not rows:
        return
    accuracy = np.array([row["accuracy"] for row in rows])
    points = np.array([(row["beside"], row["value"]) for row in rows])
    front = np.asarray(~beaten(points, np.array([True, high])).any(1))
    considered = front & (accuracy >= (ENOUGH_ACCURACY if keep else 0.0) * accuracy.max())
    values = np.round(points[:, 1] * (-1.0 if high else 1.0), 12)
    for i, row in enumerate(rows):
        row["place"] = int((values < values[i]).sum()) + 1
        row["front"], row["considered"] = bool(front[i]), bool(considered[i])


# ------------------------------------------------------------------------------------------------- all of them


def _order(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """All methods, the best first; empty where none is considered anywhere."""
    by_key: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_key.setdefault(row["key"], []).append(row)
    scores = {
        key: (-sum(r["considered"] for r in mine), sum(r["place"] for r in mine) / len(mine))
        for key, mine in by_key.items()
    }
    return sorted(scores, key=lambda key: scores[key]) if any(r["considered"] for r in rows) else []


def _rule(wish: Wish, share: float | None, audits: int) -> str:
    what = wish.words
    front = f"no other is better both in {MEASURES[wish.beside].label} and in {MEASURES[wish.measure].label}"
    if wish.attacked:
        what += f" by at least {share:.0%} of the clients" if share is not None else ""
        front = "no other is more accurate both without an attack and under the worst one"
    keep = f" and which keep at least {ENOUGH_ACCURACY:.0%} of the best accuracy" if wish.keep else ""
    many = f", in as many of the {audits} audits as possible, then by the mean place" if audits > 1 else ""
    return f"Of the methods of which {front}{keep}: the one with {what}{many}."


def _confidence(
    audits: Sequence[AuditData], wish: Wish, rows: Sequence[Mapping[str, Any]], order: Sequence[tuple[str, str]]
) -> str:
    if not order:
        what = "with such an attack" if wish.attacked else f"with the measure {MEASURES[wish.measure].label!r}"
        return f"No advice: no method has a finished run {what}."
    scope = "one audit" if len(audits) == 1 else f"{len(audits)} audits"
    if len(order) == 1:
        return f"Unsure: it is the only method with a result, in {scope}; there is no second to compare it with."
    second = next(row["method"] for row in rows if row["key"] == order[1])
    verdicts = []
    for k, data in enumerate(audits):
        mine = [row for row in rows if row["number"] == k and row["chosen"]]
        if mine and any(row["number"] == k and row["key"] == order[1] for row in rows):
            verdicts.append(_against(data, wish, mine[0], second))
    return _words(verdicts, second)


def _against(data: AuditData, wish: Wish, mine: Mapping[str, Any], second: str) -> str:
    """The verdict of a test of the chosen method against the second, in one audit."""
    if not wish.attacked:
        compared = tests(data, baseline=second, measures=[wish.measure])
        return str(compared.filter(method=mine["method"], attack=mine["attack"])["verdict"][0])
    found, attacks = numbers(data), mine["attacks"]
    ours, theirs = (
        _lowest([found.get((name, a, wish.measure), {}) for a in attacks]) for name in (mine["method"], second)
    )
    return against(ours, theirs, MEASURES[wish.measure])


def _lowest(runs: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """By seed, the least under any of the attacks: each method has its own worst one."""
    seeds = set.intersection(*(set(run) for run in runs))
    return {seed: min(run[seed] for run in runs) for seed in seeds}


def _words(verdicts: Sequence[str], second: str) -> str:
    scope = "one audit" if len(verdicts) == 1 else f"{len(verdicts)} audits"
    better, unsure = verdicts.count("better"), verdicts.count("too few seeds to tell")
    rival = f"the second, {second}"
    if not verdicts:
        return f"Unsure: no audit has both it and {rival}."
    if better == len(verdicts):
        return f"Quite sure: it is significantly better than {rival}, in {scope}; other data may give another answer."
    if unsure == len(verdicts):
        return f"A guess: too few seeds to tell it from {rival} (it takes {ENOUGH})."
    if "worse" in verdicts:
        return f"Unsure: for the wish alone {second} is significantly better, but by the rule it comes second."
    if better:
        return f"Rather sure: it is significantly better than {rival}, in {better} of {len(verdicts)} audits."
    return f"Unsure: no significant difference from {rival}; either may do."
