"""Rules that are done before a GPU has been asked anything: the same outcomes, and what is out of the ordinary."""

import importlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from equipoise import questions
from equipoise.core import Cohort, EquipoiseError, Method, Outcome, ServerRule, State, WeightedMean
from equipoise.engine.graphs import Again
from equipoise.methods import _hulls
from equipoise.methods.cgsv import CGSV
from equipoise.methods.fedlf import FedLF
from equipoise.methods.rffl import RFFL, rffl
from equipoise.questions import Later
from equipoise.solvers import min_norm
from tests.small import cohort, simulation
from tests.unit.test_fedlf import opposed
from tests.unit.test_questions import Far, PretendedGPU, far, rounds

fedlf = importlib.import_module("equipoise.methods.fedlf")
RULES = [FedLF(), FedLF(fair="none", absent="all"), FedLF(normalise_rows=False, layer="model"), RFFL(), CGSV()]


@pytest.fixture
def hulls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A GPU that solves hulls; all of its answers are exact as long as the list says so."""
    exact = [True]

    def there(gram: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        w = min_norm(gram.as_subclass(Tensor), mask.as_subclass(Tensor)).as_subclass(type(gram))
        return w, torch.full_like(w[:, 0], exact[0], dtype=torch.bool)

    monkeypatch.setattr(_hulls, "min_norm_unasked", there)
    monkeypatch.setattr(fedlf, "solves_there", lambda device, rows: True)
    return exact


def same(a: Outcome, b: Outcome) -> None:
    assert torch.allclose(a.direction.as_subclass(Tensor), b.direction.as_subclass(Tensor), rtol=1e-4, atol=1e-6)
    assert a.exclude == b.exclude and a.stop == b.stop and a.info.keys() == b.info.keys()
    for name, told in a.info.items():
        assert torch.allclose(told, b.info[name]) if isinstance(told, Tensor) else told == b.info[name], name


@pytest.mark.usefixtures("hulls")
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_nothing_is_asked_before_everything_is_done(rule: ServerRule) -> None:
    with PretendedGPU():
        state = rule.init(torch.zeros(9000).as_subclass(Far))
    for c, expected in rounds(rule):
        there = far(c, True)
        with PretendedGPU() as gpu:
            later = rule.ahead(there, state)
            assert not gpu.questions
            outcome = later.now()
        assert len(gpu.questions) == 1
        same(outcome, expected)
        assert later.likely.direction is outcome.direction and later.likely.downloads is outcome.downloads
        state = outcome.state


def test_hulls_that_are_not_exact_are_solved_in_host_memory(hulls: list[bool]) -> None:
    rule, c = FedLF(), cohort(5, 60)
    there = replace(far(c, True), probe=None)
    hulls[0] = False
    with PretendedGPU():
        later = rule.ahead(there, rule.init(torch.zeros(60, dtype=torch.float64).as_subclass(Far)))
        hulls[0] = True
        outcome = later.now()
    assert later.likely.direction is not outcome.direction
    same(outcome, rule(c, rule.init(c.start)))


@pytest.mark.usefixtures("hulls")
@pytest.mark.parametrize("layers", [(0,), (1, 2), (0, 1, 2)])
def test_layers_that_must_be_merged_are_merged_in_host_memory(layers: tuple[int, ...]) -> None:
    rule, c = FedLF(fair="none"), opposed(*layers)
    with PretendedGPU():
        outcome = rule.ahead(far(c, True), rule.init(c.start.as_subclass(Far))).now()
    expected = rule(c, rule.init(c.start))
    same(outcome, expected)
    assert expected.info["merged"] or "reason" in expected.info


class Doubtful(WeightedMean):
    """Seems to go one way, and goes another once it is known."""

    early = True

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        true = Outcome(self.combine(cohort), {"rounds": torch.ones(1)})
        seems = Outcome(torch.full_like(true.direction, torch.nan), state)
        return Later(seems, (cohort.sizes.sum(),), lambda n: replace(true, exclude=(0,), info={"n": float(n)}))


def test_the_server_takes_over_what_is_known_and_not_what_it_seemed_to_be() -> None:
    sim, plain = simulation(Method("x", server=Doubtful())), simulation(Method())
    record, other = sim.step(), plain.step()
    assert not record.skipped and record.conflicts == other.conflicts
    assert torch.equal(sim.server.w, plain.server.w)
    assert record.info["n"] > 0 and record.info["excluded"] == [0] and bool(sim.server.excluded[0])
    assert sim.server.state["rounds"].tolist() == [1.0]


class Spoiling(WeightedMean):
    """Has a number that is none in a state that is not known until the end."""

    early = True

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        found = Outcome(self.combine(cohort), state)
        return Later(found, (), lambda: replace(found, state={"x": torch.tensor([torch.nan])}))


def test_a_state_that_is_known_last_is_looked_at_too() -> None:
    sim = simulation(Method("x", server=Spoiling()))
    assert sim.step().skipped == "the server's state would not be finite"


class Late(WeightedMean):
    """Refuses when all is known."""

    early = True

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        def settle(n: float) -> Outcome:
            raise EquipoiseError("too few samples")

        return Later(Outcome(self.combine(cohort), state), (cohort.sizes.sum(),), settle)


def test_a_rule_that_refuses_when_all_is_known_skips_the_round() -> None:
    sim = simulation(Method("x", server=Late()))
    before = sim.server.w.clone()
    assert sim.step().skipped == "the server rule refused: too few samples"
    assert torch.equal(sim.server.w, before)


class Heir(RFFL):
    """Changes the call and says nothing of going ahead."""

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        return replace(super().__call__(cohort, state), info={"mine": True})


class Early(Heir):
    early = True


@pytest.mark.parametrize("heir", [Heir(), Early()], ids=["heir", "willing"])
def test_an_heir_that_changes_the_call_is_called(heir: RFFL) -> None:
    assert simulation(replace(rffl(), server=heir)).step().info == {"mine": True}


def test_work_is_told_apart_by_what_it_is_and_for_whom() -> None:
    again, given = Again(), (torch.ones(3), torch.full((3,), 2.0))

    def add(kind: float, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (kind * (a + b),)

    def take(kind: float, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return (kind * (a - b),)

    for _ in range(3):
        assert again(add, 2.0, *given)[0].tolist() == [6.0] * 3
        assert again(take, 1.0, *given)[0].tolist() == [-1.0] * 3
    assert questions.once(add, 1.0, *given)[0].tolist() == [3.0] * 3
    assert len(again._works) == 2
