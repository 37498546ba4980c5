"""Loss gaps, collaborative fairness, the ledger, and the models that clients reach alone."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from equipoise.at import At, Stop
from equipoise.attacks import LabelNoise
from equipoise.core import SGD, ClientRule, Mean, Method, Objective, State
from equipoise.data.federation import Federation
from equipoise.engine.clients import Executor
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.methods.eagle import eagle
from equipoise.methods.fedavg import fedavg
from equipoise.methods.local import Alone, local
from equipoise.metrics import collaborative, gaps, ledger, ranks
from equipoise.models import build
from equipoise.standalone import ExtraEpoch, collaborative_fairness, local_optima, standalone
from equipoise.streams import Stream
from tests.small import federation, relative

RUN = Run(dtype="float64", device="cpu")
STOP, BRIEF = Stop(window=5, cap=15), Stop(window=1, cap=2)
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
columns = st.integers(2, 30).flatmap(
    lambda n: st.tuples(st.lists(numbers, min_size=n, max_size=n), st.lists(numbers, min_size=n, max_size=n))
)
tied = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=20)


def scenario(fed: Federation | None = None, **changes: Any) -> Scenario:
    fed = fed or federation((9, 14, 5, 20))
    model = build("mlp", tuple(fed.data.x.shape[1:]), fed.data.classes, Stream(3), hidden=(4,))
    return replace(Scenario(fed, model, Train(rounds=3, batch=5, lr=0.1)), **changes)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients were trained alone in each call so far."""
    calls: list[int] = []
    true = Executor.fit_alone

    def counted(self: Executor, ids: Tensor, *rest: Any) -> Tensor:
        calls.append(len(ids))
        return true(self, ids, *rest)

    monkeypatch.setattr(Executor, "fit_alone", counted)
    return calls


# ------------------------------------------------------------------------------------------------------- gaps


@given(pair=columns)
def test_gaps_are_plain_statistics_with_the_samples_variance(pair: tuple[list[float], list[float]]) -> None:
    found, differences = gaps(*pair), np.subtract(*pair)
    assert found["gap_max"] == differences.max()
    assert found["gap_min"] == differences.min()
    assert found["gap_mean"] == pytest.approx(differences.mean(), rel=1e-9, abs=1e-9)
    by_pairs = sum((a - b) ** 2 for a in differences for b in differences) / (2 * len(differences))
    assert found["gap_variance"] == pytest.approx(by_pairs / (len(differences) - 1), rel=1e-6, abs=1e-9)


@given(gap=numbers, optimum=st.lists(st.integers(-100, 100), min_size=2, max_size=9))
def test_equal_gaps_have_no_variance(gap: float, optimum: list[int]) -> None:
    assert gaps(np.full(len(optimum), gap), np.zeros(len(optimum)))["gap_variance"] == 0.0
    shifted = gaps(np.array(optimum) + 0.5, optimum)
    assert shifted["gap_variance"] == 0.0
    assert shifted["gap_mean"] == 0.5


def test_gaps_leave_out_malicious_clients_and_those_without_samples() -> None:
    found = gaps([1.0, 9.0, math.nan, 2.0, 3.0], [0.5, 0.0, 1.0, 1.0, math.nan], [False, True, False, False, False])
    assert found == {"gap_max": 1.0, "gap_min": 0.5, "gap_variance": 0.125, "gap_mean": 0.75}


def test_gaps_of_nobody_one_client_and_a_diverged_model_are_told_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(math.isnan(v) for v in gaps([], []).values())
        one = gaps([1.0], [0.25])
        assert (one["gap_max"], one["gap_mean"]) == (0.75, 0.75)
        assert math.isnan(one["gap_variance"])
        wild = gaps([math.inf, 1.0], [0.0, 0.0])
        assert wild["gap_max"] == math.inf
        assert wild["gap_min"] == 1.0


# --------------------------------------------------------------------------------------------- collaborative fairness


@settings(max_examples=200)
@given(pairs=tied)
def test_correlations_agree_with_scipy_ties_included(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(v, dtype=float) for v in zip(*pairs, strict=True))
    found = collaborative(a, b)
    assert np.array_equal(ranks(a), stats.rankdata(a))
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert math.isnan(found["pearson"]) and math.isnan(found["spearman"])
    else:
        assert found["pearson"] == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-12)
        assert found["spearman"] == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


@given(pair=columns)
def test_correlations_lie_between_minus_one_and_one_and_never_warn(pair: tuple[list[float], list[float]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = collaborative(*pair)
    assert all(math.isnan(v) or -1.0 <= v <= 1.0 for v in found.values())
    assert collaborative(pair[1], pair[0])["pearson"] == pytest.approx(found["pearson"], abs=1e-12, nan_ok=True)


@given(values=st.lists(st.integers(-1000, 1000), min_size=2, max_size=20, unique=True))
def test_spearman_sees_order_and_pearson_sees_lines(values: list[int]) -> None:
    a = np.array(values, dtype=float)
    assert collaborative(a, 3 * a - 7)["pearson"] == pytest.approx(1.0)
    assert collaborative(a, -a)["pearson"] == pytest.approx(-1.0)
    assert collaborative(a, a**3)["spearman"] == pytest.approx(1.0)


def test_only_benign_clients_with_both_accuracies_are_correlated() -> None:
    alone = [0.1, 0.2, 0.3, 0.9, math.nan]
    received = [0.5, 0.6, 0.7, 0.0, 0.1]
    assert collaborative(alone, received, [0, 0, 0, 1, 0])["pearson"] == pytest.approx(1.0)
    assert collaborative(alone, received)["pearson"] < 0


def test_correlations_of_nobody_one_client_or_equals_are_undefined() -> None:
    for alone, received in (([], []), ([0.5], [0.5]), ([0.1] * 3, [0.1, 0.2, 0.3]), ([0.1, 0.2], [0.3, 0.3])):
        assert all(math.isnan(v) for v in collaborative(alone, received).values())


# ------------------------------------------------------------------------------------------------------- the ledger


def test_the_ledger_has_a_row_per_round_and_client_with_a_reputation() -> None:
    told = [{"client": 2, "reason": "reputation 0.01 is below 0.1"}]
    rounds = [
        (0, {"admitted": [0, 2, 5], "reputation": [0.5, 0.01, 0.49], "quota": [1.0, 0.0, 0.98]}),
        (
            1,
            {
                "admitted": [0, 2, 5],
                "reputation": [0.5, 0.0, 0.5],
                "quota": [1, 0, 1],
                "excluded": [2],
                "removed": told,
            },
        ),
        (2, {"admitted": [0, 5]}),
        (
            3,
            {"admitted": [0, 5], "reputation": torch.tensor([0.6, 0.4]), "excluded": [5], "reason": "too slow"},
        ),
    ]
    found = ledger(rounds)
    assert list(found) == ["round", "client", "reputation", "quota", "removed", "reason"]
    assert found["round"].tolist() == [0, 0, 0, 1, 1, 1, 3, 3]
    assert found["client"].tolist() == [0, 2, 5, 0, 2, 5, 0, 5]
    assert found["reputation"][:6].tolist() == [0.5, 0.01, 0.49, 0.5, 0.0, 0.5]
    assert found["quota"][:3].tolist() == [1.0, 0.0, 0.98]
    assert np.isnan(found["quota"][6:]).all()
    assert found["client"][found["removed"]].tolist() == [2, 5]
    assert found["reason"][found["removed"]].tolist() == ["reputation 0.01 is below 0.1", "too slow"]
    assert set(found["reason"][~found["removed"]]) == {""}


def test_a_method_without_reputations_has_an_empty_ledger_of_the_same_form() -> None:
    found = ledger([(0, {"admitted": [0, 1]})])
    assert {name: (len(c), c.dtype.kind) for name, c in found.items()} == {
        **{"round": (0, "i"), "client": (0, "i"), "reputation": (0, "f")},
        **{"quota": (0, "f"), "removed": (0, "b"), "reason": (0, "U")},
    }


# --------------------------------------------------------------------------------------------------- local optima


def test_local_optima_are_what_eagle_prepares(tmp_path: Path) -> None:
    given_ = scenario()
    found = local_optima(given_, RUN, STOP, tmp_path)
    method = eagle(tolerance=STOP.tolerance, window=STOP.window, cap=STOP.cap)
    sim = Simulation(given_, method, RUN)
    sim.step()
    optimum = sim.simulator.store.get(torch.arange(4))["optimum"]
    assert found.loss["validation"].tolist() == pytest.approx(optimum.tolist(), rel=1e-12)
    assert found.models.shape == (4, len(sim.server.w))
    assert {split: a.shape for split, a in found.accuracy.items()} == dict.fromkeys(
        ("train", "validation", "test"), (4,)
    )


def test_training_alone_lowers_every_clients_training_loss(tmp_path: Path) -> None:
    given_ = scenario()
    start = Simulation(given_, fedavg(), RUN).evaluate("train")["global"].loss
    assert (local_optima(given_, RUN, STOP, tmp_path).loss["train"] < start).all()


def test_optima_are_found_once_whatever_the_method_and_the_number_of_rounds(tmp_path: Path, fits: list[int]) -> None:
    first = local_optima(scenario(), RUN, STOP, tmp_path)
    same = scenario(train=Train(rounds=77, epochs=3, batch=5, lr=0.1, lr_decay=0.9))
    again = local_optima(
        replace(same, participation=Participation(per_round=2)), replace(RUN, workers=2), STOP, tmp_path
    )
    assert fits == [4]
    assert torch.equal(first.models, again.models)
    assert all(np.array_equal(first.loss[s], again.loss[s]) for s in first.loss)


def test_whatever_changes_the_optima_changes_their_name(tmp_path: Path, fits: list[int]) -> None:
    class Other(nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.inner, self.sign = nn.Linear(6, 3), sign
            with torch.no_grad():
                self.inner.weight.fill_(0.1)
                self.inner.bias.zero_()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.sign * self.inner(x.abs())
            return out * torch.arange(3)

    base, fed = scenario(), federation((9, 14, 5, 20))
    labels = replace(fed, data=replace(fed.data, y=(fed.data.y + 1) % 3))
    parts = fed.splits
    swapped = replace(
        fed, splits={**parts, "train": replace(parts["train"], start=torch.zeros_like(parts["train"].start))}
    )
    cases: list[tuple[Scenario, Run, Stop]] = [
        (base, RUN, BRIEF),
        (base, RUN, Stop(window=1, cap=3)),
        (base, replace(RUN, seed=1), BRIEF),
        (base, replace(RUN, dtype="float32"), BRIEF),
        (base, replace(RUN, executor="loop"), BRIEF),
        (scenario(train=Train(batch=4, lr=0.1)), RUN, BRIEF),
        (scenario(train=Train(batch=5, lr=0.2)), RUN, BRIEF),
        (scenario(train=Train(batch=5, lr=0.1, loss="squared")), RUN, BRIEF),
        (scenario(labels), RUN, BRIEF),
        (scenario(swapped), RUN, BRIEF),
        (scenario(attack=LabelNoise(clients=(1,))), RUN, BRIEF),
        (replace(base, model=build("mlp", (6,), 3, Stream(4), hidden=(4,))), RUN, BRIEF),
        (replace(base, model=build("mlp", (6,), 3, Stream(3), hidden=(5,))), RUN, BRIEF),
        (replace(base, model=Other(1.0)), RUN, BRIEF),
        (replace(base, model=Other(-1.0)), RUN, BRIEF),
    ]
    for case in cases:
        local_optima(*case, tmp_path)
    made = len(list(tmp_path.iterdir()))
    assert made == len(cases)
    seen = len(fits)
    local_optima(*cases[-1], tmp_path)
    assert len(fits) == seen


def test_a_damaged_file_is_made_again(tmp_path: Path, fits: list[int]) -> None:
    first = local_optima(scenario(), RUN, BRIEF, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    places = [0, 9, len(whole) // 4, len(whole) // 2, len(whole) - 3]
    damaged = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in places]
    for data in (*damaged, whole[: len(whole) // 2], b""):
        path.write_bytes(data)
        seen = len(fits)
        assert torch.equal(local_optima(scenario(), RUN, BRIEF, tmp_path).models, first.models)
        assert len(fits) == seen + 1
        assert path.read_bytes() == whole


def test_the_users_cache_is_used_when_no_folder_is_named_and_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: list[int]
) -> None:
    monkeypatch.setattr("equipoise.standalone.user_cache", lambda: tmp_path / "home")
    local_optima(scenario(), RUN, BRIEF)
    local_optima(scenario(), RUN, BRIEF)
    assert fits == [4]
    assert len(list((tmp_path / "home" / "alone").iterdir())) == 1
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr("equipoise.standalone.user_cache", lambda: tmp_path / "file")
    local_optima(scenario(), RUN, BRIEF)
    assert fits == [4, 4]
    with pytest.raises(EquipoiseError, match="file"):
        local_optima(scenario(), RUN, BRIEF, tmp_path / "file")


def test_clients_without_samples_in_a_split_have_no_loss_there(tmp_path: Path) -> None:
    fed = federation((9, 0, 5))
    found = local_optima(scenario(fed), RUN, STOP, tmp_path)
    assert np.isnan(found.loss["train"]).tolist() == [False, True, False]
    assert not np.isnan(found.loss["test"]).any()
    sim = Simulation(scenario(fed), fedavg(), RUN)
    assert torch.equal(found.models[1], sim.simulator.w0)
    none = gaps(sim.evaluate("train")["global"].loss, found.loss["train"])
    assert not math.isnan(none["gap_variance"])


def test_clients_that_an_attack_added_come_last(tmp_path: Path) -> None:
    plain = local_optima(scenario(), RUN, STOP, tmp_path)
    more = local_optima(scenario(attack=LabelNoise(added=0.5)), RUN, STOP, tmp_path)
    assert len(more.models) == 6
    assert relative(more.models[:4], plain.models) < 1e-9
    assert np.isnan(more.loss["test"][4:]).all()


# ----------------------------------------------------------------------------------- standalone, and the extra epoch


def test_standalone_accuracies_are_those_of_local_training() -> None:
    given_ = scenario()
    sim = Simulation(given_, local(), RUN)
    for _ in range(5):
        sim.step()
    assert np.array_equal(standalone(given_, RUN, 5), sim.evaluate("test")["personal"].accuracy)


def test_everyone_trains_alone_in_every_round_also_where_few_are_drawn() -> None:
    few = scenario(participation=Participation(per_round=1))
    assert np.array_equal(standalone(few, RUN), standalone(scenario(), RUN, 3))


def test_one_extra_epoch_is_one_round_of_local_training_from_the_global_model() -> None:
    given_ = scenario()
    sim = Simulation(given_, replace(fedavg(), client=ExtraEpoch(SGD())), RUN)
    for _ in range(3):
        sim.step()
    before = sim.evaluate("test")
    assert np.allclose(before["personal"].loss, before["global"].loss, rtol=1e-12)
    sim.finish()
    plain = Simulation(given_, fedavg(), RUN)
    for _ in range(3):
        plain.step()
    assert torch.equal(sim.server.w, plain.server.w)
    expected = sim.server.w - plain.simulator(plain.server.plan()).updates
    ids, models = sim.personal() or (None, None)
    assert ids is not None and models is not None
    assert ids.tolist() == [0, 1, 2, 3]
    assert relative(models, expected) < 1e-12


@dataclass(frozen=True)
class Halved(Objective):
    def __call__(self, losses: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return Mean()(losses, labels, mask) / 2


@dataclass(frozen=True)
class Busy(ClientRule):
    """Uses every hook, and hands back only its own keys."""

    objective: Objective = Halved()

    def init(self, w: Tensor) -> State:
        return {"own": w.clone(), "steps": w.new_zeros(len(w))}

    def prepare(self, state: State, at: At) -> State:
        return {"own": state["own"] + 0.01, "steps": state["steps"]}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received, {"momentum": torch.zeros_like(received)}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        momentum = 0.5 * state["momentum"] + at.grad(w)
        return at.descend(w, momentum), {"own": state["own"], "steps": state["steps"] + 1, "momentum": momentum}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, {"own": (state["own"] + w) / 2, "steps": state["steps"]}

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        return {"steps": state["steps"]}

    def personal(self, w: Tensor, state: State) -> Tensor:
        return state["own"]


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_the_extra_epoch_changes_nothing_before_it(executor: str) -> None:
    run = replace(RUN, executor=executor)  # type: ignore[arg-type]
    plain, extra = (Simulation(scenario(), Method("b", rule), run) for rule in (Busy(), ExtraEpoch(Busy())))
    for _ in range(3):
        plain.step()
        extra.step()
    assert torch.equal(plain.server.w, extra.server.w)
    everyone = torch.arange(4)
    base, wrapped = (s.simulator.store.get(everyone) for s in (plain, extra))
    assert all(torch.equal(wrapped[name], t) for name, t in base.items())
    assert torch.equal(extra.simulator.personal(everyone, extra.server.w), base["own"])
    extra.finish()
    after = extra.simulator.personal(everyone, extra.server.w)
    assert bool((after != base["own"]).any(1).all())
    assert torch.equal(extra.simulator.store.get(everyone)["own"], base["own"])


def test_the_extra_epoch_asks_the_engine_for_what_its_base_asks_for() -> None:
    class Greedy(SGD):
        batches, features = 3, 2

    wrapped = ExtraEpoch(Greedy(Halved()))
    assert (wrapped.batches, wrapped.features, wrapped.objective) == (3, 2, Halved())
    assert wrapped.finish().objective == Halved()


def test_a_method_that_trains_after_the_last_round_gets_no_extra_epoch() -> None:
    class Finetuned(SGD):
        def finish(self) -> ClientRule:
            return SGD()

    with pytest.raises(EquipoiseError, match=r"Finetuned train after the last round already(.|\n)*extra_epoch=False"):
        ExtraEpoch(Finetuned())


def test_collaborative_fairness_in_one_call() -> None:
    given_ = scenario(federation((2, 6, 20, 60)))
    found = collaborative_fairness(given_, RUN, fedavg())
    assert np.array_equal(found["standalone"], standalone(given_, RUN, 3))
    assert len(set(found["received"])) > 1
    expected = collaborative(found["standalone"], found["received"])
    assert {k: found[k] for k in expected} == pytest.approx(expected)


def test_who_gets_exactly_what_it_has_alone_correlates_perfectly() -> None:
    given_ = scenario(federation((1, 4, 20, 60)))
    found = collaborative_fairness(given_, RUN, Method("mine", Alone()))
    assert np.array_equal(found["standalone"], found["received"])
    assert found["pearson"] == pytest.approx(1.0)


def test_the_same_model_on_the_same_test_set_has_no_correlation_without_the_extra_epoch() -> None:
    fed = federation((2, 6, 20, 60))
    test = fed.splits["test"]
    common = replace(test, start=torch.zeros_like(test.start), size=torch.full_like(test.size, len(test.index)))
    fed = replace(fed, splits={**fed.splits, "test": common})
    assert math.isnan(collaborative_fairness(scenario(fed), RUN, fedavg(), extra_epoch=False)["pearson"])


def test_malicious_clients_do_not_count_in_collaborative_fairness() -> None:
    given_ = scenario(federation((2, 6, 20, 60)), attack=LabelNoise(added=0.5))
    found = collaborative_fairness(given_, RUN, fedavg())
    honest = collaborative(found["standalone"][:4], found["received"][:4])
    assert len(found["received"]) == 6
    assert found["pearson"] == pytest.approx(honest["pearson"])
