"""Ditto as an add-on: what it does to personal models, and what it leaves alone."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise import config
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.at import Schedule
from equipoise.core import SGD, At, ClientRule, Cohort, Method, Objective, Outcome, ServerRule, State, WeightedMean
from equipoise.data.federation import Federation, Split
from equipoise.data.synthetic import ditto_point
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.experiment import run
from equipoise.methods.ditto import Ditto, ditto, warn_if_unstable
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedprox import FedProx, fedprox
from equipoise.methods.local import local
from equipoise.streams import Stream
from tests.small import federation, relative, simulation

EXECUTORS = pytest.mark.parametrize("executor", ["vmap", "loop"])
TWO = Participation(per_round=2)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"solver": "finetune", "finetune_epochs": 2},
    {"choose": "validation"},
    {"choose": "greedy", "strong": True},
]


def with_validation(count: int) -> Federation:
    """The small federation, where every client has `count` validation samples: copies of the first training ones."""
    fed = federation((9, 25, 12, 14))
    first = [fed.splits["train"].of_client(k)[:count] for k in range(fed.n_clients)]
    return replace(fed, splits={**fed.splits, "validation": Split.of(first)})


def after(method: Method, rounds: int = 4, fed: Federation | None = None, **scenario: Any) -> Simulation:
    sim = simulation(method, fed, **scenario)
    for _ in range(rounds):
        sim.step()
    return sim


def models(sim: Simulation) -> Tensor:
    """[N, d]: what every client uses, those never drawn included."""
    return sim.simulator.personal(torch.arange(sim.n_clients), sim.server.w)


# ------------------------------------------------------------------------------------------------------- special cases


@EXECUTORS
@pytest.mark.parametrize("participation", [Participation(), TWO])
def test_lam_zero_is_local_training_to_the_bit(executor: str, participation: Participation) -> None:
    scenario = {"run": Run(dtype="float64", executor=executor, replay="off"), "participation": participation}  # type: ignore[arg-type]
    pulled, alone = (after(m, model="mlp", hidden=(5,), **scenario) for m in (ditto(0.0), local()))
    assert torch.equal(models(pulled), models(alone))
    assert not torch.equal(pulled.server.w, alone.server.w)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_global_model_is_that_of_the_base_method_to_the_bit(options: dict[str, Any]) -> None:
    for base in (fedprox(0.5), fedavg(), fedprox(0.5, server=CoordinateMedian())):
        plain, added = after(base, participation=TWO), after(ditto(base=base, **options), participation=TWO)
        assert torch.equal(plain.server.w, added.server.w)


def test_any_server_rule_takes_the_place_of_the_base_methods() -> None:
    sim = after(ditto(base=fedprox(0.5), server=CoordinateMedian()))
    assert torch.equal(sim.server.w, after(fedprox(0.5, server=CoordinateMedian())).server.w)
    assert isinstance(ditto().server, WeightedMean) and ditto().server.weights == "uniform"
    assert isinstance(ditto(base=fedavg()).server, WeightedMean) and ditto(base=fedavg()).server.weights == "size"


def test_a_larger_lam_keeps_personal_models_nearer_to_the_global_one() -> None:
    away = []
    for lam in (0.0, 0.1, 1.0, 5.0):
        sim = after(ditto(lam), rounds=8)
        away.append(float((models(sim) - sim.server.w).norm()))
    assert away == sorted(away, reverse=True) and away[-1] < away[0] / 3


def test_a_client_that_was_never_drawn_uses_the_initial_model() -> None:
    sim = after(ditto(), rounds=1, participation=Participation(per_round=1))
    moved = (models(sim) != sim.simulator.w0).any(1)
    assert moved.sum() == 1
    assert not torch.equal(sim.server.w, sim.simulator.w0)


def test_the_personal_model_goes_on_from_its_own_last_value() -> None:
    """A round's pull is towards the model received then: written out for one client with one full-batch step."""
    fed = federation((9,))
    sim = simulation(ditto(0.7), fed, train=Train(steps=1, batch=0, lr=0.1))
    v = w = sim.simulator.w0
    for _ in range(3):
        sim.step()
        gradient = (w - sim.server.w) / 0.1  # the base takes one plain step, so its update tells the gradient at w
        at_v = simulation(fedavg(), fed, train=Train(steps=1, batch=0, lr=0.1))
        at_v.server.w = v
        at_v.step()
        v, w = v - 0.1 * ((v - at_v.server.w) / 0.1 + 0.7 * (v - w)), w - 0.1 * gradient
        assert relative(models(sim)[0], v) < 1e-12


# ----------------------------------------------------------------------------------------------------- the base's hooks


@dataclass(frozen=True)
class Worst(Objective):
    def __call__(self, losses: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, losses, torch.zeros_like(losses)).amax(-1)


@dataclass(frozen=True)
class Busy(ClientRule):
    """Uses every hook there is, and a state with the same name as Ditto's."""

    objective: Objective = Worst()
    batches = 2

    def init(self, w: Tensor) -> State:
        return {"v": torch.zeros_like(w), "first": w.new_zeros(len(w)), "got": torch.zeros_like(w)}

    def prepare(self, state: State, at: At) -> State:
        return {**state, "first": at.risk(at.received)}

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return replace(given, steps=1 + round)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received + 0.01 * state["got"], {"now": torch.zeros_like(received)}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        v = 0.5 * state["v"] + at.grad(w) + at.grad(w, batch=1)
        return at.descend(w, v), {**state, "v": v, "now": state["now"] + v}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w - 0.001 * state["now"], state

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        return {"first": state["first"]}

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        return {**state, "got": download}


@dataclass(frozen=True)
class Answering(ServerRule):
    per_client = True

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        weights = cohort.signals["first"] / cohort.signals["first"].sum()
        return Outcome(weights @ cohort.updates, state, downloads=cohort.updates)


@EXECUTORS
@pytest.mark.parametrize("options", OPTIONS)
def test_every_hook_and_all_state_of_the_base_rule_are_passed_on(executor: str, options: dict[str, Any]) -> None:
    busy, scenario = Method("busy", Busy(), Answering()), {"run": Run(dtype="float64", executor=executor)}  # type: ignore[arg-type]
    plain, added = after(busy, **scenario), after(ditto(base=busy, **options), **scenario)
    assert torch.equal(plain.server.w, added.server.w)
    everyone = torch.arange(4)
    ours = added.simulator.store.get(everyone)
    for name, rows in plain.simulator.store.get(everyone).items():
        assert torch.equal(rows, ours[f"base.{name}"])


def test_personal_models_descend_the_base_rules_objective() -> None:
    assert Ditto(base=Busy()).objective == Worst()
    worst, mean = after(ditto(0.0, base=Method("w", SGD(Worst())))), after(ditto(0.0))
    assert relative(models(worst), models(mean)) > 1e-3


def test_ditto_on_ditto_keeps_two_personal_models() -> None:
    twice, once = after(ditto(0.1, base=ditto(2.0))), after(ditto(0.1))
    assert torch.equal(models(twice), models(once))
    inner = twice.simulator.store.get(torch.arange(4))["base.v"]
    assert torch.equal(inner, models(after(ditto(2.0))))


# ------------------------------------------------------------------------------------------------------- choosing lam


@pytest.mark.parametrize(("strong", "lams"), [(False, (0.1, 1.0, 2.0)), (True, (0.05, 0.1, 0.2))])
def test_each_client_uses_the_candidate_with_the_lowest_validation_loss(strong: bool, lams: tuple[float, ...]) -> None:
    fed = with_validation(4)
    chosen = after(ditto(choose="validation", strong=strong), fed=fed)
    runs = [after(ditto(lam), fed=fed) for lam in lams]
    losses = torch.stack([torch.from_numpy(r.evaluate("validation")["personal"].loss) for r in runs])
    best = torch.stack([models(r) for r in runs])[losses.argmin(0), torch.arange(4)]
    assert relative(models(chosen), best) < 1e-12


@pytest.mark.parametrize(("options", "lam"), [({}, 1.0), ({"lam": 0.3}, 0.3), ({"strong": True}, 0.1)])
@pytest.mark.parametrize("choose", ["validation", "greedy"])
def test_three_validation_samples_are_too_few_to_choose(choose: Any, options: dict[str, Any], lam: float) -> None:
    sim = after(ditto(choose=choose, **options), fed=with_validation(3))
    assert relative(models(sim), models(after(ditto(lam), fed=with_validation(3)))) < 1e-12


def test_the_greedy_choice_is_the_best_of_all_candidates_in_every_step() -> None:
    """In the first step v is still w, so that lam plays no part; the second is the first choice."""
    fed, train = with_validation(4), Train(steps=1, batch=0, lr=0.1)
    greedy = after(ditto(choose="greedy"), 2, fed, train=train).evaluate("validation")["personal"].loss
    fixed = [after(ditto(lam), 2, fed, train=train).evaluate("validation")["personal"].loss for lam in (0.1, 1.0, 2.0)]
    assert greedy == pytest.approx(np.min(fixed, axis=0), rel=1e-12)
    assert np.ptp(fixed, axis=0).max() > 1e-3


@pytest.mark.filterwarnings("ignore:ditto")
def test_a_candidate_that_diverges_is_not_chosen_and_harms_no_other() -> None:
    fed = with_validation(4)
    wild, tame = ((1e300, 1.0), (1.0,))
    sims = [after(ditto(choose="validation", candidates=c), fed=fed) for c in (wild, tame)]
    assert torch.equal(*(models(s) for s in sims))


# ---------------------------------------------------------------------------------------------------------- finetuning


def test_before_finetuning_clients_use_the_global_model_and_afterwards_their_own() -> None:
    sim = after(ditto(solver="finetune", finetune_epochs=3), participation=TWO)
    assert torch.equal(models(sim), sim.server.w.expand(4, -1))
    sim.finish()
    assert (models(sim) != sim.server.w).any(1).all()


def test_both_solvers_reach_the_same_personal_models_when_the_loss_is_strongly_convex() -> None:
    ends = []
    for options in ({}, {"solver": "finetune", "finetune_epochs": 40}):
        train, model = Train(steps=5, batch=0, lr=0.4), nn.Linear(1, 3, bias=False)
        sim = after(ditto(0.5, **options), 10, ditto_point(5, dim=3), train=train, model=model)  # type: ignore[arg-type]
        sim.finish()
        ends.append(models(sim))
    assert relative(*ends) < 1e-9


def test_finetuning_runs_at_the_end_of_a_whole_run_and_can_choose_lam() -> None:
    method = ditto(solver="finetune", choose="validation", finetune_epochs=5)
    result = run(with_validation(5), method, model="linear", rounds=2, lr=0.1, eval_every=1, dtype="float64")
    assert result.personal is not None and sorted(result.personal) == [0, 1, 2, 3]
    assert all(relative(v, result.model) > 1e-6 for v in result.personal.values())


# --------------------------------------------------------------------------------------------------------------- traps


def test_dropout_is_off_when_personal_models_are_tested() -> None:
    fed, layers = with_validation(4), (nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    sim = after(ditto(choose="validation"), fed=fed, model=nn.Sequential(*layers))
    seen, v = sim.evaluate("test")["personal"].loss, models(sim)
    names = sim.server.layout.tensors(v)
    plain = nn.Sequential(layers[0], layers[2]).double()
    for k in range(4):
        at = fed.splits["test"].of_client(k)
        with torch.no_grad():
            for p, n in zip(plain.parameters(), names, strict=True):
                p.copy_(names[n][k])
            loss = nn.functional.cross_entropy(plain(fed.data.x[at].double()), fed.data.y[at])
        assert seen[k] == pytest.approx(float(loss), rel=1e-9)


def test_a_pull_that_must_diverge_is_warned_of_and_stays_finite() -> None:
    warn_if_unstable(0.5, 4.0)
    with pytest.warns(RuntimeWarning, match=r"lr \* lam is 0.5 \* 5"):
        warn_if_unstable(0.5, 5.0)
    train = Train(batch=0, lr=0.5)
    with pytest.warns(RuntimeWarning, match="above 2"):
        sim = after(ditto(8.0), 30, train=train)
    assert torch.isfinite(models(sim)).all()
    assert (models(sim) - sim.server.w).norm() > 1e6 * sim.server.w.norm()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lam": -1.0}, "lam is -1.0"),
        ({"lam": float("nan")}, "lam is nan"),
        ({"solver": "both"}, "solver is 'both'"),
        ({"choose": "test"}, "choose is 'test'"),
        ({"choose": "greedy", "candidates": (1.0, -2.0)}, r"candidates is \[1.0, -2.0\]"),
        ({"lam": 1.0, "strong": True}, 'strong is set, but choose is "fixed"'),
        ({"lam": 1.0, "candidates": (1.0,)}, 'candidates is set, but choose is "fixed"'),
        ({"finetune_epochs": 0}, "finetune_epochs is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(EquipoiseError, match=said):
        ditto(**options)


# ---------------------------------------------------------------------------------------------------------- in a config


def test_base_and_server_can_be_given_in_a_config() -> None:
    text = """
    [data]
    dataset = "digits"
    clients = 5
    [model]
    kind = "linear"
    [method]
    name = "ditto"
    lam = 0.5
    choose = "validation"
    base = { name = "fedprox", mu = 0.2 }
    server = { name = "coordinate-median" }
    """
    read = config.load(text)
    method = read.make_method()
    assert method == ditto(0.5, choose="validation", base=fedprox(0.2), server=CoordinateMedian())
    assert method.client == Ditto(0.5, FedProx(0.2), choose="validation")
    assert config.load(config.dump(read)).make_method() == method
    assert config.load(text.replace("server =", "# ")).make_method().server == fedprox().server
