"""Throw-away rules in the shape of the hardest methods: do they fit the vocabulary without bending it?

None of these is the published method. Each has the same inputs, outputs and memory as one, so that the types are
settled by something that runs.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from equipoise.at import Forward, Schedule, Stop
from equipoise.core import (
    SGD,
    Aggregator,
    At,
    ClientRule,
    Cohort,
    Filter,
    Method,
    Outcome,
    ServerRule,
    State,
    WeightedMean,
    chain,
)
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.methods.local import Alone
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery, Samples
from tests.small import federation, relative, simulation

EXECUTORS = pytest.mark.parametrize("executor", ["vmap", "loop"])


def history(state: State, ids: Tensor, rows: Tensor, cap: int) -> State:
    """The newest row of each client, ids ascending, at most `cap` of them: how rules remember at a cost flat in N."""
    old = ~torch.isin(state["ids"], ids)
    all_ids, all_rows = torch.cat([ids, state["ids"][old]])[:cap], torch.cat([rows, state["rows"][old]])[:cap]
    order = all_ids.argsort()
    return {"ids": all_ids[order], "rows": all_rows[order]}


# ---------------------------------------------------------------- like FedLF: layers, losses, absent clients' gradients


@dataclass(frozen=True)
class LikeFedLF(ServerRule):
    per_client = True
    needs = frozenset({"losses"})

    def init(self, w: Tensor) -> State:
        return {"ids": torch.empty(0, dtype=torch.int64), "rows": w.new_empty((0, len(w)))}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        assert cohort.losses is not None
        absent = state["rows"][~torch.isin(state["ids"], cohort.ids)]
        direction = torch.zeros_like(cohort.start)
        for slices in cohort.layout.layers().values():
            for s in slices:
                hull = torch.cat([cohort.updates[:, s] * cohort.losses[:, None], absent[:, s]])
                direction[s] = hull.mean(0)
        state = history(state, cohort.ids, cohort.updates, cap=5)
        return Outcome(direction, state, info={"absent": len(absent), "weight": cohort.losses})


@EXECUTORS
def test_layers_losses_and_history_on_the_server(executor: str) -> None:
    run = Run(executor=executor, dtype="float64")  # type: ignore[arg-type]
    sim = simulation(Method("lf", SGD(), LikeFedLF()), participation=Participation(per_round=2), run=run)
    absent = [sim.step().info["absent"] for _ in range(6)]
    assert absent[0] == 0 and max(absent) >= 1
    assert len(sim.server.state["ids"]) <= 5
    assert list(sim.server.layout.layers()) == list(sim.step().conflicts)[1:]


def test_losses_are_those_of_the_received_model_over_all_training_samples() -> None:
    seen = []

    @dataclass(frozen=True)
    class Look(LikeFedLF):
        def __call__(self, cohort: Cohort, state: State) -> Outcome:
            seen.append(cohort.losses)
            return super().__call__(cohort, state)

    sim = simulation(Method("look", SGD(), Look()))
    before = sim.evaluate("train")["global"].loss
    sim.step()
    assert seen[0] is not None
    assert seen[0].tolist() == pytest.approx(list(before), rel=1e-9)


# ------------------------------------------- like RFFL: own models, a download of one's own, removal for good


@dataclass(frozen=True)
class OwnModel(Alone):
    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, state

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        return {**state, "own": end + download}


@dataclass(frozen=True)
class LikeRFFL(ServerRule):
    per_client = True

    def init(self, w: Tensor) -> State:
        return {"reputation": torch.ones(50, dtype=w.dtype)}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        mean = cohort.updates.mean(0)
        share = torch.nn.functional.cosine_similarity(cohort.updates, mean[None])
        reputation = state["reputation"].clone()
        reputation[cohort.ids] = 0.5 * reputation[cohort.ids] + 0.5 * share
        out = cohort.ids[reputation[cohort.ids] < 0].tolist()
        downloads = -reputation[cohort.ids, None] * mean + cohort.updates
        return Outcome(mean, {"reputation": reputation}, downloads, exclude=tuple(out), info={"reputation": share})


@EXECUTORS
def test_a_different_download_each_and_removal(executor: str) -> None:
    class Flip(Attack):
        def corrupt(self, seen: Forgery) -> Tensor:
            return -5 * seen.own

    run = Run(executor=executor, dtype="float64")  # type: ignore[arg-type]
    sim = simulation(
        Method("rf", OwnModel(), LikeRFFL()), federation((9, 9, 9, 9, 9)), attack=Flip(clients=(2,)), run=run
    )
    records = [sim.step() for _ in range(6)]
    assert any(2 in r.info.get("excluded", []) for r in records)
    assert 2 not in records[-1].drawn
    ids, models = sim.personal() or (None, None)
    assert ids is not None and models is not None
    assert ids.tolist() == [0, 1, 2, 3, 4]
    assert min(relative(models[i], models[j]) for i in range(5) for j in range(i)) > 1e-6
    assert set(sim.evaluate("test")) == {"global", "personal"}


def test_an_undelivered_client_keeps_the_model_it_started_with() -> None:
    class NaN(Attack):
        def corrupt(self, seen: Forgery) -> Tensor:
            return seen.own * torch.nan

    sim = simulation(Method("rf", OwnModel(), LikeRFFL()), attack=NaN(clients=(1,)))
    sim.step()
    assert torch.equal(sim.simulator.store.get(torch.tensor([1]))["own"][0], sim.simulator.w0)


# ------------------------------------------------- like EAGLE: preparation, a scalar to each client, signals back


@dataclass(frozen=True)
class LikeEagleClient(ClientRule):
    def init(self, w: Tensor) -> State:
        return {"best": w.new_zeros(len(w))}

    def prepare(self, state: State, at: At) -> State:
        return {"best": at.risk(at.fit_alone(Stop(window=3, cap=10)), "validation")}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.message["weight"][:, None] * at.grad(w)), state

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        return {"gap": at.risk(at.received, "validation") - state["best"]}


@dataclass(frozen=True)
class LikeEagleServer(ServerRule):
    per_client = True

    def init(self, w: Tensor) -> State:
        return {"ids": torch.empty(0, dtype=torch.int64), "rows": w.new_empty(0)}

    def plan(self, ids: Tensor, state: State) -> dict[str, Tensor]:
        known = dict(zip(state["ids"].tolist(), state["rows"].tolist(), strict=True))
        return {"weight": torch.tensor([1.0 + known.get(i, 0.0) for i in ids.tolist()], dtype=torch.float64)}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        state = history(state, cohort.ids, cohort.signals["gap"], cap=cohort.n_clients)
        return Outcome(cohort.updates.mean(0), state, info={"gap": cohort.signals["gap"]})


@EXECUTORS
def test_preparation_messages_and_signals(executor: str) -> None:
    run = Run(executor=executor, dtype="float64")  # type: ignore[arg-type]
    sim = simulation(
        Method("ea", LikeEagleClient(), LikeEagleServer()), participation=Participation(per_round=2), run=run
    )
    for _ in range(8):
        record = sim.step()
        assert torch.isfinite(record.info["gap"]).all()
    assert len(sim.server.state["ids"]) == 4
    assert sim.server.plan().messages["weight"].tolist() != [1.0, 1.0]


def test_the_executors_agree_on_every_shape() -> None:
    for method in (
        Method("lf", SGD(), LikeFedLF()),
        Method("rf", OwnModel(), LikeRFFL()),
        Method("ea", LikeEagleClient(), LikeEagleServer()),
    ):
        ends = []
        for executor in ("vmap", "loop"):
            run = Run(executor=executor, dtype="float64")  # type: ignore[arg-type]
            sim = simulation(method, participation=Participation(per_round=3), run=run)
            for _ in range(4):
                sim.step()
            ends.append(sim.server.w)
        assert relative(*ends) < 1e-9


# ------------------------------------------------------------------------------------------------ the rest of the walk


def test_probe_answers_trial_models_as_fedmdfg_needs() -> None:
    @dataclass(frozen=True)
    class Search(ServerRule):
        needs = frozenset({"losses", "probe"})

        def __call__(self, cohort: Cohort, state: State) -> Outcome:
            mean = cohort.updates.mean(0)
            steps = torch.tensor([4.0, 1.0, 0.25], dtype=mean.dtype)
            assert cohort.probe is not None
            losses = cohort.probe(cohort.start - steps[:, None] * mean)
            assert losses.shape == (3, len(cohort))
            return Outcome(steps[losses.mean(1).argmin()] * mean, state)

    sim, plain = simulation(Method("s", SGD(), Search())), simulation(Method("p", SGD(), WeightedMean("uniform")))
    for _ in range(5):
        sim.step()
        plain.step()
    assert sim.evaluate("train")["global"].loss.mean() < plain.evaluate("train")["global"].loss.mean()


def test_three_batches_a_step_as_per_fedavg_needs() -> None:
    @dataclass(frozen=True)
    class Meta(ClientRule):
        batches = 3

        def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
            inner = at.descend(w, at.grad(w, batch=0))
            g = at.grad(inner, batch=1)
            hv = (at.grad(w + 1e-3 * g, batch=2) - at.grad(w - 1e-3 * g, batch=2)) / 2e-3
            return at.descend(w, g - at.lr * hv), state

    a, b = (simulation(Method("m", Meta()), run=Run(executor=e, dtype="float64")) for e in ("vmap", "loop"))  # type: ignore[arg-type]
    a.step()
    b.step()
    assert relative(a.server.w, b.server.w) < 1e-9


def test_a_custom_loss_sees_outputs_as_skl_needs() -> None:
    @dataclass(frozen=True)
    class Distil(ClientRule):
        def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
            teacher = at.outputs(at.received).softmax(-1)

            def loss(seen: Forward) -> Tensor:
                away = (seen.outputs.softmax(-1) - teacher).square().sum(-1)
                return ((seen.losses + away) * at.mask).sum(-1) / at.mask.sum(-1).clamp(min=1)

            return at.descend(w, at.grad(w, loss)), state

    sim = simulation(Method("d", Distil()))
    before = sim.evaluate("train")["global"].loss.mean()
    for _ in range(5):
        sim.step()
    assert sim.evaluate("train")["global"].loss.mean() < before


def test_a_shared_coin_sets_the_schedule_as_l2sgd_needs() -> None:
    taken = []

    @dataclass(frozen=True)
    class Coin(SGD):
        def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
            steps = 1 + int(stream.integers(4, torch.tensor(0)))
            taken.append(steps)
            return replace(given, steps=steps)

    for executor in ("vmap", "loop"):
        sim = simulation(Method("c", Coin()), run=Run(executor=executor))  # type: ignore[arg-type]
        for _ in range(5):
            sim.step()
    assert taken[:5] == taken[5:] and len(set(taken)) > 1


def test_what_begin_adds_lives_for_one_round() -> None:
    @dataclass(frozen=True)
    class Momentum(ClientRule):
        def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
            return received, {"v": torch.zeros_like(received)}

        def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
            v = 0.9 * state["v"] + at.grad(w)
            return at.descend(w, v), {**state, "v": v}

    a, b = (simulation(Method("m", Momentum()), run=Run(executor=e, dtype="float64")) for e in ("vmap", "loop"))  # type: ignore[arg-type]
    for _ in range(3):
        a.step()
        b.step()
    assert relative(a.server.w, b.server.w) < 1e-9
    assert a.simulator.store.dump() == {}


def test_an_attack_can_search_against_the_actual_rule() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Search(Attack):
        def corrupt(self, seen: Forgery) -> Tensor:
            honest = seen.honest.mean(0)
            best = min((0.0, 1.0, 3.0), key=lambda s: float(seen.oracle(-s * honest.expand_as(seen.own)) @ honest))
            assert best == 3.0
            return -best * honest.expand_as(seen.own)

    sim = simulation(Method("m", SGD(), WeightedMean("uniform")), attack=Search(count=1))
    before = sim.server.state
    sim.step()
    assert sim.server.state is before or sim.server.state == before


def test_outliers_are_fixed_within_a_round_and_new_in_the_next() -> None:
    seen: dict[tuple[int, int], set[float]] = {}

    @dataclass(frozen=True, kw_only=True)
    class Noise(Attack):
        def outliers(self, samples: Samples, stream: Stream) -> Samples:
            noise = stream.normal(samples.client, samples.index)
            assert set(samples.client.tolist()) == {1}
            for i, v in zip(samples.index.tolist(), noise.tolist(), strict=True):
                seen.setdefault((len(rounds), i), set()).add(v)
            return replace(samples, x=samples.x + noise.to(samples.x.dtype)[:, None])

    rounds: list[int] = []
    sim, clean = (simulation(attack=a, train=Train(epochs=2, batch=5)) for a in (Noise(clients=(1,)), None))
    for r in range(2):
        sim.step()
        clean.step()
        rounds.append(r)
    assert all(len(v) == 1 for v in seen.values())
    assert seen[0, min(i for r, i in seen if r == 0)] != seen[1, min(i for r, i in seen if r == 1)]
    assert relative(sim.server.w, clean.server.w) > 1e-6


def test_filters_chain_and_pairs_that_cannot_work_are_refused() -> None:
    @dataclass(frozen=True)
    class Halve(Filter):
        def __call__(self, cohort: Cohort) -> tuple[Cohort, dict[str, object]]:
            return cohort.with_updates(cohort.updates / 2), {"halved": len(cohort)}

    @dataclass(frozen=True)
    class Mix(Halve):
        keeps_rows = False

    plain, halved = simulation(), simulation(Method("h", SGD(), chain(Halve(), Halve(), WeightedMean())))
    start = plain.server.w.clone()
    plain.step()
    record = halved.step()
    assert record.info["Halve.halved"] == 4
    assert relative(4 * (start - halved.server.w), start - plain.server.w) < 1e-9
    with pytest.raises(EquipoiseError, match=r"Mix mixes clients.*LikeRFFL"):
        chain(Mix(), LikeRFFL())
    with pytest.raises(EquipoiseError, match="server rule last"):
        chain(WeightedMean(), Halve())


def test_a_rule_that_cannot_work_with_so_few_says_so_before_the_first_round() -> None:
    @dataclass(frozen=True)
    class Picky(Aggregator):
        def check(self, n: int) -> None:
            if n < 7:
                raise EquipoiseError(f"picky: {n} clients per round, 7 needed")

        def combine(self, cohort: Cohort) -> Tensor:
            return cohort.updates.mean(0)

    with pytest.raises(EquipoiseError, match="4 clients per round, 7 needed"):
        simulation(Method("p", SGD(), Picky()))
