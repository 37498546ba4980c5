"""The contract can be broken: parts that do not keep it, and what is said of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import contract
from equipoise.core import SGD, Aggregator, At, Cohort, Filter, Method, Outcome, ServerRule, State, WeightedMean, chain
from equipoise.questions import Later
from equipoise.registry import Doc

DOC = Doc("words", "reference", "equation", "departures")


def told(part: Any) -> str:
    return "\n".join(contract.problems(part, DOC))


# ------------------------------------------------------------------------------------------- the order of clients


@dataclass(frozen=True)
class First(Aggregator):
    def combine(self, cohort: Cohort) -> Tensor:
        return cohort.updates[0]


@dataclass(frozen=True)
class ByRow(Aggregator):
    """Later rows count for less."""

    def combine(self, cohort: Cohort) -> Tensor:
        return (0.5 ** torch.arange(len(cohort), dtype=torch.float64)) @ cohort.updates


@dataclass(frozen=True)
class FirstLoss(Aggregator):
    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses"})

    def combine(self, cohort: Cohort) -> Tensor:
        assert cohort.losses is not None
        return cohort.updates.mean(0) * cohort.losses[0]


@dataclass(frozen=True)
class ToTheFirst(ServerRule):
    """Sends something to the client in the first row only."""

    per_client = True

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        downloads = torch.zeros_like(cohort.updates)
        downloads[0] = 1.0
        return Outcome(cohort.updates.mean(0), state, downloads)


@dataclass(frozen=True)
class WithoutTheFirst(ServerRule):
    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        return Outcome(cohort.updates.mean(0), state, exclude=(int(cohort.ids[0]),))


@dataclass(frozen=True)
class Remembers(ServerRule):
    """Keeps the rows of the last round, and looks at the first of them in the next."""

    def init(self, w: Tensor) -> State:
        return {"last": w}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        return Outcome(cohort.updates.mean(0), {"last": cohort.updates[0]})


@dataclass(frozen=True)
class Drops(Filter):
    """All but the first rows."""

    keeps_rows = False

    def __call__(self, cohort: Cohort) -> tuple[Cohort, dict[str, Any]]:
        return cohort.with_updates(cohort.updates * (torch.arange(len(cohort)) < 3)[:, None]), {}


@pytest.mark.parametrize(
    ("part", "what"),
    [
        (First(), "direction"),
        (ByRow(), "direction"),
        (FirstLoss(), "direction"),
        (ToTheFirst(), "downloads"),
        (WithoutTheFirst(), "exclude"),
        (Remembers(), "state"),
        (chain(Drops(), WeightedMean()), "direction"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, ServerRule) else x,
)
def test_a_rule_that_goes_by_rows_is_found_out(part: ServerRule, what: str) -> None:
    with pytest.raises(AssertionError, match=f"clients in another order gave another {what}"):
        contract.ignores_the_order_of_clients(part)


def test_a_rule_and_a_filter_that_go_by_rows_are_told_so() -> None:
    assert "clients in another order gave another direction" in told(First())
    assert "clients in another order gave another direction" in told(Drops())


def test_who_goes_by_ids_and_says_so_is_not_asked() -> None:
    @dataclass(frozen=True)
    class Oldest(First):
        by_id = True

    contract.ignores_the_order_of_clients(Oldest())
    contract.ignores_the_order_of_clients(chain(Drops(), Oldest()))


def test_who_remembers_clients_is_asked_while_it_knows_nobody() -> None:
    @dataclass(frozen=True)
    class Remembering(Remembers):
        per_client = True

    contract.ignores_the_order_of_clients(Remembering())

    @dataclass(frozen=True)
    class RememberingFirst(First):
        per_client = True

    with pytest.raises(AssertionError, match="another order"):
        contract.ignores_the_order_of_clients(RememberingFirst())


# -------------------------------------------------------------------------------------------------- going ahead


@dataclass(frozen=True)
class Elsewhere(WeightedMean):
    """Goes half the way ahead."""

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        return Later(Outcome(self.combine(cohort) / 2, state))


@dataclass(frozen=True)
class Counting(WeightedMean):
    """Its work remembers how often it was done, in what it was given."""

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        seen = torch.zeros(1, dtype=torch.float64)
        (d,) = cohort.again(lambda kind, rows: (rows.mean(0) + seen.add_(1),), None, cohort.updates)
        return Later(Outcome(d, state))


def test_to_go_ahead_is_to_arrive_where_a_call_does() -> None:
    assert "ahead: another outcome" in told(Elsewhere())
    assert "ahead: work done again gives other numbers" in told(Counting())
    contract.goes_ahead_as_it_is_called(WeightedMean())


# --------------------------------------------------------------------------------------------- changed in place


def through_data(t: Tensor) -> None:
    t.data.mul_(2)


def through_numpy(t: Tensor) -> None:
    t.detach().numpy()[...] += 1


WAYS = [through_data, through_numpy, lambda t: t.add_(1)]


@dataclass(frozen=True)
class Client(SGD):
    """Writes into what it is given, in one of its hooks."""

    hook: str = ""
    what: str = ""
    way: Callable[[Tensor], Any] = through_data

    def _write(self, hook: str, **given: Tensor) -> None:
        if hook == self.hook:
            self.way(given[self.what])

    def init(self, w: Tensor) -> State:
        return {"kept": torch.ones_like(w)}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        self._write("begin", received=received, state=state["kept"])
        return received, {"fresh": torch.ones_like(received)}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        self._write("step", w=w, state=state["kept"], fresh=state["fresh"], received=at.received)
        return at.descend(w, at.grad(w)), state

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        self._write("end", w=w, state=state["kept"], message=at.message.get("weight", w))
        return w, state

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        self._write("report", state=state["kept"], received=at.received)
        return {}

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        self._write("receive", end=end, state=state["kept"], download=download)
        return state


@dataclass(frozen=True)
class Sends(WeightedMean):
    """The mean, with something for every client before and after the round."""

    def plan(self, ids: Tensor, state: State) -> dict[str, Tensor]:
        return {"weight": torch.ones(len(ids), dtype=torch.float64)}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        return Outcome(self.combine(cohort), state, torch.ones_like(cohort.updates))


PLACES = [
    *(("begin", "received", "received"), ("begin", "state", "state kept")),
    *(("step", "w", "w"), ("step", "state", "state kept"), ("step", "fresh", "state fresh")),
    *(("end", "w", "w"), ("end", "state", "state kept"), ("end", "message", "message weight")),
    *(("report", "state", "state kept"), ("report", "received", "received")),
    *(("receive", "end", "end"), ("receive", "state", "state kept"), ("receive", "download", "download")),
]


@pytest.mark.parametrize("way", WAYS, ids=["data", "numpy", "plain"])
@pytest.mark.parametrize(("hook", "what", "name"), PLACES)
def test_a_client_that_writes_into_what_it_is_given_is_found_out(
    hook: str, what: str, name: str, way: Callable[[Tensor], Any]
) -> None:
    with pytest.raises(AssertionError, match=f"^{hook}: {name} was changed in place$"):
        contract.clients_change_no_input(Method("m", Client(hook=hook, what=what, way=way), Sends()))


def test_a_client_that_writes_nowhere_is_let_be() -> None:
    contract.clients_change_no_input(Method("m", Client(), Sends()))
    assert "step: w was changed in place" in told(Method("m", Client(hook="step", what="w"), Sends()))


def test_a_state_that_is_filled_anew_is_changed_in_place() -> None:
    @dataclass(frozen=True)
    class Fills(Client):
        def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
            state["kept"] = state["kept"] + 1
            return w, state

    with pytest.raises(AssertionError, match="step: state kept was changed in place"):
        contract.clients_change_no_input(Method("m", Fills(), Sends()))


def test_what_was_not_a_number_before_is_not_taken_for_changed() -> None:
    @dataclass(frozen=True)
    class Unknown(SGD):
        def init(self, w: Tensor) -> State:
            return {"loss": torch.full_like(w, torch.nan)}

        def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
            return w, state

    contract.clients_change_no_input(Method("m", Unknown(), WeightedMean()))


def test_a_server_that_writes_into_its_state_in_a_later_round_is_found_out() -> None:
    @dataclass(frozen=True)
    class Counts(ServerRule):
        def __call__(self, cohort: Cohort, state: State) -> Outcome:
            if state:
                state["n"].data.add_(1)
            return Outcome(cohort.updates.mean(0), {"n": state.get("n", torch.zeros(1))})

    with pytest.raises(AssertionError, match="state n was changed in place"):
        contract.changes_no_input(Counts())


# --------------------------------------------------------------------------------------- what malicious clients send


@dataclass(frozen=True)
class FromItsOwn(SGD):
    """Sends what follows from a model of its own, and says that SGD sends the same."""

    def init(self, w: Tensor) -> State:
        return {"own": w.clone()}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        own = (w + state["own"]) / 2
        return own, {"own": own}

    def outward(self) -> SGD:
        return SGD(self.objective)


def test_a_rule_that_names_another_which_sends_something_else_is_found_out() -> None:
    assert "outward: what it sends is not what the rule sends" in told(Method("own", FromItsOwn()))
