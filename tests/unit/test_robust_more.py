"""What the further robust rules and filters promise: odd rounds, claims of size, and a log that says what was done."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import registry
from equipoise.aggregators.bulyan import Bulyan
from equipoise.aggregators.centred_clipping import CentredClipping
from equipoise.aggregators.clip import Clip
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.geometric_median import GeometricMedian
from equipoise.aggregators.k_loss import KLoss
from equipoise.aggregators.k_norm import KNorm
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.multi_krum import MultiKrum
from equipoise.aggregators.norm_bounding import NormBounding
from equipoise.aggregators.sign_sgd import SignSGD
from equipoise.aggregators.trimmed_mean import TrimmedMean
from equipoise.attacks.sign_flip import SignFlip
from equipoise.core import Cohort, Outcome, ServerRule, WeightedMean, chain
from equipoise.engine.settings import Participation
from equipoise.errors import EquipoiseError
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedlf import fedlf
from equipoise.streams import Stream
from tests.small import cohort, federation, simulation

RULES = [TrimmedMean(), Bulyan(), GeometricMedian(), CentredClipping(), KLoss(), KLoss(keep="rest"), SignSGD()]
WEIGHTED = [TrimmedMean, CoordinateMedian, MultiKrum, GeometricMedian, CentredClipping, SignSGD]
named = {"ids": lambda part: type(part).__name__ if isinstance(part, ServerRule) else getattr(part, "__name__", "")}


def seen(updates: Tensor, **other: Any) -> Cohort:
    return replace(cohort(*updates.shape, dtype=updates.dtype), updates=updates, **other)


def apply(rule: ServerRule, updates: Tensor, **other: Any) -> Outcome:
    given = seen(updates, **other)
    return rule(given, rule.init(given.start))


# --------------------------------------------------------------------------------------------------- degenerate rounds


@pytest.mark.parametrize("rule", RULES, **named)
def test_nothing_sent_moves_nothing_and_equal_updates_are_followed(rule: ServerRule) -> None:
    zero = apply(rule, torch.zeros((9, 5)))
    assert torch.equal(zero.direction, torch.zeros(5))
    same = apply(rule, torch.full((9, 5), 3.0))
    size = {SignSGD: 1e-4}.get(type(rule), 3.0)
    assert same.direction.tolist() == pytest.approx([size] * 5)
    assert same.info["weights"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "rule",
    [TrimmedMean(0), GeometricMedian(), CentredClipping(100.0), KLoss(0), CoordinateMedian("size")],
    **named,
)
def test_a_cohort_of_one_is_its_update(rule: ServerRule) -> None:
    updates = cohort(1, 5).updates
    found = apply(rule, updates)
    assert found.direction.tolist() == pytest.approx(updates[0].tolist())
    assert found.info["weights"].tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("rule", RULES, **named)
def test_clients_without_a_sample_do_no_harm(rule: ServerRule) -> None:
    for way in ("uniform", "size", "capped"):
        given = replace(rule, weights=way) if hasattr(rule, "weights") else rule  # type: ignore[type-var]
        for sizes in (torch.zeros(9, dtype=torch.int64), torch.tensor([5, 0, 0, 0, 0, 0, 0, 0, 0])):
            found = apply(given, cohort(9).updates, sizes=sizes)
            assert bool(torch.isfinite(found.direction).all()) and bool(torch.isfinite(found.info["weights"]).all())


@pytest.mark.parametrize("rule", [TrimmedMean(2), Bulyan(2), GeometricMedian(), CentredClipping(), SignSGD()], **named)
@pytest.mark.parametrize(("size", "dtype"), [(1e30, torch.float32), (-1e38, torch.float32), (1e300, torch.float64)])
def test_two_huge_rows_of_eleven_neither_overflow_nor_decide(rule: ServerRule, size: float, dtype: torch.dtype) -> None:
    updates = cohort(11, 6, dtype=dtype).updates
    calm = apply(rule, updates).direction
    found = apply(rule, torch.cat([updates[:9], torch.full((2, 6), size, dtype=dtype)]))
    assert bool(torch.isfinite(found.direction).all()) and bool(torch.isfinite(found.info["weights"]).all())
    assert float((found.direction - calm).norm()) < 8.0
    assert float(found.info["weights"].min()) >= 0.0 and float(found.info["weights"].sum()) <= 1 + 1e-9


def test_the_geometric_median_leaves_out_what_cannot_be_measured_and_says_so() -> None:
    updates = cohort(9, 5).updates
    updates[4] = 1e300
    found = apply(GeometricMedian(), updates)
    assert found.info["left_out"] == 1 and found.info["weights"][4] == 0
    rest = apply(GeometricMedian(), torch.cat([updates[:4], updates[5:]]))
    assert found.direction.tolist() == pytest.approx(rest.direction.tolist(), abs=1e-4)
    nobody = apply(GeometricMedian(), 1e300 * cohort(4, 5).updates)
    assert torch.equal(nobody.direction, torch.zeros(5, dtype=torch.float64))
    assert "no step was taken" in nobody.info["warning"]


def test_the_geometric_median_stays_on_an_update_that_more_than_half_of_the_clients_send() -> None:
    updates = cohort(9, 5).updates
    updates[2:7] = updates[2]
    assert apply(GeometricMedian(), updates).direction.tolist() == pytest.approx(updates[2].tolist(), abs=1e-5)


def test_a_looser_tolerance_takes_fewer_steps() -> None:
    steps = [apply(GeometricMedian(tolerance=t), cohort(9).updates).info["iterations"] for t in (1e-1, 1e-4, 1e-8)]
    assert steps[0] < steps[1] < steps[2] <= 100


# -------------------------------------------------------------------------------------------------- claims of size


@pytest.mark.parametrize("make", WEIGHTED, **named)
def test_by_default_and_with_capped_weights_a_boast_earns_nothing_and_with_size_weights_it_does(make: Any) -> None:
    updates = cohort(9).updates
    updates[0] = 4.0
    honest = torch.tensor([4, 3, 4, 5, 6, 4, 4, 5, 4])
    boast = honest.clone()
    boast[0] = 10**9
    for way in ("uniform", "capped"):
        # The boaster is at the cap already.
        assert torch.equal(
            apply(make(weights=way), updates, sizes=honest).direction,
            apply(make(weights=way), updates, sizes=boast).direction,
        )
    if make is not MultiKrum:  # which drops the outlier, whatever it claims
        told = apply(make(weights="size"), updates, sizes=boast)
        assert float(told.info["weights"][0]) > 0.9 or make is CentredClipping
        assert not torch.equal(told.direction, apply(make(), updates, sizes=boast).direction)
    assert make() == make(weights="uniform")


@pytest.mark.parametrize("make", [*WEIGHTED, KLoss], **named)
def test_unknown_weights_are_refused(make: Any) -> None:
    with pytest.raises(EquipoiseError, match="weights is 'sizes'"):
        make(weights="sizes")


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), f=st.integers(1, 3), huge=st.sampled_from([1e30, -1e30]))
def test_with_capped_weights_twice_the_f_keeps_the_trimmed_mean_in_the_honest_range(
    seed: int, f: int, huge: float
) -> None:
    m = 4 * f + 1
    g = Stream(seed).torch()
    updates, sizes = torch.randn((m, 5), generator=g), torch.randint(1, 50, (m,), generator=g)
    bad = torch.randperm(m, generator=g)[:f]
    updates[bad], sizes[bad] = huge, 10**9
    honest = updates[~torch.isin(torch.arange(m), bad)]
    for rule in (TrimmedMean(2 * f, "capped"), CoordinateMedian("capped")):
        found = apply(rule, updates, sizes=sizes).direction
        assert bool((found >= honest.min(0).values - 1e-5).all() and (found <= honest.max(0).values + 1e-5).all())


# ------------------------------------------------------------------------------------------------ what cannot work


@pytest.mark.parametrize(
    ("rule", "n", "told"),
    [
        (TrimmedMean(3), 6, r"m = 6 .*f = 3 .*m - 2f = 0"),
        (Bulyan(2), 10, r"m = 10 .*f = 2.*4f \+ 3 = 11"),
        (Bulyan(0), 2, r"m = 2 .*f = 0"),
        (KLoss(4), 4, r"m = 4 .*f = 4 .*leave 0"),
        (chain(KNorm(5), WeightedMean()), 5, r"m = 5 .*f = 5 .*leave 0"),
        (chain(KNorm(2), Krum(3)), 7, r"m = 5 .*f = 3 .*m - f - 2 = 0"),
    ],
)
def test_a_cohort_that_is_too_small_is_refused_before_the_first_round_with_both_numbers(
    rule: ServerRule, n: int, told: str
) -> None:
    rule.check(n + 1)
    with pytest.raises(EquipoiseError, match=told) as caught:
        simulation(fedavg(server=rule), federation((9,) * n))
    assert caught.value.hint
    with pytest.raises(EquipoiseError, match=told):
        rule(cohort(n), rule.init(cohort(n).start))


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (TrimmedMean, [{"f": -1}, {"f": 1.5}]),
        (Bulyan, [{"f": -1}]),
        (GeometricMedian, [{"nu": 0.0}, {"nu": float("nan")}, {"iterations": 0}, {"tolerance": -1.0}]),
        (CentredClipping, [{"tau": 0.0}, {"tau": float("inf")}, {"iterations": 0}]),
        (KNorm, [{"f": -1}]),
        (KLoss, [{"f": "two"}, {"keep": "none"}]),
        (NormBounding, [{"bound": 0.0}, {"bound": float("inf")}, {"sigma": -0.1}]),
        (SignSGD, [{"server_lr": 0.0}, {"beta": 1.0}, {"beta": -0.1}, {"cap": 0}]),
    ],
)
def test_values_out_of_range_are_refused_by_name(make: Any, values: list[dict[str, Any]]) -> None:
    for value in values:
        ((name, found),) = value.items()
        with pytest.raises(EquipoiseError, match=f"{name} is '?{found}") as caught:
            make(**value)
        assert caught.value.hint


def test_k_loss_without_losses_is_refused_and_asks_for_them() -> None:
    assert KLoss().needs == {"losses"} and not KLoss().robust
    with pytest.raises(EquipoiseError, match="no losses"):
        KLoss()(replace(cohort(5), losses=None), {})


# ---------------------------------------------------------------------------------------------------------- filters


def test_k_norm_drops_a_client_with_everything_that_is_its_own() -> None:
    given = replace(cohort(4, 3), signals={"gap": torch.arange(4.0)}, ids=torch.tensor([3, 5, 7, 9]))
    given = given.with_updates(torch.tensor([[1.0, 0, 0], [9.0, 0, 0], [0, 2.0, 0], [0, 0, 1.0]], dtype=torch.float64))
    left, info = KNorm(1)(given)
    keep = torch.tensor([0, 2, 3])
    assert left.ids.tolist() == [3, 7, 9] and torch.equal(left.sizes, given.sizes[keep])
    assert left.losses is not None and given.losses is not None and torch.equal(left.losses, given.losses[keep])
    assert left.signals["gap"].tolist() == [0.0, 2.0, 3.0]
    assert left.probe is not None and given.probe is not None
    models = torch.randn((2, 3), dtype=torch.float64)
    assert torch.equal(left.probe(models), given.probe(models)[:, keep])
    assert info["row_of"].tolist() == [0, -1, 1, 2] and info["dropped"] == 1
    everyone, _ = KNorm(0)(given)
    assert torch.equal(everyone.updates, given.updates)


def test_behind_k_norm_the_weights_are_those_of_the_clients() -> None:
    given = cohort(6)
    given = given.with_updates(torch.where(torch.arange(6)[:, None] == 2, 100.0, given.updates))
    found = chain(KNorm(1), WeightedMean("uniform"))(given, {})
    others = torch.tensor([0, 1, 3, 4, 5])
    assert torch.allclose(found.direction, given.updates[others].mean(0))
    krum = chain(KNorm(1), Krum(1))(given, {})
    assert krum.info["weights"].shape == (6,) and krum.info["weights"][2] == 0 and krum.info["weights"].sum() == 1


def test_k_norm_is_refused_in_front_of_rules_that_answer_or_remember_each_client() -> None:
    for rule in (fedlf().server, SignSGD()):
        with pytest.raises(EquipoiseError, match="KNorm mixes clients"):
            chain(KNorm(), rule)
    chain(KNorm(), SignSGD(beta=0.0))


def test_norm_bounding_without_noise_is_clipping_and_its_noise_moves_the_mean_by_sigma() -> None:
    given = cohort(6, 4000)
    assert torch.equal(NormBounding(2.0)(given)[0].updates, Clip(2.0)(given)[0].updates)
    plain = WeightedMean()(Clip(2.0)(given)[0], {}).direction
    noisy = chain(NormBounding(2.0, 0.1), WeightedMean())(given, {}).direction
    assert float((noisy - plain).std()) == pytest.approx(0.1, rel=0.1)
    assert torch.equal(noisy, chain(NormBounding(2.0, 0.1), WeightedMean())(given, {}).direction)
    later = replace(given, rng=Stream(99))
    assert not torch.equal(noisy, chain(NormBounding(2.0, 0.1), WeightedMean())(later, {}).direction)


# -------------------------------------------------------------------------------------------- rules with a memory


def test_centred_clipping_starts_from_where_it_was() -> None:
    rule, updates = CentredClipping(tau=0.5, iterations=1), torch.full((5, 4), 10.0)
    given = seen(updates)
    state, lengths = rule.init(given.start), []
    for _ in range(60):
        found = rule(given, state)
        state = found.state
        lengths.append(float(found.direction.norm()))
    assert lengths[0] == pytest.approx(0.5) and lengths[1] == pytest.approx(1.0)
    assert found.direction.tolist() == pytest.approx([10.0] * 4)
    assert found.info["clipped"] == 0


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), bad=st.integers(1, 4), huge=st.sampled_from([1e3, 1e30, -1e30]))
def test_bad_of_m_clients_move_centred_clipping_by_at_most_iterations_tau_bad_over_m(
    seed: int, bad: int, huge: float
) -> None:
    tau, iterations, m = 0.7, 3, 9
    g = Stream(seed).torch()
    updates = torch.zeros((m, 5))
    updates[:bad] = huge * torch.randn((bad, 5), generator=g)
    found = apply(CentredClipping(tau, iterations), updates).direction
    assert float(found.norm()) <= iterations * tau * bad / m * (1 + 1e-5)


def test_a_tie_is_no_step_and_the_majority_wins_whatever_the_sizes_of_updates() -> None:
    updates = torch.tensor([[1.0, 1e-9, 1e30], [-5.0, 1e-9, -1.0], [0.0, -1e30, -1.0]])
    found = apply(SignSGD(0.1), updates)
    assert found.direction.tolist() == pytest.approx([0.0, 0.1, -0.1])
    assert found.info["weights"].tolist() == pytest.approx([1 / 6, 2 / 6, 1 / 6])
    assert found.info["decided"] == pytest.approx(2 / 3)


def test_votes_remember_what_a_client_sent_before_and_only_so_many_clients() -> None:
    rule = SignSGD(0.1, beta=0.9, cap=2)
    state = rule.init(torch.zeros(1))
    one = Cohort(torch.tensor([4]), torch.zeros(1), torch.tensor([[10.0]]), torch.tensor([1]))
    state = rule(one, state).state
    turned = rule(replace(one, updates=torch.tensor([[-10.0]]), round=1), state)
    assert float(turned.direction) == pytest.approx(-0.1)  # 0.9 x 1 - 0.1 x 10 < 0
    kept = rule(replace(one, updates=torch.tensor([[-1.0]]), round=1), state)
    assert float(kept.direction) == pytest.approx(0.1)
    others = Cohort(torch.tensor([1, 2]), torch.zeros(1), torch.ones((2, 1)), torch.ones(2), round=2)
    assert rule(others, turned.state).state["ids"].tolist() == [1, 2]


# ------------------------------------------------------------------------------------------------------------ in runs


@pytest.mark.parametrize(
    "server",
    [
        TrimmedMean(2),
        Bulyan(1),
        GeometricMedian(),
        CentredClipping(0.3),
        SignSGD(0.05),
        chain(KNorm(2), WeightedMean()),
    ],
    **named,
)
def test_a_run_under_attack_learns_and_says_whom_the_rule_followed(server: ServerRule) -> None:
    attack = SignFlip(clients=(1,) if isinstance(server, Bulyan) else (1, 4), scale=1e6)
    sim = simulation(fedavg(server=server), federation((9,) * 9), attack=attack)
    start = sim.evaluate("train")["global"].loss.mean()
    for _ in range(8):
        record = sim.step()
        assert record.skipped == ""
    assert sim.evaluate("train")["global"].loss.mean() < start
    if "weights" in record.info:
        assert record.info["weights"].shape == (9,)


def test_rounds_that_lost_too_many_clients_are_skipped_with_the_reason() -> None:
    sim = simulation(fedavg(server=TrimmedMean(2)), federation((9,) * 6), participation=Participation(dropout=0.5))
    records = [sim.step() for _ in range(12)]
    for record in records:
        assert (1 <= len(record.admitted) < 5) == ("m = " in record.skipped and "f = 2" in record.skipped)
    assert any(r.skipped for r in records) and not all(r.skipped for r in records)


def test_the_parts_are_known_by_their_names() -> None:
    rules = {"trimmed-mean", "bulyan", "geometric-median", "centred-clipping", "k-loss", "sign-sgd"}
    assert rules <= set(registry.rules())
    assert {"k-norm", "norm-bounding"} <= set(registry.filters())
