"""FedLF: what its direction promises, what it does with odd cohorts, and what it remembers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import history
from equipoise.at import Schedule
from equipoise.core import Cohort, Outcome, WeightedMean
from equipoise.engine.settings import Participation, Train
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.methods import _rows
from equipoise.methods.fedlf import FedLF, fedlf
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery
from tests.small import cohort, federation, relative, simulation

SEEDS = st.integers(0, 10**6)


def run(c: Cohort, **options: Any) -> Outcome:
    rule = FedLF(**options)
    return rule(c, rule.init(c.start))


def parts(c: Cohort, outcome: Outcome) -> list[tuple[Tensor, Tensor]]:
    """Updates and direction of every layer or merged group, by the names in the info."""
    layers = c.layout.layers()
    at = [[i for n in name.split("+") for s in layers[n] for i in range(s.start, s.stop)] for name in groups(outcome)]
    return [(c.updates[:, i].double(), outcome.direction[i].double()) for i in at]


def groups(outcome: Outcome) -> list[str]:
    return list(outcome.info["group_conflicts"])


# -------------------------------------------------------------------------------------------------- no conflicts


@settings(max_examples=60)
@given(
    SEEDS,
    st.integers(1, 12),
    st.sampled_from([12, 24, 60]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_client_is_opposed_in_any_layer_or_group(
    seed: int, k: int, d: int, alike: float, normalise: bool, dtype: torch.dtype
) -> None:
    c = cohort(k, d, seed=seed)
    updates = (alike * c.updates.mean(0) + c.updates) * 10 ** (4 * torch.rand(k, 1, generator=Stream(seed).torch()) - 4)
    c = replace(c, updates=updates.to(dtype), start=c.start.to(dtype))
    outcome = run(c, normalise_rows=normalise)
    assert outcome.direction.dtype == dtype
    for u, d_l in parts(c, outcome):
        assert ((u @ d_l) >= 0).all()
        if float(outcome.direction.norm()) > 0:
            assert ((u @ d_l) > 0).all() and float(d_l.norm()) > 0
    assert all(n == 0 for n in outcome.info["group_conflicts"].values())


@pytest.mark.parametrize("shrink", [1e-2, 1e-4, 3e-6])
def test_signs_hold_in_float32_when_the_hull_almost_contains_zero(shrink: float) -> None:
    """Rows that cancel but for a small common part: the direction is thousands of times shorter than they are."""
    g = Stream(3).torch()
    rows = torch.randn((10, 4000), generator=g, dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True)
    rows = rows - rows.mean(0) + shrink * torch.randn(4000, generator=g, dtype=torch.float64) / 4000**0.5
    c = replace(cohort(10, 4000), updates=rows.float(), start=torch.zeros(4000))
    outcome = run(c, layer="model", fair="none", normalise_rows=False)
    assert "reason" not in outcome.info
    assert (c.updates.double() @ outcome.direction.double() > 0).all()


def test_the_direction_is_as_long_as_the_mean_update() -> None:
    c = cohort(6, 60)
    assert float(run(c).direction.norm()) == pytest.approx(float(c.updates.mean(0).norm()), rel=1e-12)


def test_the_row_of_even_losses_is_the_gradient_of_minus_the_cosine() -> None:
    for seed in range(5):
        c = cohort(7, seed=seed)
        assert c.losses is not None
        f = c.losses.clone().requires_grad_()
        one = torch.ones_like(f)
        (-(f @ one) / (f.norm() * one.norm())).backward()
        h, there = FedLF()._h(c.losses)
        assert f.grad is not None and torch.allclose(h, f.grad, rtol=1e-12, atol=1e-15) and there


def test_fedmdfg_differs_by_its_threshold_only_once_rows_are_normalised() -> None:
    c = cohort(6, 60, seed=2)
    default, m5 = run(c), run(c, fair="fedmdfg", theta=0.0)
    assert relative(m5.direction, default.direction) < 1e-9
    assert relative(run(c, fair="fedmdfg", theta=0.0, normalise_rows=False).direction, default.direction) > 1e-3
    assert not run(c, fair="fedmdfg", theta=1.5).info["fair_row"]


def test_the_cosine_of_the_losses_never_falls_to_first_order_which_it_may_without_the_fair_row() -> None:
    change = {"cos": [], "none": []}
    for seed in range(12):
        c = cohort(5, 60, seed=seed)
        for fair, rises in change.items():
            d = run(c, fair=fair, layer="model", normalise_rows=False).direction
            assert c.losses is not None
            rises.append(float(FedLF()._h(c.losses)[0] @ c.updates @ d))
    assert min(change["cos"]) > 0 > min(change["none"])


# ------------------------------------------------------------------------------------------------------ merging


def opposed(*layers: int) -> Cohort:
    """Three layers of 4; in the given ones the clients are exactly opposed, in the others they agree."""
    layout = Layout.of({name: torch.empty(4) for name in ("a", "b", "c")})
    rows = torch.randn((2, 12), generator=Stream(0).torch(), dtype=torch.float64).abs()
    for layer in layers:
        at = slice(4 * layer, 4 * layer + 4)
        rows[1, at] = -rows[0, at]
    return replace(cohort(2), updates=rows, layout=layout)


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ((), ["a", "b", "c"]),
        ((0,), ["a+b", "c"]),
        ((1,), ["a", "b+c"]),
        ((2,), ["a", "b+c"]),
        ((0, 1), ["a+b+c"]),
        ((0, 2), ["a+b+c"]),
        ((1, 2), ["a+b+c"]),
    ],
)
def test_a_layer_of_opposite_rows_joins_the_next_and_the_last_the_one_before(
    zero: tuple[int, ...], expected: list[str]
) -> None:
    outcome = run(opposed(*zero))
    assert groups(outcome) == expected
    assert outcome.info["merged"] == [name for name in expected if "+" in name]
    assert float(outcome.direction.norm()) > 0


def test_everything_opposed_leaves_the_model_alone_and_says_why() -> None:
    c = opposed(0, 1, 2)
    outcome = run(c)
    assert outcome.direction.tolist() == [0.0] * 12 and outcome.stop is None
    assert groups(outcome) == ["a+b+c"] and "stationary" in outcome.info["reason"]
    assert "stationary" in str(run(c, stop=True).stop)


def test_merged_layers_are_solved_as_one() -> None:
    c = opposed(1)
    outcome = run(c)
    joined = Layout.of({"a": torch.empty(4), "bc": torch.empty(8)})
    # to rounding: products of joined layers are sums of the layers' products, whose order differs between processors
    assert relative(outcome.direction, run(replace(c, layout=joined)).direction) < 1e-12


def test_with_one_layer_it_is_the_model_level_method() -> None:
    c = replace(cohort(6, 30), layout=Layout.of({"only.weight": torch.empty(20), "only.bias": torch.empty(10)}))
    assert relative(run(c).direction, run(c, layer="model").direction) < 1e-12
    assert torch.equal(run(replace(c, layout=Layout())).direction, run(c, layer="model").direction)


def test_one_fragment_is_the_model_and_more_than_there_are_numbers_is_one_each() -> None:
    c = cohort(2, 12)
    assert torch.equal(run(c, layer="fragments", fragments=1).direction, run(c, layer="model").direction)
    c = replace(c, updates=c.updates.abs())
    assert len(groups(run(c, layer="fragments", fragments=99, fair="none"))) == 12
    assert len(groups(run(c, layer="fragments"))) == len(c.layout.layers())


# --------------------------------------------------------------------------------------------------- odd cohorts


def test_one_client_gets_its_own_update_whatever_it_is() -> None:
    c = cohort(1, 12)
    for options in ({}, {"normalise_rows": False}, {"layer": "tensor"}, {"fair": "fedmdfg"}):
        assert torch.allclose(run(c, **options).direction, c.updates[0], rtol=1e-12)


def test_equal_losses_have_no_row_of_their_own() -> None:
    c = cohort(6, 60)
    for losses in (torch.full((6,), 0.7), torch.zeros(6), torch.full((6,), 1e-30, dtype=torch.float64)):
        even = run(replace(c, losses=losses))
        assert not even.info["fair_row"]
        assert torch.equal(even.direction, run(c, fair="none").direction)


def test_losses_that_differ_by_rounding_only_count_as_equal() -> None:
    c = cohort(6, 60)
    noise = 1 + 1e-8 * torch.randn(6, generator=Stream(1).torch(), dtype=torch.float64)
    assert torch.equal(run(replace(c, losses=0.7 * noise)).direction, run(c, fair="none").direction)


def test_a_fair_row_that_cancels_to_rounding_is_left_out() -> None:
    for loss in torch.linspace(1.5, 9.0, 8, dtype=torch.float64):
        c = replace(cohort(2, 30), losses=torch.stack([loss, loss / loss]))
        assert c.losses is not None
        h, there = FedLF()._h(c.losses)
        assert there and h[0] > 0 > h[1]
        c.updates[1] = -h[0] / h[1] * c.updates[0]
        outcome = run(c, normalise_rows=False)
        assert "reason" not in outcome.info
        assert cosine(outcome.direction, c.updates[0]) > 1 - 1e-12


@pytest.mark.parametrize("normalise", [True, False])
def test_zero_updates_of_all_leave_the_model_alone(normalise: bool) -> None:
    c = cohort(4)
    nothing = replace(c, updates=torch.zeros_like(c.updates))
    outcome = run(nothing, normalise_rows=normalise)
    assert not outcome.direction.any() and outcome.info["reason"]
    rule = FedLF(normalise_rows=normalise)
    others = rule(replace(c, ids=c.ids + 10), rule.init(c.start)).state
    after = rule(replace(nothing, round=1), others)
    assert after.info["absent"] == 4 and not after.direction.any() and after.info["reason"]


@pytest.mark.parametrize("normalise", [True, False])
def test_a_client_that_sends_nothing_stops_nobody(normalise: bool) -> None:
    c = cohort(5, 60)
    c.updates[2] = 0
    outcome = run(c, normalise_rows=normalise, fair="none")
    others = torch.tensor([0, 1, 3, 4])
    without = Cohort(others, c.start, c.updates[others], c.sizes[others], c.losses[others], layout=c.layout)  # type: ignore[index]
    assert cosine(outcome.direction, run(without, normalise_rows=normalise, fair="none").direction) > 1 - 1e-12


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("normalise", [True, False])
def test_a_client_that_sends_minus_the_mean_of_the_others_stops_the_round_not_the_run(normalise: bool) -> None:
    c = cohort(5, 60)
    c.updates[4] = -c.updates[:4].mean(0)
    outcome = run(c, normalise_rows=normalise)
    assert not outcome.direction.any() and outcome.stop is None
    assert outcome.info["merged"] and outcome.info["reason"]
    c.updates[4] *= 0.999
    c.updates[4, ::2] *= 1.1
    assert torch.isfinite(run(c, normalise_rows=normalise).direction).all()


def test_in_one_layer_minus_the_mean_of_the_others_only_merges_that_layer() -> None:
    c = cohort(5, 60)
    updates = 0.5 * c.updates + c.updates.mean(0)
    updates[4, 30:] = -updates[:4, 30:].mean(0)
    layout = Layout.of({"a": torch.empty(15), "b": torch.empty(15), "c": torch.empty(30)})
    outcome = run(replace(c, updates=updates, layout=layout))
    assert groups(outcome) == ["a", "b+c"] and outcome.direction.all()


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e30])
def test_one_client_of_another_size_yields_finite_directions_without_conflicts(size: float) -> None:
    c = cohort(5, 60)
    updates = (c.updates + 1).float()
    updates[1] *= size
    c = replace(c, updates=updates, start=c.start.float())
    outcome = run(c)
    assert torch.isfinite(outcome.direction).all()
    assert all(((u @ d) > 0).all() for u, d in parts(c, outcome))


def test_numbers_are_read_in_pieces_without_changing_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    c = cohort(6, 60)
    whole = run(c).direction
    monkeypatch.setattr(_rows, "_CHUNK", 1 << 5)
    assert relative(run(c).direction, whole) < 1e-12


def test_what_lies_side_by_side_is_read_as_one_slice() -> None:
    layout = Layout.of({n: torch.empty(3) for n in ("a.weight", "a.bias", "b.weight", "c.weight", "b.bias")})
    c = replace(cohort(3, 15), updates=cohort(3, 15).updates.abs() + 0.1, layout=layout)
    layers = FedLF()._layers(c)
    assert layers == {"a": [slice(0, 6)], "b": [slice(6, 9), slice(12, 15)], "c": [slice(9, 12)]}
    assert all(((u @ d) > 0).all() for u, d in parts(c, run(c)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("d", [60, 9000])
def test_on_a_cuda_device_rounds_with_absent_clients_give_the_same_directions(d: int) -> None:
    rule = FedLF()
    there = rule.init(torch.zeros(d, dtype=torch.float64).cuda())
    for c, outcome in rounds(rule, WHO, d):
        on_gpu = {f: getattr(c, f).cuda() for f in ("ids", "start", "updates", "sizes", "losses")}
        far, here = rule(replace(c, **on_gpu), there), outcome.state
        there = far.state
        assert far.direction.is_cuda and there["rows"].is_cuda
        assert relative(far.direction.cpu(), outcome.direction) < 1e-9 and far.info == outcome.info
        assert there.keys() == here.keys() and torch.allclose(there["gram"].cpu(), here["gram"], rtol=1e-10)


# -------------------------------------------------------------------------------------------------- absent clients


def rounds(rule: FedLF, who: list[list[int]], d: int = 24, lr: float = 0.1) -> list[tuple[Cohort, Outcome]]:
    out: list[tuple[Cohort, Outcome]] = []
    state = rule.init(torch.zeros(d, dtype=torch.float64))
    for t, ids in enumerate(who):
        c = replace(cohort(len(ids), d, seed=t, ids=ids), round=t, lr=lr)
        c = replace(c, updates=c.updates + 0.5)
        out.append((c, rule(c, state)))
        state = out[-1][1].state
    return out


WHO = [[0, 1], [2, 3], [4, 5], [0, 6], [2, 7], [1, 3]]


@pytest.mark.parametrize(
    ("absent", "expected"),
    # In round t those heard in t - M/2 or later count, M = 2, 4, 6, 7, 8, 8 clients being known.
    [("recent", [0, 2, 4, 5, 6, 6]), ("last", [0, 2, 2, 2, 2, 2]), ("all", [0, 2, 4, 5, 6, 6]), ("none", [0] * 6)],
)
def test_who_counts_while_absent(absent: Any, expected: list[int]) -> None:
    assert [o.info["absent"] for _, o in rounds(FedLF(absent=absent), WHO)] == expected


def test_long_absences_count_with_all_only() -> None:
    who = [[9], *[[0, 1], [2, 3]] * 4]
    assert [o.info["absent"] for _, o in rounds(FedLF(absent="all"), who)][-1] == 3
    assert [o.info["absent"] for _, o in rounds(FedLF(absent="recent"), who)][-1] == 2


def test_absent_clients_are_not_opposed_either() -> None:
    found = rounds(FedLF(layer="model"), [[0, 1, 2], [3, 4, 5]], d=60)
    (before, _), (_, outcome) = found
    assert "reason" not in outcome.info
    assert (before.updates @ outcome.direction > 0).all()


def test_an_absent_client_counts_with_its_gradient_not_with_the_step_size_of_its_round() -> None:
    """Halving the step size from one round to the next is the same as having trained with half of it at once."""
    a, b = cohort(3, 60, seed=1, ids=[0, 1, 2]), replace(cohort(3, 60, seed=2, ids=[3, 4, 5]), round=1, lr=0.05)
    rule, ends = FedLF(normalise_rows=False, layer="model"), []
    for lr in (0.1, 0.05):
        first = replace(a, updates=(a.updates + 1) * lr, lr=lr)
        state = rule(first, rule.init(a.start)).state
        ends.append(rule(replace(b, updates=(b.updates + 1) * 0.05), state).direction)
    assert relative(*ends) < 1e-12


def test_memory_is_capped_newest_first_and_products_stay_those_of_its_rows() -> None:
    found = rounds(FedLF(cap=3), WHO)
    for t, (c, outcome) in enumerate(found):
        state = outcome.state
        assert len(state["ids"]) <= 3 and state["ids"].tolist() == sorted(state["ids"].tolist())
        assert set(c.ids.tolist()) <= set(state["ids"].tolist())
        assert (state["rounds"] >= t - 1).all()
        layers = list(c.layout.layers().values())
        for gram, slices in zip(state["gram"], layers, strict=True):
            rows = torch.cat([state["rows"][:, s] for s in slices], 1)
            assert torch.allclose(gram, rows @ rows.T, rtol=1e-12)
    assert found[-1][1].state["seen"].tolist() == list(range(8))


def test_without_absent_clients_nothing_is_remembered() -> None:
    for rule in (FedLF(absent="none"), FedLF(cap=0)):
        assert all(len(o.state["rows"]) == 0 and o.info["absent"] == 0 for _, o in rounds(rule, WHO))
    assert all(len(o.state["rows"]) == 2 for _, o in rounds(FedLF(absent="last"), WHO))


def test_memory_recalls_by_client() -> None:
    memory = history.blank(rows=torch.zeros(2), score=torch.zeros(()))
    nobody = history.recall(memory, torch.tensor([4]))
    assert not nobody[1].any()
    row = torch.arange(6.0).view(3, 2)
    memory = history.remember(memory, torch.tensor([2, 5, 9]), 0, 10, rows=row, score=row[:, 0])
    memory = history.remember(memory, torch.tensor([3, 5]), 1, 10, rows=-row[:2], score=-row[:2, 0])
    assert memory["ids"].tolist() == [2, 3, 5, 9] and memory["rounds"].tolist() == [0, 1, 1, 0]
    at, known = history.recall(memory, torch.tensor([5, 6, 9, 11]))
    assert known.tolist() == [True, False, True, False]
    assert memory["rows"][at[known]].tolist() == [[-2.0, -3.0], [4.0, 5.0]]
    assert memory["score"].tolist() == [0.0, -0.0, -2.0, 4.0]
    assert history.absent(memory, torch.tensor([5]), since=1).tolist() == [False, True, False, False]
    assert history.kept(memory, torch.tensor([1]), 2, cap=3).tolist() == [0, 2, 3]
    assert history.kept(memory, torch.tensor([1]), 2, cap=9, since=2).tolist() == [0]


# ----------------------------------------------------------------------------------------------- the whole method


def test_the_ablations_are_options() -> None:
    made = {f"M{i}": fedlf(ablation=f"M{i}").server for i in range(1, 9)}  # type: ignore[arg-type]
    assert made.pop("M1") == WeightedMean("uniform") == fedlf(direction="mean").server
    assert made == {
        "M2": FedLF(layer="model"),
        "M3": FedLF(layer="fragments"),
        "M4": FedLF(fair="none"),
        "M5": FedLF(fair="fedmdfg"),
        "M6": FedLF(absent="none"),
        "M7": FedLF(absent="last"),
        "M8": FedLF(absent="all"),
    }
    assert fedlf().server == FedLF()


def test_full_gradients_are_one_step_over_all_data() -> None:
    client = fedlf("full").client
    assert client.schedule(Schedule(5, None, 10), 0, Stream(0)) == Schedule(5, 1, None)
    plain = simulation(fedlf("full"), train=Train(steps=1, batch=0, lr=0.1))
    other = simulation(fedlf("full"), train=Train(epochs=3, batch=2, lr=0.1))
    plain.step()
    other.step()
    assert torch.allclose(plain.server.w, other.server.w, rtol=1e-12, atol=0)  # only one of them is played back


def test_losses_are_asked_for_only_if_used() -> None:
    assert FedLF().needs == {"losses"} and FedLF(fair="none").needs == frozenset()
    with pytest.raises(EquipoiseError, match="losses"):
        run(replace(cohort(), losses=None))


@pytest.mark.parametrize(
    "options",
    [
        *[{name: "typo"} for name in ("grad", "direction", "layer", "fair", "absent", "ablation")],
        {"fragments": 0},
        {"theta": -0.1},
        {"theta": float("nan")},
        {"cap": -1},
    ],
)
def test_bad_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(EquipoiseError, match=f"fedlf: {next(iter(options))} is"):
        fedlf(**options)


def test_it_trains_with_absent_clients_and_one_that_sends_the_opposite() -> None:
    class Flip(Attack):
        def corrupt(self, seen: Forgery) -> Tensor:
            return -seen.own

    fed = federation((9, 12, 15, 9, 8, 10))
    sim = simulation(fedlf(), fed, participation=Participation(per_round=3), attack=Flip(clients=(1,)))
    before = sim.evaluate("train")["global"].loss.mean()
    for _ in range(12):
        assert not sim.step().skipped
    assert sim.evaluate("train")["global"].loss.mean() < before
