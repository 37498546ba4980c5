"""Advice comes from the front of audits already run, with its rule, and no surer than they are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.audit.advice import WISHES, advise, parse
from equipoise.audit.data import AuditData, Card
from equipoise.errors import EquipoiseError
from equipoise.results import Table
from tests.audits import Effect, make_audit

METHODS = ("fedavg", "ditto", "even", "collapsed", "krum")
EFFECTS: dict[str, Effect | float] = {
    "ditto": 0.08,
    "even": Effect(mean=0.06, spread=0.3),
    "collapsed": Effect(mean=-0.6, spread=0.0),
    "krum": Effect(mean=-0.02, harm=0.05),
}


def audit(seeds: int = 6, **given: Any) -> AuditData:
    return make_audit(METHODS, seeds=seeds, effect=EFFECTS, luck=0.003, **given)


@pytest.mark.parametrize(
    ("wish", "method"),
    [
        ("accuracy", "ditto"),
        ("worst-10", "even"),
        ("worst 10% first", "even"),
        ("evenness", "even"),
        ("under-attack", "krum"),
        ("under 20% attackers", "krum"),
        ("reward contribution", "ditto"),
    ],
)
def test_each_wish_gets_its_method(wish: str, method: str) -> None:
    found = advise([audit()], wish)
    assert found.method == method
    assert found.table.filter(chosen=True)["method"].tolist() == [method]


@pytest.mark.parametrize("wish", WISHES)
def test_only_methods_on_the_front_are_considered(wish: str) -> None:
    table = advise([audit()], wish).table
    assert table["front"][table["considered"]].all() and table["considered"][table["chosen"]].all()


def test_a_useless_model_is_not_advised_for_being_even() -> None:
    table = advise([audit()], "evenness").table.filter(method="collapsed")
    assert table["place"][0] == 1 and table["front"][0] and not table["considered"][0]


def test_parameters_come_along() -> None:
    assert advise([audit()], "accuracy").parameters == {"lam": 1.0}


def test_the_rule_is_stated() -> None:
    assert "smallest deviation" in advise([audit()], "evenness").rule
    assert "95% of the best accuracy" in advise([audit()], "evenness").rule
    assert "by at least 20% of the clients" in advise([audit()], "under-attack 20%").rule


def test_confidence_follows_the_evidence() -> None:
    assert advise([audit()], "under-attack").confidence.startswith("Quite sure: it is significantly better")
    assert advise([audit(3)], "under-attack").confidence.startswith("A guess: too few seeds to tell")
    same = make_audit(("a", "b"), ("none",), seeds=5)
    assert "no significant difference" in advise([same], "accuracy").confidence
    assert "only method with a result" in advise([make_audit(("a",), seeds=5)], "accuracy").confidence


def test_each_method_is_tested_under_its_own_worst_attack() -> None:
    """x is at worst .6, under a; y, which is far better there, is at .2 under b."""
    made = make_audit(("x", "y"), ("none", "a", "b"), seeds=6)
    level = {("x", "a"): 0.6, ("x", "b"): 0.85, ("y", "a"): 0.9, ("y", "b"): 0.2}
    keys = zip(*(made.cells[name].tolist() for name in ("method", "attack", "seed")), strict=True)
    columns = {name: made.cells[name] for name in made.cells}
    columns["accuracy_mean"] = np.array([level.get((m, a), 0.95) + 0.001 * s for m, a, s in keys])
    found = advise([replace(made, cells=Table(columns))], "under-attack")
    assert found.method == "x" and found.confidence.startswith("Quite sure: it is significantly better than the second")


def test_only_audits_with_both_methods_are_counted() -> None:
    """Two more that have no y say nothing of it."""
    both = make_audit(("x", "y"), ("none",), seeds=6, effect={"y": -0.1}, luck=0.003)
    alone = make_audit(("x",), ("none",), seeds=6, key=1)
    assert "in one audit" in advise([both, alone, alone], "accuracy").confidence


def test_fewer_attackers_than_feared_are_mentioned() -> None:
    found = advise([audit()], "under-attack 40%")
    assert found.method == "krum" and "at most 20.0% attackers" in found.confidence
    assert "at most" not in advise([audit()], "under-attack 10%").confidence


def test_being_on_more_fronts_comes_first() -> None:
    one = make_audit(("a", "b"), ("none",), 5, effect={"b": 0.1})
    other = make_audit(("a", "b", "c"), ("none",), 5, effect={"b": 0.1, "c": 0.2}, key=1)
    third = make_audit(("b", "c"), ("none",), 5, effect={"b": 0.1}, baseline="c", key=2)
    found = advise([one, other, third], "accuracy")
    assert found.method == "b" and "of the 3 audits" in found.rule
    assert len(found.table) == 7


def test_other_parameters_make_another_method() -> None:
    one = make_audit(("a", "b"), ("none",), 5, effect={"b": 0.1})
    other = replace(one, methods=(one.methods[0], Card("b", parameters={"lam": 9})))
    found = advise([one, other], "accuracy")
    assert sorted(found.table["chosen"].tolist()) == [False, False, False, True]


def test_what_was_not_measured_gives_no_advice() -> None:
    found = advise([audit(alone=False)], "gaps")
    assert found.method == "" and found.confidence.startswith("No advice") and len(found.table) == 0
    assert advise([make_audit(attacks=("none",))], "under-attack").method == ""
    empty = replace(audit(), cells=Table({}), clients=Table({}))
    assert advise([empty], "accuracy").method == ""


@pytest.mark.parametrize(
    ("wish", "name", "share"),
    [
        ("under-attack", "under-attack", None),
        ("under-attack 20%", "under-attack", 0.2),
        ("Under 12.5 % attackers", "under-attack", 0.125),
        ("under-attack=0.3", "under-attack", 0.3),
        ("reward-contribution", "reward-contribution", None),
        ("Worst-10", "worst-10", None),
    ],
)
def test_wishes_are_understood_in_several_spellings(wish: str, name: str, share: float | None) -> None:
    found, number = parse(wish)
    assert found.name == name and number == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    "wish", ["", "speed", "under-attack 120%", "under-attack 0%", "under-attack -5%", "under-attack abc", "attack"]
)
def test_other_wishes_are_refused_with_a_hint(wish: str) -> None:
    with pytest.raises(EquipoiseError, match="hint"):
        advise([audit(1)], wish)


def test_no_audit_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="no audit"):
        advise([], "accuracy")


@settings(max_examples=20)
@given(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.sampled_from([*WISHES, "under-attack 30%"]), st.data()
)
def test_any_audit_can_be_asked(methods: int, seeds: int, clients: int, wish: str, choice: st.DataObject) -> None:
    names = METHODS[:methods]
    runs = st.tuples(st.sampled_from(names), st.sampled_from(["none", "x"]), st.integers(0, seeds - 1))
    failed = choice.draw(st.sets(runs, max_size=6))
    data = make_audit(names, ("none", "x"), seeds, clients, failed=failed, rounds=1)
    found = advise([data, data], wish)
    assert found.rule and found.confidence and (found.method in names or not found.method)
    assert "fair" not in (found.rule + found.confidence).lower()
