"""What clients keep between rounds is written where it has changed, and checked; the rest is left where it is."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import registry
from equipoise.core import At, ClientRule, Method, Outcome, State, WeightedMean
from equipoise.engine import store as stores
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.engine.store import ClientStore, Seen, Table
from equipoise.errors import EquipoiseError
from equipoise.methods import ditto
from equipoise.methods.rffl import OwnModel
from tests.contract import test_replay_captured as pretended
from tests.small import federation, simulation

METHODS = registry.methods()
made = pretended.made  # graphs, without a GPU
SIZES = (10, 10, 10, 10, 10)  # everyone takes two steps of five samples
WAYS = [("vmap", "off"), ("vmap", "on"), ("vmap", "captured"), ("loop", "off"), ("loop", "on")]
EVERY_WAY = pytest.mark.parametrize(("executor", "replay"), WAYS)


def started(method: Method, executor: str = "vmap", replay: str = "off", **more: Any) -> Simulation:
    run = Run(dtype="float64", executor=executor, replay="off" if replay == "off" else "on")  # type: ignore[arg-type]
    sim = simulation(method, run=run, train=Train(batch=5, lr=0.1), **{"fed": federation(SIZES), **more})
    if replay == "captured":
        assert sim.simulator.replay is not None
        sim.simulator.replay.capture = True
    return sim


def rows(sim: Simulation) -> State:
    """Everything that is kept of all clients, in the order of their ids."""
    return {n.removeprefix("rows/"): t for n, t in sim.simulator.store.dump().items()}


# ------------------------------------------------------------------------------------------------ what has changed


def test_what_is_given_back_as_it_was_has_not_changed_and_all_else_has() -> None:
    state = {n: torch.zeros(3) for n in "abcde"}
    seen = Seen(state)
    state["b"].add_(1)
    state["c"][1:].zero_()  # whatever is written, and through whatever view
    new = {**state, "d": state["d"].clone(), "e": state["a"], "f": torch.zeros(3)}
    assert set(seen.changed(new)) == {"d", "e", "f"} and seen.written() == ["b", "c"]


def test_a_state_whose_entries_are_exchanged_for_others_has_changed() -> None:
    state = {"a": torch.zeros(3)}
    seen = Seen(state)
    state["a"] = torch.ones(3)
    assert seen.changed(state).keys() == {"a"}


# ------------------------------------------------------------------------------------------------ what is written


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows of each key were put, since this was last cleared."""
    found, put = Counter[str](), ClientStore.put

    def counted(self: ClientStore, ids: Tensor, state: State) -> None:
        found.update({n: len(t) for n, t in state.items()})
        put(self, ids, state)

    monkeypatch.setattr(ClientStore, "put", counted)
    return found


CASES: dict[str, tuple[Callable[[], Method], dict[str, int]]] = {
    "rffl": (METHODS["rffl"].make, {"own": 5}),  # by what is delivered, not by the training
    "ditto": (lambda: ditto(lam=1.0), {"v": 5}),
    "ditto over rffl": (lambda: ditto(lam=1.0, base=METHODS["rffl"].make()), {"v": 5, "base.own": 5}),
    "apfl": (METHODS["apfl"].make, {"v": 5}),  # alpha is as it was
    "finetuning": (METHODS["finetuning"].make, {}),
    "eagle": (METHODS["eagle"].make, {}),
    "local": (METHODS["local"].make, {"own": 5}),
}


@pytest.mark.usefixtures("one_epoch_alone", "made")
@EVERY_WAY
@pytest.mark.parametrize("name", CASES)
def test_rows_are_written_once_a_round_and_only_where_they_have_changed(
    written: Counter[str], name: str, executor: str, replay: str
) -> None:
    make, expected = CASES[name]
    sim = started(make(), executor, replay)
    sim.step()
    for _ in range(2):
        written.clear()
        sim.step()
        assert dict(written) == expected


@dataclass(frozen=True)
class Counts(ClientRule):
    """Counts its steps."""

    def init(self, w: Tensor) -> State:
        return {"count": w.new_zeros(len(w)), "still": w[:, :2].clone()}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.grad(w)), {**state, "count": state["count"] + 1}


@pytest.mark.usefixtures("made")
@EVERY_WAY
def test_what_a_step_changes_is_kept_and_the_rest_stays(executor: str, replay: str) -> None:
    sim = started(Method("counts", Counts()), executor, replay)
    for _ in range(3):
        sim.step()
    assert rows(sim)["count"].tolist() == [6.0] * 5
    assert torch.equal(rows(sim)["still"], sim.simulator.w0[:2].expand(5, -1))


@pytest.mark.usefixtures("made")
@EVERY_WAY
def test_what_one_client_leaves_and_others_change_is_written(executor: str, replay: str) -> None:
    sim = started(Method("counts", Counts()), executor, replay, fed=federation((10, 0, 5, 10)))
    for _ in range(2):
        sim.step()
    assert rows(sim)["count"].tolist() == [4.0, 0.0, 2.0, 4.0]


class InState(Counts):
    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        state["count"] += 1
        return at.descend(w, at.grad(w)), state


class InModel(Counts):
    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w -= at.grad(w)
        return w, state


class InReceived(Counts):
    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received.mul_(0.5), {}


class AtTheEnd(Counts):
    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        state["still"].zero_()
        return w, state


class Downloads(OwnModel):
    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        state["own"].copy_(end).add_(download)
        return state


@pytest.mark.usefixtures("made")
@EVERY_WAY
@pytest.mark.parametrize(
    ("rule", "what"),
    [(InState(), "count"), (InModel(), "w"), (InReceived(), "w"), (AtTheEnd(), "still"), (Downloads(), "own")],
)
def test_a_rule_that_writes_into_what_it_is_given_is_refused(
    rule: ClientRule, what: str, executor: str, replay: str
) -> None:
    server = METHODS["rffl"].make().server if what == "own" else WeightedMean()
    sim = started(Method("writes", rule, server), executor, replay, fed=federation((10, 30, 10, 5)))
    torchs = "more than one element of the written-to tensor"  # where all rows are one model that was received
    with pytest.raises((EquipoiseError, RuntimeError), match=f"writes into {what}, which it was given|{torchs}"):
        sim.step()


# -------------------------------------------------------------------------------------- what a recording is handed


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [("rffl", (), set()), ("fedcka", (), {"state.previous"}), ("apfl", ("state.v",), {"state.v", "state.alpha"})],
)
def test_a_recording_gives_what_a_step_changes_and_is_handed_what_it_reads(
    name: str, given: tuple[str, ...], read: set[str]
) -> None:
    sim = started(METHODS[name].make(), replay="on")
    sim.step()
    assert sim.simulator.replay is not None
    (play,) = sim.simulator.replay._made.values()
    assert play is not None and play.state == given
    assert {n for n in play.used if n.startswith("state.")} == read


def test_a_graph_sees_a_state_that_it_only_reads_as_it_is_in_every_round(made: list[pretended.Graph]) -> None:
    """FedCKA's steps read the model of the last round, which its end has changed."""
    sims = [started(METHODS["fedcka"].make(), replay=replay) for replay in ("off", "captured")]
    for sim in sims:
        for _ in range(3):
            sim.step()
    torch.testing.assert_close(*(sim.server.w for sim in sims), rtol=1e-10, atol=0)
    assert made


# ------------------------------------------------------------------------------------- divergence does not outlive


@dataclass(frozen=True)
class Spoils(ClientRule):
    """A sound state, which clients whose number is odd spoil in some place of the second round."""

    where: str

    def init(self, w: Tensor) -> State:
        return {"b": w[:, :2].clone(), "a": w.new_zeros(len(w)), "still": w.new_ones(len(w))}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        odd = (at.ids % 2 == 1) & (at.round == 1)  # type: ignore[attr-defined]
        spoil = torch.where(odd, torch.inf, 0.0).to(received)
        return received, {"spoil": spoil, **({"a": state["a"] + spoil} if self.where == "begin" else {})}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        new = {**state, "b": state["b"] + 1}
        return at.descend(w, at.grad(w)), {**new, "a": state["a"] + state["spoil"]} if self.where == "step" else new

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, {**state, "a": state["a"] + state["spoil"]} if self.where == "end" else state


@pytest.mark.usefixtures("made")
@EVERY_WAY
@pytest.mark.parametrize("where", ["begin", "step", "end"])
def test_wherever_a_state_is_spoilt_its_client_keeps_all_of_the_last_good_one(
    where: str, executor: str, replay: str
) -> None:
    sim = started(Method("spoils", Spoils(where)), executor, replay)
    sim.step()
    good = rows(sim)
    sim.step()
    after, odd = rows(sim), torch.arange(5) % 2 == 1
    assert torch.equal(after["a"], torch.zeros(5)) and torch.equal(after["still"], torch.ones(5))
    assert torch.equal(after["b"][odd], good["b"][odd]) and torch.equal(after["b"][~odd], good["b"][~odd] + 2)


class Late(ClientRule):
    """Leaves its state alone in the first step of a round and spoils it in the second."""

    def __init__(self) -> None:
        self.calls = 0

    def init(self, w: Tensor) -> State:
        return {"a": w.new_zeros(len(w))}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        self.calls += 1
        last = self.calls % 2 == 0
        return at.descend(w, at.grad(w)), {"a": state["a"] + torch.nan} if last else state


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_state_that_only_some_steps_change_is_checked(executor: str) -> None:
    rule = Late()
    sim = started(Method("late", rule), executor)
    sim.step()
    assert rule.calls == 2 * (1 if executor == "vmap" else 5)
    assert torch.equal(rows(sim)["a"], torch.zeros(5))


@pytest.mark.usefixtures("made")
@EVERY_WAY
@pytest.mark.parametrize("name", ["rffl", "cgsv", "local", "ditto"])
def test_whoever_diverges_keeps_the_model_from_before(name: str, executor: str, replay: str) -> None:
    """One client has samples of which a model becomes infinite; nothing that it sends is used."""
    fed = federation(SIZES)
    fed.data.x[fed.splits["train"].of_client(2)] = torch.inf
    method = ditto(lam=1.0) if name == "ditto" else METHODS[name].make()
    sim = started(method, executor, replay, fed=fed)
    for _ in range(3):
        assert 2 in sim.step().quarantined
    (kept,) = (t for n, t in rows(sim).items() if n in ("own", "v"))
    assert torch.equal(kept[2], sim.simulator.w0) and bool(torch.isfinite(kept).all())
    assert not any(torch.equal(kept[k], sim.simulator.w0) for k in (0, 1, 3, 4))


class Refuses(WeightedMean):
    """Sends everyone a delta that is no number: nothing of the round is taken over."""

    per_client = True

    def __call__(self, cohort: Any, state: State) -> Outcome:
        return Outcome(self.combine(cohort), state, torch.full_like(cohort.updates, torch.nan))


@pytest.mark.parametrize("replay", ["off", "on"])
def test_a_round_without_a_delta_is_forgotten(written: Counter[str], replay: str) -> None:
    sim = started(Method("own", OwnModel(), Refuses()), replay=replay)
    sim.step()
    written.clear()
    assert sim.step().skipped == "a download would not be finite"
    assert not written and torch.equal(rows(sim)["own"], sim.simulator.w0.expand(5, -1))


@pytest.mark.parametrize("name", ["rffl", "ditto", "apfl", "eagle"])
@pytest.mark.usefixtures("one_epoch_alone")
def test_a_resumed_run_ends_with_the_same_bits(name: str) -> None:
    """Also where some have dropped out, and an attacker's rows were refused."""
    more: dict[str, Any] = {
        "participation": Participation(per_round=4, dropout=0.3),
        "attack": registry.attacks()["send-nan"].make(fraction=0.3),
        "admission": Admission(),
    }
    whole, first, second = (started(METHODS[name].make(), replay="on", **more) for _ in range(3))
    for sim, rounds in ((whole, 6), (first, 3)):
        for _ in range(rounds):
            sim.step()
    second.load(first.dump())
    for _ in range(3):
        second.step()
    ends = [sim.dump() for sim in (whole, second)]
    assert ends[0].keys() == ends[1].keys() and all(torch.equal(t, ends[1][n]) for n, t in ends[0].items())


# ------------------------------------------------------------------------------------------ what is sent for it


def test_slots_go_to_the_device_once_for_all_that_is_read_and_written_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sends: list[list[int]] = []
    monkeypatch.setattr(stores, "sent", lambda small, to: sends.append(small.tolist()) or small.to(to.device))
    store, all_of_them, some = ClientStore(9), torch.arange(6), torch.tensor([7, 1, 4])
    store.get(all_of_them[:0])
    store.put(all_of_them, {"a": torch.arange(6.0), "b": torch.ones(6, 2)})
    store.put(all_of_them, {"b": torch.zeros(6, 2)})
    assert torch.equal(store.get(all_of_them)["a"], torch.arange(6.0)) and sends == [[0, 1, 2, 3, 4, 5]]
    store.put(some, {"a": -torch.arange(3.0), "b": torch.ones(3, 2)})
    assert sends == [[0, 1, 2, 3, 4, 5], [6, 1, 4]]
    assert store.get(torch.tensor([4, 1, 0, 7]))["a"].tolist() == [-2.0, -1.0, 0.0, -0.0]
    assert len(sends) == 3 and float(store.get(some)["b"].sum()) == 6.0


@pytest.mark.parametrize("name", ["rffl", "apfl"])
def test_a_round_sends_the_slots_of_its_clients_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sends: list[int] = []
    sim = started(METHODS[name].make(), participation=Participation(per_round=3))
    for _ in range(8):  # until everybody has been drawn
        sim.step()
    monkeypatch.setattr(stores, "sent", lambda small, to: sends.append(len(small)) or small.to(to.device))
    drawn = [sim.step().drawn for _ in range(5)]
    anew = [drawn[0], *(b for a, b in pairwise(drawn) if a != b)]
    assert len(anew) - 1 <= len(sends) <= len(anew) and set(sends) == {3}


def test_rows_of_any_shape_and_type_are_read_and_written_by_slot() -> None:
    slots = torch.tensor([3, 0, 2])
    for like in (
        torch.ones(3),
        torch.ones(3, 0),
        torch.ones(3, 2, 2) > 0,
        torch.arange(3),
        torch.ones(1, 4).expand(3, 4),
    ):
        table = Table(like, 5, stores.Lane(torch.device("cpu")))
        table.grow("device")
        table.write(slots, like)
        assert torch.equal(table.read(slots), like) and table.read(slots).dtype == like.dtype
        table.write(slots[:0], like[:0])
        assert table.read(slots[:0]).shape == (0, *like.shape[1:])


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("one_epoch_alone")
def test_rounds_leave_nothing_behind(name: str) -> None:
    """A state that is a view of the last one keeps it alive, and that one the one before."""
    sim = simulation(METHODS[name].make(), replace(federation((8, 9, 10)), root=torch.arange(5)))
    for _ in range(4):
        sim.step()
    before = tensors()
    for _ in range(5):
        sim.step()
    assert tensors() == before
