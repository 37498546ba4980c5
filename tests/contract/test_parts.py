"""The contract, over every method, rule, filter and attack there is. A new part joins by being in its folder."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import contract, registry
from equipoise.core import Method, ServerRule

RULES = registry.rules()
METHODS = registry.methods()
EVERY = {**{f"rule {n}": e for n, e in RULES.items()}, **{f"method {n}": e for n, e in METHODS.items()}}


def server_rule(name: str) -> ServerRule:
    made = EVERY[name].make()
    return made.server if isinstance(made, Method) else made


@pytest.mark.parametrize("check", list(contract.server_rule_checks()), ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_server_rule(name: str, check: Callable[[ServerRule, int], None], seed: int) -> None:
    check(server_rule(name), seed)


@pytest.mark.parametrize("name", METHODS)
def test_clients_as_rows_equal_clients_one_by_one(name: str) -> None:
    contract.vectorised_equals_loop(METHODS[name].make())


@pytest.mark.parametrize("name", METHODS)
def test_clients_leave_alone_what_they_are_given(name: str) -> None:
    contract.clients_change_no_input(METHODS[name].make())


@pytest.mark.parametrize("name", METHODS)
def test_odd_clients_do_no_harm(name: str) -> None:
    contract.survives_odd_clients(METHODS[name].make())


@pytest.mark.parametrize("name", METHODS)
def test_malicious_clients_send_the_same_without_models_of_their_own(name: str) -> None:
    contract.outward_sends_the_same(METHODS[name].make())


@pytest.mark.parametrize("name", registry.filters())
def test_filter(name: str) -> None:
    entry = registry.filters()[name]
    assert contract.problems(entry.make(), entry.doc) == []


@pytest.mark.parametrize("name", registry.attacks())
def test_attack(name: str) -> None:
    entry = registry.attacks()[name]
    of_three_classes = {"pairs": ((1, 2),)} if name == "label-flip" else {}
    assert contract.problems(entry.make(fraction=0.25, **of_three_classes), entry.doc) == []


@pytest.mark.parametrize("kind", ["methods", "rules", "filters", "attacks"])
def test_every_file_opens_with_words_reference_equation_and_departures(kind: str) -> None:
    for name, entry in registry.entries(kind).items():  # type: ignore[arg-type]
        if name == "weighted-mean":
            continue
        assert entry.doc.summary and entry.doc.reference and entry.doc.equation and entry.doc.departures, name
