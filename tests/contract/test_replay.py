"""Steps that are recorded and played back are the steps: for every method, every attack, every kind of model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise import contract, registry
from equipoise.at import At
from equipoise.core import ClientRule, Method, State
from equipoise.engine.replay import Replay
from equipoise.engine.run import Scenario, Simulation, local_steps
from equipoise.engine.settings import Participation, Run, Train
from equipoise.engine.stage import Played
from equipoise.experiment import Experiment, execute
from equipoise.models import build
from equipoise.streams import Stream
from tests.small import federation, relative, simulation

METHODS, ATTACKS = registry.methods(), registry.attacks()


def after(method: Method, replay: str, executor: str = "vmap", rounds: int = 2, **more: Any) -> Simulation:
    run = Run(dtype="float64", executor=executor, replay=replay, device="cpu")  # type: ignore[arg-type]
    sim = simulation(method, run=run, **more)
    for _ in range(rounds):
        sim.step()
    return sim


def compare(a: Simulation, b: Simulation, tolerance: float = 1e-10) -> None:
    first, second = a.dump(), b.dump()
    assert first.keys() == second.keys()
    for name, value in first.items():
        away = float((value.double() - second[name].double()).norm())
        assert away <= tolerance * max(1e-12, float(value.double().norm())), f"{name}: {away:.1e}"


def recordings(sim: Simulation) -> int:
    assert sim.simulator.replay is not None
    return sum(play is not None for play in sim.simulator.replay._made.values())


ONE_BY_ONE = ("fedavg", "ditto", "fedcka", "perfedavg", "rffl")  # every kind of step; with the others only rows differ


@pytest.mark.parametrize(("name", "executor"), [*((n, "vmap") for n in METHODS), *((n, "loop") for n in ONE_BY_ONE)])
def test_every_method_played_back_is_the_method(name: str, executor: str) -> None:
    fed = contract.sample_federation((6, 5, 1, 4, 7, 3, 5, 2))
    sims = [after(METHODS[name].make(), replay, executor, fed=fed) for replay in ("off", "on")]
    compare(*sims)
    replay = sims[1].simulator.replay
    assert replay is not None and replay.reasons == {}


@pytest.mark.parametrize("name", ATTACKS)
def test_under_every_attack(name: str) -> None:
    fed = federation(classes=10)  # labels that there are to flip
    sims = [after(Method(), replay, fed=fed, attack=ATTACKS[name].make(fraction=0.5)) for replay in ("off", "on")]
    compare(*sims)
    assert recordings(sims[1]) == 1


def test_fedavg_overwrites_its_model_in_place_and_nobody_elses() -> None:
    sim = after(Method(), "on", rounds=1)
    before = sim.server.w.clone()
    other = sim.server.w
    sim.step()
    assert torch.equal(other, before) and not torch.equal(sim.server.w, before)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_plain_step_is_taken_with_the_model_in_parts_and_a_step_that_looks_at_all_of_it_is_not(executor: str) -> None:
    for name, in_parts in (("fedavg", True), ("fedprox", False)):
        sim = after(METHODS[name].make(), "on", executor, rounds=1)
        assert sim.simulator.replay is not None
        for play in sim.simulator.replay._made.values():
            assert play is not None and (play.recorded.apart is not None) is in_parts


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_the_update_is_the_same_whether_or_not_the_models_at_the_end_are_wanted(name: str, executor: str) -> None:
    fed = contract.sample_federation((6, 5, 1, 4))
    sim = after(METHODS[name].make(), "on", executor, rounds=1, fed=fed)
    plan = sim.server.plan()
    both, updates = (sim.simulator.train(plan, plan.ids, {}, ends=ends) for ends in (True, False))
    assert updates.end is None and both.end is not None
    assert torch.equal(updates.updates, both.updates)
    assert torch.equal(both.updates, plan.w - both.end)


@pytest.mark.parametrize("model", ["cnn", "dropout", "linear"])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_convolutions_and_dropout_are_played_back(model: str, executor: str) -> None:
    fed = federation(sizes=(12, 7, 9), shape=(64,))
    torch.manual_seed(0)
    made = {
        "cnn": nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3)),
        "dropout": nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 3)),
        "linear": nn.Linear(64, 3),
    }[model]
    sims = [after(Method(), replay, executor, fed=fed, model=made) for replay in ("off", "on")]
    compare(*sims)
    assert recordings(sims[1]) == 1


@pytest.mark.parametrize(("sizes", "times"), [((10, 10, 10), 1), ((10, 10, 8), 2), ((10, 7, 3), 5)])
def test_what_holds_is_worked_out_when_masks_change_and_only_then(
    sizes: tuple[int, ...], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    before = Played.ahead
    monkeypatch.setattr(Played, "ahead", lambda self, inputs: asked.append(1) or before(self, inputs))
    train = Train(rounds=1, batch=2, lr=0.1)  # the first client takes five steps
    sims = [after(Method(), replay, rounds=1, fed=federation(sizes=sizes), train=train) for replay in ("off", "on")]
    assert len(asked) == times
    compare(*sims)


class LooksAtTheRound(ClientRule):
    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.grad(w) * (1 + at.round)), state


class Decides(ClientRule):
    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        grad = at.grad(w)
        return at.descend(w, grad if bool((grad.norm() > 0.1).item()) else 2 * grad), state


class LooksAtASplit(ClientRule):
    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.grad(w) * at.risk(w)[:, None]), state


@pytest.mark.parametrize(
    ("rule", "reason"), [(LooksAtTheRound, "round"), (Decides, "asks for a number"), (LooksAtASplit, "whole split")]
)
def test_what_cannot_be_recorded_runs_as_it_is_and_says_why(rule: type[ClientRule], reason: str) -> None:
    sims = [after(Method("own", rule()), replay) for replay in ("off", "on")]
    compare(*sims, tolerance=0.0)
    assert sims[1].simulator.replay is not None and reason in sims[1].simulator.replay.reasons[rule.__name__]


@pytest.mark.parametrize("name", METHODS)
def test_a_cohort_that_lacks_some_is_filled_up_and_nobody_can_tell(name: str) -> None:
    """Between the full cohort and half of it one recording does for all, and for whole batches that are less wide."""
    fed, shy = contract.sample_federation((6, 5, 1, 4, 7, 3, 5, 6)), Participation(dropout=0.25)
    sims = [after(METHODS[name].make(), replay, rounds=4, fed=fed, participation=shy) for replay in ("off", "on")]
    compare(*sims)
    replay = sims[1].simulator.replay
    assert replay is not None and replay.reasons == {} and replay.clients == {8}
    assert {form[1][0] for key in replay._made for form in key[3] if form[0] == "w"} == {8}  # type: ignore[index]


@pytest.mark.parametrize("name", METHODS)
def test_who_has_many_steps_goes_on_without_the_others_and_nobody_can_tell(name: str) -> None:
    """In legs of 8, 4, 2 and 1 clients, some of which are short of one and filled up."""
    fed = contract.sample_federation((4, 3, 40, 4, 24, 3, 95, 14))
    sims = [after(METHODS[name].make(), replay, fed=fed) for replay in ("off", "on")]
    compare(*sims)
    replay = sims[1].simulator.replay
    assert replay is not None and replay.reasons == {} and replay.relay
    epochs = sims[1].simulator.schedule
    if METHODS[name].make().client.schedule(epochs, 0, Stream(0)) == epochs:  # else everyone has as many steps
        assert {form[1][0] for key in replay._made for form in key[3] if form[0] == "w"} > {8, 1}  # type: ignore[index]


def test_a_cohort_of_less_than_half_is_not_filled_up() -> None:
    replay = Replay(frozenset({8, 3}), 5, False)
    rooms = [replay.room(k, 5) for k in (1, 2, 3, 4, 7, 8, 9)]
    assert [room and room[0] for room in rooms] == [None, 3, 3, 8, 8, 8, None]
    assert [replay.room(7, w) for w in (2, 3, 5, 6)] == [None, (8, 5), (8, 5), None]
    assert replay.room(4, 4) is None  # both together are more than twice as much


def test_a_stopped_run_plays_back_the_same_steps() -> None:
    """Whether or not a recording exists by then that rounds with missing clients can use."""
    shy = Participation(dropout=0.4)
    whole = after(Method(), "on", rounds=6, participation=shy)
    first = after(Method(), "on", rounds=3, participation=shy)
    second = after(Method(), "on", rounds=0, participation=shy)
    second.load(first.dump())
    for _ in range(3):
        second.step()
    assert torch.equal(whole.server.w, second.server.w)


@pytest.mark.parametrize(
    ("train", "steps"),  # the largest client has 25 samples
    [
        (Train(rounds=99, batch=10), 297),
        (Train(rounds=100, batch=10), 300),
        (Train(rounds=5, epochs=20, batch=10), 300),
        (Train(rounds=299, batch=0), 299),
        (Train(rounds=150, epochs=2, batch=0), 300),
        (Train(rounds=149, steps=2), 298),
        (Train(rounds=3, steps=100), 300),
        (Train(rounds=0, steps=1000), 0),
    ],
    ids=lambda v: "" if isinstance(v, int) else f"{v.rounds} rounds, {v.epochs} epochs, {v.steps} steps of {v.batch}",
)
def test_runs_of_many_local_steps_are_played_back_unless_told_otherwise(train: Train, steps: int) -> None:
    scenario = Scenario(federation(), build("linear", (6,), 3, Stream(0)), train)

    def replays(replay: Any) -> bool:
        return Simulation(scenario, Method(), Run(replay=replay, device="cpu")).simulator.replay is not None

    assert local_steps(train, scenario.federation.sizes) == steps
    assert [replays("auto"), replays("on"), replays("off")] == [steps >= 300, True, False]


def test_in_float32_it_stays_within_rounding() -> None:
    sims = []
    for replay in ("off", "on"):
        run = Run(dtype="float32", executor="vmap", replay=replay, device="cpu")  # type: ignore[arg-type]
        sim = simulation(Method(), run=run, model="mlp", hidden=(16,))
        for _ in range(4):
            sim.step()
        sims.append(sim)
    assert relative(sims[1].server.w, sims[0].server.w) < 1e-5


def test_the_log_of_a_run_says_what_is_not_played_back(tmp_path: Path) -> None:
    scenario = Scenario(federation((9, 9)), nn.Linear(6, 3), Train(rounds=2, batch=3))
    execute(Experiment(scenario, Method("own", LooksAtTheRound()), Run(replay="on", device="cpu")), tmp_path / "run")
    told = (tmp_path / "run" / "log.txt").read_text()
    assert told.count("steps of LooksAtTheRound are not played back as recorded") == 1 and "number of the round" in told
