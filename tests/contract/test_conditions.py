"""What a rule or filter needs of the cohort's size m and of f is said before round 0, with both numbers.

Every part with an `f` has an entry: the fewest clients for an f. A new one without an entry fails.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from equipoise import contract, registry
from equipoise.aggregators.bucketing import Bucketing
from equipoise.aggregators.fltrust import FLTrust
from equipoise.aggregators.k_norm import KNorm
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.nnm import NNM
from equipoise.core import Filter, Method, ServerRule, WeightedMean, chain
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.models import build
from equipoise.streams import Stream

LEAST: dict[str, Callable[[int], int]] = {
    "arc": lambda f: 2 * f + 1,
    "bulyan": lambda f: 4 * f + 3,
    "dnc": lambda f: math.ceil(registry.rules()["dnc"].make().c * f) + 1,
    "k-loss": lambda f: f + 1,
    "k-norm": lambda f: f + 1,
    "krum": lambda f: f + 3,
    "multi-krum": lambda f: f + 3,
    "nnm": lambda f: 2 * f + 1,
    "trimmed-mean": lambda f: 2 * f + 1,
}
PARTS = {**registry.rules(), **registry.filters()}
WITH_F = [n for n, e in PARTS.items() if any(p.name == "f" for p in e.parameters)]


def as_rule(part: Any) -> ServerRule:
    return chain(part, WeightedMean()) if isinstance(part, Filter) else part


def start(server: ServerRule, n: int, **participation: Any) -> Simulation:
    """A run that has not begun; what cannot work is refused here."""
    fed = contract.sample_federation((5,) * n)
    model = build("linear", (5,), 3, Stream(1))
    scenario = Scenario(fed, model, Train(rounds=1), Participation(**participation))
    return Simulation(scenario, Method(server=server), Run(device="cpu"))


def numbers(message: str) -> set[int]:
    return {int(n) for n in re.findall(r"-?\d+", message)}


def test_every_part_with_an_f_has_an_entry_and_every_entry_a_part() -> None:
    assert set(LEAST) == set(WITH_F)


@pytest.mark.parametrize("name", WITH_F)
@pytest.mark.parametrize("f", [0, 1, 2, 3])
def test_too_few_clients_are_refused_before_round_0_with_both_numbers(name: str, f: int) -> None:
    part, least = as_rule(PARTS[name].make(f=f)), LEAST[name](f)
    for n in range(1, least):
        for refusing in (lambda n=n: part.check(n), lambda n=n: start(part, n)):
            with pytest.raises(EquipoiseError) as refused:
                refusing()
            assert name in refused.value.message and {n, f} <= numbers(refused.value.message), refused.value.message
            assert refused.value.hint
    start(part, least).step()


@pytest.mark.parametrize("name", WITH_F)
def test_a_cohort_that_shrank_is_refused_in_its_round_and_the_model_stays(name: str) -> None:
    f = 2
    part, least = as_rule(PARTS[name].make(f=f)), LEAST[name](f)
    sim = start(part, least)
    sim.server.excluded[0] = True
    before, record = sim.server.w.clone(), sim.step()
    assert {least - 1, f} <= numbers(record.skipped) and bool((sim.server.w == before).all())


@pytest.mark.parametrize("name", WITH_F)
@pytest.mark.parametrize("f", [-1, 1.5])
def test_an_f_that_is_no_count_is_refused_when_the_part_is_made(name: str, f: float) -> None:
    with pytest.raises(EquipoiseError, match=f"{name}: f is {f}"):
        PARTS[name].make(f=f)


@pytest.mark.parametrize("name", [n for n in PARTS if n not in WITH_F])
def test_parts_without_an_f_take_cohorts_of_any_size(name: str) -> None:
    as_rule(PARTS[name].make()).check(1)


def test_it_is_the_rows_that_a_filter_leaves_that_count() -> None:
    krum = Krum(f=2)  # needs 5 rows
    for server, fewest in (
        (chain(Bucketing(s=2), krum), 9),
        (chain(KNorm(f=1), krum), 6),
        (chain(KNorm(f=1), Bucketing(s=2), krum), 10),
        (chain(NNM(f=1), krum), 5),
    ):
        start(server, fewest).step()
        with pytest.raises(EquipoiseError, match=r"krum: m = 4 .* f = 2"):
            start(server, fewest - 1)


def test_it_is_the_clients_asked_in_a_round_that_count() -> None:
    start(Krum(f=2), 12, per_round=5)
    with pytest.raises(EquipoiseError, match=r"krum: m = 4 .* f = 2"):
        start(Krum(f=2), 12, per_round=4)


@pytest.mark.parametrize("server", [FLTrust(), chain(KNorm(f=1), FLTrust())], ids=["alone", "behind a filter"])
def test_a_rule_that_needs_data_of_the_servers_own_is_refused_without(server: ServerRule) -> None:
    start(server, 5).step()
    fed = replace(contract.sample_federation((5,) * 5), root=None)
    with pytest.raises(EquipoiseError, match="FLTrust needs data of the server's own") as refused:
        Simulation(Scenario(fed, build("linear", (5,), 3, Stream(1))), Method(server=server), Run(device="cpu"))
    assert "data.root" in (refused.value.hint or "")
