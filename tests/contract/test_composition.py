"""Any method with any server rule and any filter, as far as they fit: a new part joins by being in its folder.

A method whose recipe takes a `server` runs with every rule; any other keeps its own. Both take every filter in front.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from equipoise import contract, registry
from equipoise.core import Cohort, Filter, Method, ServerRule, chain
from equipoise.engine.run import Simulation
from equipoise.errors import EquipoiseError

METHODS, RULES, FILTERS = registry.methods(), registry.rules(), registry.filters()
SIZES = (6, 5, 1, 4, 7, 3, 5, 2)
THOROUGH = ("fedavg", "fedprox", "fedtilt", "ditto", "fedlf", "eagle", "rffl")
"""Methods that are tried with every rule each time; the others with a few, and with every one in the slow tests."""
FEW = ("coordinate-median", "krum", "centred-clipping")
ROUNDS = 2


def takes_any_server(name: str) -> bool:
    return any(p.name == "server" for p in METHODS[name].parameters)


def servers(name: str) -> Iterator[tuple[str, Method]]:
    """The method with its own server rule and every other that it takes, under a name for messages."""
    yield f"{name} with its own rule", METHODS[name].make()
    for rule, entry in RULES.items() if takes_any_server(name) else ():
        yield f"{name} with {rule}", METHODS[name].make(server=entry.make())


def compositions(name: str, every: bool) -> Iterator[tuple[str, Method]]:
    """The same, and every filter that fits in front of the method's own rule."""
    few = {f"{name} with {rule}" for rule in FEW} | {f"{name} with its own rule"}
    for told, method in servers(name):
        if large_enough(method.server) and (every or told in few):
            yield told, method
    yield from filtered(METHODS[name].make(), f"{name} with its own rule")


def filtered(method: Method, told: str) -> Iterator[tuple[str, Method]]:
    for part, entry in FILTERS.items():
        if fits(entry.make(), method.server):
            yield f"{told} behind {part}", replace(method, server=chain(entry.make(), method.server))


def fits(part: Filter, rule: ServerRule) -> bool:
    return (part.keeps_rows or not rule.per_client) and large_enough(rule, part.check(len(SIZES)))


def large_enough(rule: ServerRule, rows: int = len(SIZES)) -> bool:
    try:
        rule.check(rows)
    except EquipoiseError:
        return False
    return True


def run(method: Method, executor: str, told: str) -> Simulation:
    simulation = contract.sample_run(method, executor, rounds=0, sizes=SIZES)
    for _ in range(ROUNDS):
        record = simulation.step()
        assert record.skipped == "", f"{told}: round {record.round} was skipped: {record.skipped}"
    return simulation


@pytest.mark.parametrize("name", METHODS)
def test_a_method_runs_with_rules_and_filters_that_fit_and_rows_equal_loop(name: str) -> None:
    rows_equal_loop(name, every=name in THOROUGH)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in METHODS if takes_any_server(n) and n not in THOROUGH])
def test_and_with_every_rule_there_is(name: str) -> None:
    rows_equal_loop(name, every=True)


def rows_equal_loop(name: str, every: bool) -> None:
    for told, method in compositions(name, every):
        rows, loop = (run(method, executor, told).dump() for executor in ("vmap", "loop"))
        assert rows.keys() == loop.keys(), told
        for key, value in loop.items():
            away = float((rows[key].double() - value.double()).norm())
            assert away <= 1e-8 * max(1e-12, float(value.double().norm())), f"{told}: {key} differs by {away:.1e}"
            assert bool(torch.isfinite(value.double()).all()), f"{told}: {key} is not finite"


@pytest.mark.parametrize("rule", RULES)
def test_every_filter_stands_in_front_of_every_rule_that_it_fits(rule: str) -> None:
    # Rows and loop are not compared here: mixing makes ties, which rounding decides.
    for told, method in filtered(METHODS["fedavg"].make(server=RULES[rule].make()), rule):
        assert all(bool(torch.isfinite(t.double()).all()) for t in run(method, "vmap", told).dump().values()), told


@pytest.mark.parametrize("name", [n for n in METHODS if takes_any_server(n)])
def test_the_rule_that_is_given_is_the_rule_that_is_used(name: str) -> None:
    for rule, entry in RULES.items():
        given = entry.make()
        assert METHODS[name].make(server=given).server == given, f"{name} with {rule}"
        behind = chain(Double(), given)
        assert METHODS[name].make(server=behind).server == behind, f"{name} with {rule} behind a filter"


@dataclass(frozen=True)
class Double(Filter):
    def __call__(self, cohort: Cohort) -> tuple[Cohort, dict[str, Any]]:
        return cohort.with_updates(2 * cohort.updates), {"rows": len(cohort)}


@dataclass(frozen=True)
class Pairs(Filter):
    """Mixes neighbouring clients into new rows."""

    keeps_rows = False

    def __call__(self, cohort: Cohort) -> tuple[Cohort, dict[str, Any]]:
        half = len(cohort) // 2 * 2
        mixed = (cohort.updates[0:half:2] + cohort.updates[1:half:2]) / 2
        losses = None if cohort.losses is None else cohort.losses[0:half:2]
        kept = {"ids": cohort.ids[0:half:2], "sizes": cohort.sizes[0:half:2], "losses": losses}
        signals = {n: s[0:half:2] for n, s in cohort.signals.items()}
        return replace(cohort, updates=mixed, signals=signals, **kept), {"rows": half // 2}


@pytest.mark.parametrize("name", METHODS)
def test_a_filter_in_front_of_a_method_is_seen_in_every_round(name: str) -> None:
    method = METHODS[name].make()
    behind = replace(method, server=chain(Double(), method.server))
    assert run(behind, "vmap", name).step().info["Double.rows"] > 0
    assert (behind.server.robust, behind.server.per_client, behind.server.needs) == (
        method.server.robust,
        method.server.per_client,
        method.server.needs,
    )


@pytest.mark.parametrize("name", METHODS)
def test_filters_that_mix_clients_are_refused_by_rules_that_answer_each_and_taken_by_all_others(name: str) -> None:
    for told, method in servers(name):
        for part in [Pairs(), *(entry.make() for entry in FILTERS.values())]:
            if part.keeps_rows or not method.server.per_client:
                chain(part, method.server)
                continue
            with pytest.raises(EquipoiseError, match=f"{type(part).__name__} mixes clients into new rows") as caught:
                chain(part, method.server)
            assert type(method.server).__name__ in caught.value.message, told


@pytest.mark.parametrize("rule", [n for n, e in RULES.items() if not e.make().per_client])
def test_a_rule_works_on_rows_that_are_mixtures(rule: str) -> None:
    given = RULES[rule].make()
    cohort = contract.sample_cohort(3, k=16)
    outcome = chain(Pairs(), given)(cohort, given.init(cohort.start))
    assert bool(torch.isfinite(outcome.direction).all()) and outcome.info["Pairs.rows"] == 8


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_stands_last_and_alone(rule: str) -> None:
    given = RULES[rule].make()
    for parts in ([given, Double()], [given, given], [Double()]):
        with pytest.raises(EquipoiseError, match="server rule last"):
            chain(*parts)
