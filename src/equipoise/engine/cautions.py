"""What a run should be warned of before it begins: combinations that work and do less than they seem to.

Never an error: to watch a method without a defence fail is what many runs are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from equipoise.core import Chain, Method, ServerRule
from equipoise.engine.settings import Admission
from equipoise.streams import Stream
from equipoise.threat import Attack


def cautions(method: Method, attack: Attack | None, admission: Admission, n_clients: int) -> tuple[str, ...]:
    """One sentence each, for the terminal and the run's log; `n_clients` without those that the attack adds."""
    found = [_by_size(rule) for rule in _rules(method.server) if _weighs_by_size(rule, admission)]
    if attack is None:
        return tuple(found)
    bad, added = len(attack.malicious(n_clients, Stream(0))), attack.added_to(n_clients)
    if bad + added == 0:
        return (*found, *_nobody(attack, n_clients))
    if not attack.turned_away and not method.server.robust:
        found.append(_undefended(method, attack, admission))
    if attack.hostile and bad == n_clients:
        found.append(f"all {n_clients} clients are malicious, so there are no benign ones to measure anything on")
    return tuple(found)


def _nobody(attack: Attack, n_clients: int) -> Iterator[str]:
    """Of a share that comes to nobody; who asks for none gets none."""
    for name in ("fraction", "added"):
        if share := getattr(attack, name):
            yield f"{type(attack).__name__} has no attacker: {name} = {share:g} of {n_clients} clients rounds to none"


def _undefended(method: Method, attack: Attack, admission: Admission) -> str:
    name, rule = type(attack).__name__, method.server
    filters = " and ".join(type(f).__name__ for f in rule.filters) if isinstance(rule, Chain) else ""
    last = type(rule.rule if isinstance(rule, Chain) else rule).__name__
    lies = type(attack).lie is not Attack.lie and admission.guard != "off"
    stands = [*([filters] if filters else []), *(["the guard of admission"] if lies else [])]
    but = f" but {' and '.join(stands)}" if stands else ""
    return f"nothing in {method.name} defends against {name}{but}: {last} does not claim to withstand malicious clients"


def _weighs_by_size(rule: ServerRule, admission: Admission) -> bool:
    trusting = admission.guard == "off" and admission.size_cap is None
    return trusting and rule.robust and getattr(rule, "weights", "") == "size"


def _by_size(rule: ServerRule) -> str:
    return (
        f'{type(rule).__name__} withstands malicious clients, but with weights = "size" and no guard whoever claims '
        'the most samples decides: use "uniform" or "capped", or turn admission.guard on'
    )


def _rules(rule: ServerRule) -> Iterator[ServerRule]:
    """The rule, and the rules inside it."""
    yield rule
    if is_dataclass(rule):
        for inner in (getattr(rule, f.name) for f in fields(rule)):
            if isinstance(inner, ServerRule):
                yield from _rules(inner)
