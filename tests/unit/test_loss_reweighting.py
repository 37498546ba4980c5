"""Special cases, limits and hostile inputs of the methods that weigh clients by their losses, and of FedSGD."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.aggregators.krum import Krum
from equipoise.core import Cohort, EquipoiseError, Method, Outcome, ServerRule, State, WeightedMean
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.settings import Participation, Run, Train
from equipoise.losses import correct
from equipoise.methods import ditto
from equipoise.methods.afl import AFL, afl
from equipoise.methods.drfl import DRFL, drfl
from equipoise.methods.fedfa import FedFa, fedfa
from equipoise.methods.fedgini import FedGini, fedgini
from equipoise.methods.fedsgd import FedSGD, fedsgd
from equipoise.methods.qffl import QFFL, qffl
from equipoise.methods.term import TERM, term
from tests import small

RULES: list[ServerRule] = [
    *(QFFL(0.5), QFFL(5.0, "size"), TERM(2.0), TERM(-2.0, "capped"), DRFL(), DRFL("size")),
    *(FedGini(), FedGini(0.0, "mixed"), AFL(), AFL(10.0), FedFa(), FedFa(1.0, 0.0)),
]


def with_losses(losses: list[float], dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Cohort:
    cohort = small.cohort(len(losses), dtype=dtype)
    return replace(cohort, losses=torch.tensor(losses, dtype=dtype), updates=scale * cohort.updates)


def apply(rule: ServerRule, cohort: Cohort, state: State | None = None) -> Outcome:
    return rule(cohort, rule.init(cohort.start) if state is None else state)


def weights(rule: ServerRule, cohort: Cohort) -> list[float]:
    found: Tensor = apply(rule, cohort).info["weights"]
    assert found.dtype == torch.float64
    return found.tolist()


def mean(cohort: Cohort) -> Tensor:
    return WeightedMean("uniform").combine(cohort)


# ------------------------------------------------------------------------------------------------------- limit cases


@given(st.lists(st.floats(0, 50), min_size=1, max_size=9))
@pytest.mark.parametrize(
    "rule", [QFFL(0.0), TERM(0.0), AFL(0.0), FedGini(1.0), FedGini(1.0, "mixed")], ids=lambda r: type(r).__name__
)
def test_the_parameter_that_switches_reweighting_off_gives_the_plain_mean(
    rule: ServerRule, losses: list[float]
) -> None:
    cohort = with_losses(losses)
    assert torch.allclose(apply(rule, cohort).direction, mean(cohort), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("off", "way"), [(QFFL(0.0, "size"), "size"), (TERM(0.0, "capped"), "capped")])
def test_switched_off_with_weights_it_is_the_weighted_mean(off: ServerRule, way: str) -> None:
    cohort = small.cohort(7)
    assert torch.allclose(apply(off, cohort).direction, WeightedMean(way).combine(cohort), rtol=1e-12)


@pytest.mark.parametrize("rule", [TERM(3.0), DRFL(), FedGini(), AFL(), FedGini(0.0, "mixed")])
@pytest.mark.parametrize("loss", [0.0, 0.7, 1e30])
def test_equal_losses_give_the_plain_mean(rule: ServerRule, loss: float) -> None:
    assert weights(rule, with_losses([loss] * 5)) == pytest.approx([0.2] * 5)


def test_the_mean_is_the_limit_of_a_small_tilt_and_the_worst_client_that_of_a_large_one() -> None:
    cohort = with_losses([0.5, 2.0, 1.0])
    assert weights(TERM(1e-6), cohort) == pytest.approx([1 / 3] * 3, rel=1e-5)
    assert weights(TERM(1e9), cohort) == [0.0, 1.0, 0.0]
    assert weights(TERM(-1e9), cohort) == [1.0, 0.0, 0.0]
    huge = with_losses([0.0, 1e30, 1.0])
    assert (weights(TERM(1e308), huge), weights(TERM(-1e308), huge)) == ([0.0, 1.0, 0.0], [1.0, 0.0, 0.0])


def test_the_smallest_loss_that_there_is_still_counts() -> None:
    assert weights(DRFL(), with_losses([5e-324, 0.0, 5e-324])) == [0.5, 0.0, 0.5]


def test_a_large_q_listens_to_the_largest_loss_alone() -> None:
    found = weights(QFFL(1e4), with_losses([0.5, 2.0, 1.0]))
    assert found[1] > 0 and found[0] == found[2] == 0.0


def test_drfl_points_where_qffl_with_q_1_points_and_goes_further() -> None:
    cohort = with_losses([0.5, 2.0, 1.0, 0.1])
    short, long = apply(QFFL(1.0), cohort).direction, apply(DRFL(), cohort).direction
    assert float(torch.cosine_similarity(short, long, dim=0)) == pytest.approx(1.0, abs=1e-9)
    assert float(long.norm()) > float(short.norm())


@pytest.mark.parametrize("rule", [QFFL(2.0), TERM(2.0), DRFL(), FedGini(), FedFa(0.0)], ids=lambda r: type(r).__name__)
def test_a_larger_loss_never_has_the_smaller_weight(rule: ServerRule) -> None:
    losses = [0.3, 4.0, 0.9, 2.0, 0.9]
    found = weights(rule, with_losses(losses))
    by_loss = [found[k] for k in np.argsort(losses, kind="stable")]
    assert by_loss == sorted(by_loss) and by_loss[0] < by_loss[-1]


def test_afl_moves_weight_to_the_client_with_the_largest_loss_until_it_has_all() -> None:
    rule, cohort = AFL(0.1), with_losses([0.5, 2.0, 1.0])
    cohort = replace(cohort, n_clients=3)
    state, seen = rule.init(cohort.start), []
    for r in range(20):
        outcome = rule(replace(cohort, round=r), state)
        state = outcome.state
        seen.append(float(outcome.info["weights"][1]))
    assert seen[0] == pytest.approx(1 / 3) and seen == sorted(seen) and seen[-1] == 1.0


# ------------------------------------------------------------------------------------------------ partial participation


def test_afl_leaves_the_weights_of_absent_clients_alone() -> None:
    rule = AFL(0.5)
    first = replace(small.cohort(3, ids=[1, 4, 7]), n_clients=10)
    after = rule(first, rule.init(first.start)).state
    second = replace(small.cohort(2, ids=[4, 9], seed=1), n_clients=10, round=1)
    later = rule(second, after).state
    assert later["ids"].tolist() == [1, 4, 7, 9]
    assert later["lam"][[0, 2]].tolist() == after["lam"][[0, 2]].tolist()
    assert float(later["lam"].sum()) == pytest.approx(0.4)  # the six others still have a tenth each


def test_a_cohort_whose_weights_are_all_gone_takes_the_plain_mean_and_says_so() -> None:
    rule, cohort = AFL(100.0), replace(with_losses([1.0, 5.0, 2.0]), n_clients=3)
    after = rule(cohort, rule.init(cohort.start)).state
    assert after["lam"].tolist() == [0.0, 1.0, 0.0]
    lost = replace(small.cohort(2, ids=[0, 2]), n_clients=3)
    outcome = rule(lost, after)
    assert torch.allclose(outcome.direction, mean(lost)) and "any weight" in outcome.info["reason"]
    assert outcome.state["lam"].tolist() == [0.0, 1.0, 0.0]


def test_fedfa_counts_rounds_and_listens_more_to_those_who_were_there_more_often() -> None:
    rule, start = FedFa(1.0, 0.0), torch.zeros(12, dtype=torch.float64)
    state = rule.init(start)
    for ids in ([3, 5], [3, 8], [3, 5]):
        outcome = rule(small.cohort(2, ids=ids), state)
        state = outcome.state
    assert state["ids"].tolist() == [3, 5, 8] and state["count"].tolist() == [3.0, 2.0, 1.0]
    assert outcome.info["rounds"].tolist() == [3.0, 2.0] and outcome.info["weights"][0] > outcome.info["weights"][1]


def test_fedfa_without_momentum_forgets_the_last_step_and_with_it_does_not() -> None:
    still = replace(small.cohort(4), updates=torch.zeros(4, 12, dtype=torch.float64))
    for gamma in (0.0, 0.9):
        rule = FedFa(gamma=gamma)
        first = rule(small.cohort(4), rule.init(still.start))
        assert torch.allclose(rule(still, first.state).direction, gamma * first.direction)


def test_fedfa_prefers_reported_accuracies_to_losses_and_believes_no_impossible_one() -> None:
    cohort = small.cohort(3)
    told = replace(cohort, signals={"accuracy": torch.tensor([0.9, 0.1, 0.5])})
    wild = replace(cohort, signals={"accuracy": torch.tensor([1e30, -5.0, 0.5])})
    tame = replace(cohort, signals={"accuracy": torch.tensor([1.0, 0.0, 0.5])})
    found = weights(FedFa(0.0), told)
    assert found[1] > found[2] > found[0]
    assert weights(FedFa(0.0), wild) == weights(FedFa(0.0), tame)


def test_fedfa_with_nobody_right_listens_to_all_the_same() -> None:
    cohort = replace(small.cohort(4), signals={"accuracy": torch.zeros(4)})
    assert weights(FedFa(0.5), cohort) == pytest.approx([0.25] * 4)


# ------------------------------------------------------------------------------------------------------ hostile inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_huge_zero_and_negative_claims_and_updates_never_give_anything_that_is_not_finite(
    rule: ServerRule, dtype: torch.dtype
) -> None:
    lists = [[1e30] * 4, [1e30, 0.0, 1.0, 1e-30], [0.0] * 4, [-1e30, 2.0, 1.0, 0.5], [1e30], [3.4e38, 0.0], [1e-38, 0]]
    for losses in lists:
        for scale in (1.0, 0.0, 1e30):
            cohort = with_losses(losses, dtype, scale)
            state = rule.init(cohort.start)
            for r in range(3):
                outcome = rule(replace(cohort, round=r), state)
                state, found = outcome.state, outcome.info["weights"]
                assert outcome.direction.dtype == dtype and bool(torch.isfinite(outcome.direction).all())
                assert bool((found >= 0).all()) and float(found.sum()) <= 1 + 1e-9
                assert all(bool(torch.isfinite(t).all()) for t in state.values())


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_an_empty_cohort_makes_no_step(rule: ServerRule) -> None:
    empty = small.cohort(4)
    assert empty.losses is not None
    cut = {"ids": empty.ids[:0], "updates": empty.updates[:0], "sizes": empty.sizes[:0], "losses": empty.losses[:0]}
    empty = replace(empty, **cut)  # type: ignore[arg-type]
    assert not bool(apply(rule, empty).direction.any()) and len(apply(rule, empty).info["weights"]) == 0


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_one_client_alone_is_followed_no_further_than_it_went(rule: ServerRule) -> None:
    cohort = small.cohort(1)
    share = weights(rule, cohort)[0]
    assert share == pytest.approx(1.0) if not isinstance(rule, QFFL) else 0 < share <= 1


@pytest.mark.parametrize("rule", [TERM(3.0, "size"), QFFL(5.0, "size"), DRFL("size")], ids=repr)
def test_a_client_without_samples_counts_nothing_whatever_loss_it_claims(rule: ServerRule) -> None:
    cohort = with_losses([1.0, 1e30, 2.0])
    cohort = replace(cohort, sizes=torch.tensor([10, 0, 10]))
    found = weights(rule, cohort)
    assert found[1] == 0.0 and found[2] > found[0] > 0


def test_with_every_loss_0_qffl_all_but_stops_and_drfl_takes_the_mean_and_both_say_so() -> None:
    cohort = with_losses([0.0] * 4)
    outcome = apply(QFFL(1.0), cohort)
    assert float(outcome.direction.norm()) < 1e-9 and "all losses are 0" in outcome.info["reason"]
    outcome = apply(DRFL(), cohort)
    assert torch.allclose(outcome.direction, mean(cohort)) and "all losses are 0" in outcome.info["reason"]


def test_losses_of_1e30_in_float32_weigh_as_their_ratios_do() -> None:
    low, high = (with_losses([1.0, 2.0, 4.0], torch.float32), with_losses([1e30, 2e30, 4e30], torch.float32))
    assert weights(DRFL(), high) == pytest.approx(weights(DRFL(), low), rel=1e-6)
    a, b = (torch.tensor(weights(QFFL(3.0), c)) for c in (low, high))
    assert (b / b.sum()).tolist() == pytest.approx((a / a.sum()).tolist(), rel=1e-6)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_without_losses_it_refuses_and_says_why(rule: ServerRule) -> None:
    cohort = replace(small.cohort(3), losses=None)
    assert rule.needs == {"losses"}
    with pytest.raises(EquipoiseError, match="the cohort has no losses"):
        apply(rule, cohort)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: qffl(-1.0), "qffl: q is -1.0"),
        (lambda: qffl(float("nan")), "qffl: q is nan"),
        (lambda: qffl(variant="sgd"), "qffl: variant is 'sgd'"),  # type: ignore[arg-type]
        (lambda: qffl(weights="n"), "qffl: weights is 'n'"),
        (lambda: afl(-0.1), "afl: eta_lam is -0.1"),
        (lambda: afl(variant=""), "afl: variant is ''"),  # type: ignore[arg-type]
        (lambda: term(float("inf")), "term: t is inf"),
        (lambda: term(weights="n"), "term: weights is 'n'"),
        (lambda: drfl(weights="n"), "drfl: weights is 'n'"),
        (lambda: fedgini(1.5), "fedgini: eps is 1.5"),
        (lambda: fedgini(form="x"), "fedgini: form is 'x'"),  # type: ignore[arg-type]
        (lambda: fedfa(-0.1), "fedfa: beta is -0.1"),
        (lambda: fedfa(gamma=1.0), "fedfa: gamma is 1.0"),
        (lambda: fedfa(local_gamma=float("nan")), "fedfa: local_gamma is nan"),
        (lambda: fedsgd(0), "fedsgd: batch is 0"),
        (lambda: fedsgd(momentum=1.0), "fedsgd: momentum is 1.0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_name_and_value(make: Callable[[], Method], told: str) -> None:
    with pytest.raises(EquipoiseError) as caught:
        make()
    assert caught.value.message == told and caught.value.hint


# ------------------------------------------------------------------------------------------------------- whole methods


def final(method: Method, rounds: int = 3, sizes: tuple[int, ...] = (7, 25, 1, 12), executor: str = "vmap") -> Tensor:
    run = Run(dtype="float64", executor=executor)  # type: ignore[arg-type]
    sim = small.simulation(method, small.federation(sizes), run=run)
    for _ in range(rounds):
        sim.step()
    return sim.server.w


def test_fedsgd_takes_one_full_batch_step_whatever_the_schedule() -> None:
    every = Train(batch=0, lr=0.1, steps=1)
    sim = small.simulation(train=every)
    for _ in range(3):
        sim.step()
    assert torch.allclose(final(fedsgd()), sim.server.w, rtol=1e-12)


def test_fedsgd_keeps_nothing_without_momentum() -> None:
    assert FedSGD().init(torch.zeros(3, 4)) == {}


@pytest.mark.parametrize("method", [fedsgd(momentum=0.9), fedsgd(5, 0.9, damped=False), fedfa(local_gamma=0.5)])
def test_momentum_on_clients_is_the_same_in_rows_and_one_by_one_also_for_those_without_data(method: Method) -> None:
    rows, loop = (final(method, sizes=(7, 0, 1, 12), executor=e) for e in ("vmap", "loop"))
    assert torch.allclose(rows, loop, rtol=1e-9) and bool(torch.isfinite(rows).all())


def test_the_first_momentum_is_the_gradient_in_whatever_round_it_comes() -> None:
    plain = final(fedsgd(), rounds=1)
    assert torch.equal(final(fedsgd(momentum=0.9), rounds=1), plain)
    some = Participation(per_round=1)
    sim = small.simulation(fedsgd(momentum=0.9), participation=some)
    before = sim.server.w.clone()
    for _ in range(8):
        record = sim.step()
        one = record.drawn[0]
        state = sim.simulator.store.get(torch.tensor([one]))
        assert bool(state["moving"].all())
        step = (before - sim.server.w) / record.lr
        assert torch.allclose(step, state["m"][0], rtol=1e-9)
        before = sim.server.w.clone()


def test_momentum_that_is_not_damped_makes_longer_steps() -> None:
    start = small.simulation().server.w
    damped, free = (final(fedsgd(momentum=0.9, damped=d), rounds=5) for d in (True, False))
    assert float((free - start).norm()) > 1.5 * float((damped - start).norm())


def test_any_rule_can_stand_behind_fedsgd() -> None:
    assert fedsgd(32, 0.9, server=Krum(f=1)).server == Krum(f=1)
    assert bool(torch.isfinite(final(fedsgd(4, 0.9, server=Krum(f=1)))).all())


def test_fedfa_reports_the_accuracy_of_the_received_model_on_the_first_batch() -> None:
    fed = small.federation((7, 25, 1, 12))
    sim = small.simulation(fedfa(), fed, train=Train(batch=0, lr=0.1))  # the first batch is everything
    net, key = sim.simulator.net, torch.zeros(1, dtype=torch.int64)
    for _ in range(6):
        w, told = sim.server.w, sim.simulator(sim.server.plan()).signals["accuracy"]
        params = {n: t[None] for n, t in net.layout.tensors(w).items()}
        for k in range(4):
            own = fed.splits["train"].of_client(k)
            x = fed.data.inputs(own, torch.float64)[None]
            out = net.call(params, x, key, vectorised=True, train=False, features=0)[0]
            assert float(told[k]) == pytest.approx(float(correct(out[0], fed.data.y[own]).double().mean()))
        sim.step()


def test_fedfa_runs_where_there_are_no_classes() -> None:
    x, y = torch.randn(20, 3), torch.randn(20, 1)
    parts = list(torch.split(torch.arange(20), [5] * 4))
    fed = Federation(Dataset("r", x, y, 0), dict.fromkeys(("train", "validation", "test"), Split.of(parts)))
    sim = small.simulation(fedfa(), fed, model=torch.nn.Linear(3, 1))
    record = sim.step()
    assert record.skipped == "" and record.info["weights"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("base", [fedsgd(momentum=0.9), qffl(), afl(), term(tau=0.5), drfl(), fedgini(), fedfa()])
def test_each_can_be_the_base_of_ditto(base: Method) -> None:
    sim = small.simulation(ditto(base=base))
    for _ in range(2):
        assert sim.step().skipped == ""


@pytest.mark.parametrize("method", [qffl(1.0), afl(), term(1.0), drfl(), fedgini(), fedfa()], ids=lambda m: m.name)
def test_the_log_has_everyones_weight_and_the_model_learns(method: Method) -> None:
    sim = small.simulation(method, participation=Participation(per_round=3))
    first = sim.evaluate("train")["global"].loss
    for _ in range(15):
        record = sim.step()
        assert len(record.info["weights"]) == len(record.admitted) == 3
    assert float(np.mean(sim.evaluate("train")["global"].loss)) < float(np.mean(first))
