"""Rules that begin before anybody has looked at what clients sent: nothing of it may show if that was not sound."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import registry
from equipoise.attacks import SendNaN
from equipoise.core import Cohort, Method, Outcome, State, WeightedMean
from equipoise.engine import server
from equipoise.engine.admission import Presumed, presume
from equipoise.engine.exchange import Plan, Replies
from equipoise.engine.server import Server
from equipoise.methods.rffl import rffl
from tests.small import simulation
from tests.unit.test_questions import Far

EARLY = [name for name, made in registry.methods().items() if vars(type(made.make().server)).get("early")]


class Changed:
    """An exchange whose replies are changed on the way."""

    def __init__(self, exchange: Any, change: Callable[[Replies], Replies]) -> None:
        self.exchange, self.change = exchange, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exchange, name)

    def __call__(self, plan: Plan) -> Replies:
        return self.change(self.exchange(plan))


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags say that they are on a GPU, where to ask first would cost something."""

    def presumed(*given: Any) -> Presumed | None:
        found = presume(*given)
        return None if found is None else replace(found, flags=found.flags.as_subclass(Far))

    monkeypatch.setattr(server, "presume", presumed)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each of the server's attempts was about."""
    sizes: list[int] = []
    own = Server._attempt

    def attempt(self: Server, plan: Plan, replies: Replies, *more: Any) -> Any:
        sizes.append(len(replies.ids))
        return own(self, plan, replies, *more)

    monkeypatch.setattr(Server, "_attempt", attempt)
    return sizes


def test_who_begins_early() -> None:
    assert {"fedavg", "fedlf", "rffl", "cgsv"} <= set(EARLY) and "qffl" not in EARLY


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", EARLY)
def test_what_began_on_spoiled_rows_is_thrown_away(name: str, bad: float, attempts: list[int]) -> None:
    """The server works on rows that are presumed sound; one that is not must leave no trace."""
    sim, other = (simulation(registry.methods()[name].make()) for _ in range(2))

    def spoils(got: Replies) -> Replies:
        updates = got.updates.clone()
        updates[0, 3] = bad
        return replace(got, updates=updates)

    def leaves(got: Replies) -> Replies:
        signals = {n: t[1:] for n, t in got.signals.items()}
        losses = None if got.losses is None else got.losses[1:]
        return Replies(got.ids[1:], got.updates[1:], got.sizes[1:], losses, signals)

    record = sim.server.step(Changed(sim.simulator, spoils))
    other.server.step(Changed(other.simulator, leaves))
    assert list(record.quarantined.values()) == ["not-finite"] and len(record.admitted) == len(record.drawn) - 1
    assert torch.equal(sim.server.w, other.server.w)
    assert attempts == [4, 3, 3]  # once too often, and once in the other run


def test_where_asking_costs_nothing_no_rule_is_shown_what_is_not_sound(attempts: list[int]) -> None:
    simulation(rffl(), attack=SendNaN(clients=(1,))).step()
    assert attempts == [3]


@dataclass(frozen=True)
class WithoutTheLongest(WeightedMean):
    def combine(self, cohort: Cohort) -> Tensor:
        norms = cohort.updates.norm(dim=1)
        keep = torch.arange(len(cohort)) != int(torch.nonzero(norms == norms.max())[0])  # there is none among NaNs
        return super().combine(replace(cohort, **{n: getattr(cohort, n)[keep] for n in ("ids", "updates", "sizes")}))


@dataclass(frozen=True)
class Fragile(WithoutTheLongest):
    early = True


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize(("rule", "wanted"), [(WithoutTheLongest(), [3]), (Fragile(), [4, 3])], ids=["heir", "willing"])
def test_a_rule_says_for_itself_that_it_begins_early_and_may_then_fail(
    rule: WeightedMean, wanted: list[int], attempts: list[int]
) -> None:
    sim = simulation(Method("x", server=rule), attack=SendNaN(clients=(1,)))
    record = sim.step()
    assert record.quarantined == {1: "not-finite"} and not record.skipped
    assert attempts == wanted


@dataclass(frozen=True)
class Broken(WeightedMean):
    early = True

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        raise KeyError("a fault of its own")


def test_an_error_on_sound_rows_is_one() -> None:
    with pytest.raises(KeyError, match="a fault of its own"):
        simulation(Method("x", server=Broken())).step()


@dataclass(frozen=True)
class Search(WeightedMean):
    early = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses", "probe"})

    def combine(self, cohort: Cohort) -> Tensor:
        assert cohort.probe is not None
        direction = super().combine(cohort)
        cohort.probe((cohort.start - direction)[None])
        return direction


@pytest.mark.usefixtures("far")
def test_clients_are_probed_for_one_attempt_and_only_who_is_admitted(attempts: list[int]) -> None:
    simulation(Method("x", server=Search()), attack=SendNaN(clients=(1,))).step()
    assert attempts == [3]


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("name", ["rffl", "cgsv"])
def test_sizes_that_are_infinite_make_no_noise(name: str) -> None:
    sim = simulation(registry.methods()[name].make())

    def infinite(got: Replies) -> Replies:
        sizes = got.sizes.double()
        sizes[0] = torch.inf
        return replace(got, sizes=sizes)

    assert sim.server.step(Changed(sim.simulator, infinite)).quarantined == {0: "size"}


@pytest.mark.usefixtures("far")
def test_an_attempt_that_is_thrown_away_is_gone_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, own = simulation(rffl(), attack=SendNaN(clients=(1,))), Server._attempt
    made: list[weakref.ref[Any]] = []
    alive: list[Any] = []

    def attempt(self: Server, *given: Any) -> Any:
        alive.extend(r for r in made if r() is not None)
        got = own(self, *given)
        assert got.later is not None
        made.append(weakref.ref(got.later.likely.downloads))
        return got

    monkeypatch.setattr(Server, "_attempt", attempt)
    sim.step()
    assert len(made) == 2 and not alive


def test_ids_of_a_short_type_are_put_in_order_too() -> None:
    ids = torch.tensor([3, 1, 2], dtype=torch.uint8)
    cohort = Cohort(ids=ids, start=torch.zeros(1), updates=torch.zeros(3, 1), sizes=torch.ones(3))
    assert cohort.ids.tolist() == [1, 2, 3]
