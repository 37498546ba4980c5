"""What bucketing, NNM, ARC, FoolsGold, DnC, FLTrust, FLAME and SignGuard promise: limits, odd cohorts, attackers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import registry
from equipoise.aggregators import _distances
from equipoise.aggregators.arc import ARC
from equipoise.aggregators.bucketing import Bucketing
from equipoise.aggregators.clip import Clip
from equipoise.aggregators.dnc import DnC
from equipoise.aggregators.flame import FLAME
from equipoise.aggregators.fltrust import FLTrust
from equipoise.aggregators.fools_gold import FoolsGold
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.nnm import NNM
from equipoise.aggregators.sign_guard import SignGuard
from equipoise.attacks.sign_flip import SignFlip
from equipoise.core import Cohort, Filter, Outcome, ServerRule, WeightedMean, chain
from equipoise.data.federation import Federation
from equipoise.errors import EquipoiseError
from equipoise.methods.fedavg import fedavg
from equipoise.streams import Stream
from tests.small import cohort, federation, simulation

FILTERS: list[Filter] = [Bucketing(), Bucketing(3), NNM(2), ARC(2)]
RULES: list[ServerRule] = [FoolsGold(), DnC(2), DnC(2, b=5, iterations=3), FLTrust(), FLAME(), FLAME(0.0, "update")]
RULES += [SignGuard(), SignGuard(share=1.0)]


def called(part: object) -> str:
    return type(part).__name__


each_filter = pytest.mark.parametrize("part", FILTERS, ids=called)
each_rule = pytest.mark.parametrize("rule", RULES, ids=called)


def of(updates: Tensor, seed: int = 0) -> Cohort:
    return replace(cohort(*updates.shape, seed=seed, dtype=updates.dtype), updates=updates)


def apply(rule: ServerRule, seen: Cohort) -> Outcome:
    return rule(seen, rule.init(seen.start))


# ------------------------------------------------------------------------------------------------- what all promise


@each_filter
@each_rule
def test_filters_and_rules_compose_or_say_why_not(part: Filter, rule: ServerRule) -> None:
    if rule.per_client and not part.keeps_rows:
        with pytest.raises(EquipoiseError, match="mixes clients"):
            chain(part, rule)
        return
    both = chain(part, rule)
    both.check(9)
    found = apply(both, cohort(9))
    assert found.direction.shape == (12,) and bool(torch.isfinite(found.direction).all())
    assert found.info["weights"].shape == found.info[f"{called(part)}.scale"].shape == (9,)
    assert 0.0 <= float(found.info["weights"].sum()) <= 1.0 + 1e-9


@each_rule
@pytest.mark.parametrize("value", [0.0, 3.0, -1e30])
@pytest.mark.parametrize("m", [3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_and_zero_updates_give_a_finite_step_and_true_weights(
    rule: ServerRule, value: float, m: int, dtype: torch.dtype
) -> None:
    found = apply(rule, of(torch.full((m, 8), value, dtype=dtype)))
    assert bool(torch.isfinite(found.direction).all()) and found.direction.dtype == dtype
    total = float(found.info["weights"].sum())
    assert 0.0 <= total <= 1.0 + 1e-9
    assert total > 0 or (not found.direction.any() and "the model stays" in found.info["reason"])


@each_rule
def test_one_client_alone_is_no_error_where_nobody_has_to_be_left_out(rule: ServerRule) -> None:
    if isinstance(rule, DnC):
        with pytest.raises(EquipoiseError, match=r"m = 1 .*f = 2"):
            rule.check(1)
        rule = replace(rule, f=0)
    found = apply(rule, cohort(1, seed=2))
    assert bool(torch.isfinite(found.direction).all())


@each_rule
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_the_order_in_which_clients_arrive_changes_no_bit(rule: ServerRule, seed: int) -> None:
    seen = cohort(8, seed=seed)
    seen = seen.with_updates(seen.updates.round())  # ties
    order = torch.randperm(8, generator=Stream(seed).torch())
    other = replace(seen, ids=seen.ids[order], updates=seen.updates[order], sizes=seen.sizes[order], losses=None)
    a, b = apply(rule, seen), apply(rule, other)
    assert torch.equal(a.direction, b.direction) and torch.equal(a.info["weights"], b.info["weights"])


@each_filter
def test_filters_are_blind_to_the_order_too_and_change_no_input(part: Filter) -> None:
    seen = cohort(8)
    before = seen.updates.clone()
    order = torch.randperm(8, generator=Stream(1).torch())
    other = replace(seen, ids=seen.ids[order], updates=seen.updates[order], sizes=seen.sizes[order], losses=None)
    assert torch.equal(part(seen)[0].updates, part(other)[0].updates)
    assert torch.equal(seen.updates, before)


@pytest.mark.parametrize("part", [*FILTERS, *RULES], ids=called)
def test_a_few_columns_at_a_time_give_the_same(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def result() -> Tensor:
        found: Tensor = part(cohort(9))[0].updates if isinstance(part, Filter) else apply(part, cohort(9)).direction
        return found

    whole = result()
    monkeypatch.setattr(_distances, "_NUMBERS", 20)
    assert torch.allclose(result(), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", [DnC(2), FLAME(0.0, "update"), SignGuard(share=1.0)], ids=called)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_two_rows_at_1e30_against_the_rest_get_no_weight(rule: ServerRule, dtype: torch.dtype, seed: int) -> None:
    g = Stream(seed).torch()
    updates = 1.0 + 0.1 * torch.randn((8, 40), generator=g, dtype=dtype)
    updates[[1, 6]] = -1e30
    found = apply(rule, of(updates))
    assert found.info["weights"][[1, 6]].tolist() == [0.0, 0.0]
    assert bool((found.direction > 0.5).all()) and bool((found.direction < 1.5).all())


@pytest.mark.parametrize("rule", [DnC, FLAME, SignGuard])
def test_sizes_count_among_those_kept_if_asked_for(rule: Any) -> None:
    seen = replace(cohort(9), sizes=torch.tensor([1, 1, 1, 1, 1, 1, 1, 1, 1000]))
    uniform, capped, size = (apply(rule(weights=way), seen).info["weights"] for way in ("uniform", "capped", "size"))
    assert torch.allclose(uniform, capped)
    assert torch.equal(uniform > 0, size > 0)
    with pytest.raises(EquipoiseError, match="weights is 'none'"):
        rule(weights="none")


def test_the_parts_are_known_by_their_names() -> None:
    assert {"fools-gold", "dnc", "fltrust", "flame", "sign-guard"} <= set(registry.rules())
    assert {"bucketing", "nnm", "arc"} <= set(registry.filters())


@pytest.mark.parametrize(
    ("part", "settings", "told"),
    [
        (FoolsGold, {"kappa": 0.0}, "fools-gold: kappa is 0"),
        (Bucketing, {"s": 0}, "bucketing: s is 0"),
        (Bucketing, {"s": 1.5}, "bucketing: s is 1.5"),
        (NNM, {"f": -1}, "nnm: f is -1"),
        (ARC, {"f": 0.5}, "arc: f is 0.5"),
        (DnC, {"f": -1}, "dnc: f is -1"),
        (DnC, {"c": 0.0}, "dnc: c is 0"),
        (DnC, {"b": 0}, "dnc: b is 0"),
        (DnC, {"iterations": 0}, "dnc: iterations is 0"),
        (FLAME, {"lam": -1.0}, "flame: lam is -1"),
        (FLAME, {"of": "both"}, "flame: of is 'both'"),
        (SignGuard, {"low": 1.5}, "sign-guard: low is 1.5"),
        (SignGuard, {"high": 0.5}, "sign-guard: high is 0.5"),
        (SignGuard, {"share": 0.0}, "sign-guard: share is 0"),
        (SignGuard, {"share": float("nan")}, "sign-guard: share is nan"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(part: Any, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(EquipoiseError, match=told) as caught:
        part(**settings)
    assert caught.value.hint


# -------------------------------------------------------------------------------------------------------- bucketing


@settings(max_examples=25)
@given(m=st.integers(1, 12), seed=st.integers(0, 10**6), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_buckets_of_one_change_nothing_to_the_bit(m: int, seed: int, dtype: torch.dtype) -> None:
    seen = cohort(m, seed=seed, dtype=dtype)
    found, info = Bucketing(1)(seen)
    assert torch.equal(found.updates, seen.updates) and torch.equal(found.ids, seen.ids)
    assert torch.equal(found.sizes, seen.sizes) and found.sizes.dtype == seen.sizes.dtype
    assert seen.losses is not None and found.losses is not None and torch.equal(found.losses, seen.losses)
    assert info["row_of"].tolist() == list(range(m))


def test_one_bucket_is_the_mean_and_buckets_keep_it() -> None:
    seen = cohort(6)
    assert torch.allclose(Bucketing(9)(seen)[0].updates, seen.updates.mean(0, keepdim=True))
    assert torch.allclose(Bucketing(2)(seen)[0].updates.mean(0), seen.updates.mean(0))


def test_buckets_are_drawn_anew_from_the_rounds_stream() -> None:
    seen = cohort(8)
    drawn = {tuple(Bucketing()(replace(seen, rng=Stream(r)))[1]["row_of"].tolist()) for r in range(20)}
    assert len(drawn) > 10
    assert Bucketing()(seen)[1]["row_of"].tolist() == Bucketing()(seen)[1]["row_of"].tolist()


def test_a_bucket_of_signals_and_probes_is_their_mean() -> None:
    seen = replace(cohort(6), signals={"gap": torch.arange(6.0)})
    found, info = Bucketing(2)(seen)
    assert found.probe is not None and seen.probe is not None
    models = seen.updates[:2]
    for row in range(3):
        members = info["row_of"] == row
        assert float(found.signals["gap"][row]) == pytest.approx(float(torch.arange(6.0)[members].mean()))
        assert torch.allclose(found.probe(models)[:, row], seen.probe(models)[:, members].mean(1))


def test_the_log_hands_a_buckets_weight_to_its_clients() -> None:
    seen = cohort(8)
    found = apply(chain(Bucketing(2), Krum(1)), seen)
    assert sorted(found.info["weights"].tolist()) == [0.0] * 6 + [0.5] * 2
    assert torch.allclose(found.info["weights"] @ seen.updates, found.direction)
    plain = apply(chain(Bucketing(2), WeightedMean("size")), seen).direction
    sizes = seen.sizes.double() / seen.sizes.sum()
    assert not torch.allclose(plain, sizes @ seen.updates)  # a bucket is a plain mean, whatever sizes say


def test_the_rule_behind_buckets_is_asked_about_their_number() -> None:
    chain(Bucketing(2), Krum(1)).check(8)
    with pytest.raises(EquipoiseError, match="m = 3 "):
        chain(Bucketing(2), Krum(1)).check(6)
    for parts in ((Bucketing(2), Krum(1)), (Bucketing(2), NNM(2), Krum(1))):
        with pytest.raises(EquipoiseError, match=r"3 rows of 6 clients") as refused:
            chain(*parts).check(6)
        assert refused.value.hint
    with pytest.raises(EquipoiseError) as plain:
        chain(Clip(), Krum(1)).check(3)
    assert "rows" not in plain.value.message


# ------------------------------------------------------------------------------------------------------ NNM and ARC


@pytest.mark.parametrize("part", [NNM, ARC])
def test_f_must_be_a_minority_before_the_first_round_and_in_every_other(part: Any) -> None:
    assert part(2).check(5) == 5
    with pytest.raises(EquipoiseError, match="f = 2 malicious of m = 4 clients") as caught:
        part(2).check(4)
    assert "5 clients" in caught.value.hint
    with pytest.raises(EquipoiseError, match="m = 4 clients"):
        part(2)(cohort(4))


def test_nnm_with_f_0_gives_everyone_the_mean_and_arc_with_f_0_changes_nothing() -> None:
    seen = cohort(5)
    assert torch.allclose(NNM(0)(seen)[0].updates, seen.updates.mean(0).expand(5, -1))
    same, info = ARC(0)(seen)
    assert same is seen and info["clipped"] == 0


def test_nnm_keeps_f_far_rows_out_of_every_honest_mixture() -> None:
    updates = torch.randn((9, 5), generator=Stream(0).torch())
    updates[[2, 5]] = torch.tensor([[1e30], [-1e30]])
    mixed, info = NNM(2)(of(updates))
    honest = [k for k in range(9) if k not in (2, 5)]
    assert torch.allclose(mixed.updates[honest], updates[honest].mean(0).expand(7, -1), atol=1e-6)
    assert info["scale"].tolist() == pytest.approx([1.0, 1.0, 1 / 7, 1.0, 1.0, 1 / 7, 1.0, 1.0, 1.0])


def test_nnm_keeps_whose_row_is_whose() -> None:
    seen = cohort(7)
    mixed, _ = NNM(1)(seen)
    assert NNM.keeps_rows and mixed.ids is seen.ids and mixed.sizes is seen.sizes
    assert "weights" in apply(chain(NNM(1), FoolsGold()), seen).info


@pytest.mark.parametrize(("m", "f", "k"), [(10, 1, 1), (10, 2, 3), (10, 4, 4), (25, 5, 8), (3, 1, 1)])
def test_arc_clips_as_many_as_the_paper_says(m: int, f: int, k: int) -> None:
    updates = torch.diag(torch.arange(1.0, m + 1))
    clipped, info = ARC(f)(of(updates))
    assert info["clipped"] == k and info["bound"] == m - k
    assert clipped.updates.norm(dim=1).max() <= m - k


def test_arc_tells_when_all_that_is_left_is_zero() -> None:
    updates = torch.zeros((5, 3))
    assert ARC(1)(of(updates))[1]["clipped"] == 0
    updates[0] = 1.0
    clipped, info = ARC(1)(of(updates))
    assert not clipped.updates.any() and "scaled to 0" in info["warning"]


# -------------------------------------------------------------------------------------------------------- FoolsGold


def test_sybils_that_agree_lose_their_say_however_loud_and_the_distinct_keep_theirs() -> None:
    updates = torch.eye(8)[:6].clone()
    updates[3], updates[4], updates[5] = updates[5], 1e30 * updates[5], 0.1 * updates[5]
    found = apply(FoolsGold(), of(updates))
    assert found.info["weights"].tolist() == pytest.approx([1 / 6] * 3 + [0.0] * 3)
    assert found.direction.tolist() == pytest.approx([1 / 6] * 3 + [0.0] * 5)


def test_a_lone_client_counts_in_full_also_a_malicious_one() -> None:
    updates = torch.eye(5)
    updates[4] *= 1e20
    assert apply(FoolsGold(), of(updates)).info["weights"].tolist() == pytest.approx([0.2] * 5)


def test_pardoning_spares_an_honest_client_that_looks_a_little_like_the_sybils() -> None:
    sybil = torch.tensor([1.0, 0.0, 0.0])
    honest = torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
    found = apply(FoolsGold(), of(torch.stack([sybil, sybil, *honest])))
    distinct = found.info["distinct"].tolist()
    assert distinct[:2] == [0.0, 0.0]
    assert distinct[2] == pytest.approx(1 - 0.6 * 0.6)  # 0.6 without the pardon 0.6 / 1
    assert distinct[3] == 1.0


def test_history_finds_sybils_whose_single_updates_differ() -> None:
    rule, g = FoolsGold(), Stream(3).torch()
    state = rule.init(torch.zeros(200))
    for r in range(30):
        updates = torch.randn((4, 200), generator=g)
        updates[2:] += 0.5  # a common aim under much noise
        found = rule(replace(of(updates), round=r), state)
        state = found.state
        if r == 0:
            assert float(found.info["weights"][2:].min()) == 0.25
    assert found.info["weights"].tolist() == [0.25, 0.25, 0.0, 0.0]


def test_all_alike_or_all_zero_is_told() -> None:
    alike = apply(FoolsGold(), of(torch.outer(torch.arange(1.0, 6.0), torch.tensor([0.1, -0.3, 0.7]))))
    assert not alike.direction.any() and "nobody counts" in alike.info["reason"]
    zero = apply(FoolsGold(), of(torch.zeros((4, 3))))
    assert zero.info["weights"].tolist() == [0.25] * 4


def test_only_clients_that_were_seen_are_remembered_and_overflow_stays_finite() -> None:
    rule = FoolsGold()
    state = rule.init(torch.zeros(3))
    loud = torch.full((2, 3), 3e38)
    for ids in ([7, 40], [2, 40], [40, 41]):
        state = rule(replace(of(loud), ids=torch.tensor(ids)), state).state
    assert state["ids"].tolist() == [2, 7, 40, 41] and state["history"].shape == (4, 3)
    assert bool(torch.isfinite(state["history"]).all())


# -------------------------------------------------------------------------------------------------------------- DnC


def test_dnc_with_f_0_is_the_mean() -> None:
    seen = cohort(7)
    assert torch.allclose(apply(DnC(0), seen).direction, seen.updates.mean(0))


def test_dnc_skips_the_round_if_nobody_is_kept_every_time() -> None:
    updates = torch.diag(torch.tensor([3.0, 2.5, 2.0, 1.5]))
    reasons = [apply(DnC(2, b=1, iterations=6), of(updates, seed)) for seed in range(20)]
    empty = [r for r in reasons if r.info["kept"] == 0]
    assert empty
    for found in empty:
        assert not found.direction.any() and not found.info["weights"].any() and "model stays" in found.info["reason"]


def test_dnc_needs_somebody_left() -> None:
    DnC(3).check(4)
    DnC(30, c=0.1).check(4)
    for n, rule in ((3, DnC(3)), (5, DnC(3, c=1.5))):
        with pytest.raises(EquipoiseError, match=rf"m = {n} .*f = 3"):
            rule.check(n)


# ---------------------------------------------------------------------------------------------------------- FLTrust


def test_fltrust_follows_the_servers_own_length_and_ignores_who_opposes_it() -> None:
    root = torch.tensor([2.0, 0.0])
    updates = torch.tensor([[1e30, 0.0], [1e-20, 0.0], [-5.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    found = apply(FLTrust(), replace(of(updates), root=root))
    assert found.direction.tolist() == pytest.approx([2.0, 0.0])
    assert found.info["weights"].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0, 0.0])


def test_fltrust_never_makes_a_longer_step_than_the_server_would() -> None:
    for seed in range(20):
        seen = cohort(9, seed=seed)
        assert seen.root is not None
        assert float(apply(FLTrust(), seen).direction.norm()) <= float(seen.root.norm()) * (1 + 1e-12)


def test_fltrust_stays_put_with_a_reason_if_nobody_or_nothing_can_be_trusted() -> None:
    seen = of(torch.tensor([[-1.0, 0.0], [-2.0, -1.0]]))
    for root, why in ((torch.tensor([1.0, 0.0]), "no update points"), (torch.zeros(2), "update is zero")):
        found = apply(FLTrust(), replace(seen, root=root))
        assert not found.direction.any() and found.info["weights"].tolist() == [0.0, 0.0]
        assert why in found.info["reason"]


def test_fltrust_without_data_of_its_own_says_how_to_get_some() -> None:
    assert FLTrust().needs == {"root"}
    with pytest.raises(EquipoiseError, match="no data of its own") as caught:
        apply(FLTrust(), replace(cohort(4), root=None))
    assert "root" in caught.value.hint


# ------------------------------------------------------------------------------------------------------------ FLAME


def test_flame_keeps_a_majority_always_and_noise_is_as_large_as_it_says() -> None:
    for seed in range(10):
        found = apply(FLAME(), cohort(9, seed=seed))
        assert found.info["kept"] >= 5
    seen = cohort(5, 4000)
    noise = apply(FLAME(0.5), seen).direction - apply(FLAME(0.0), seen).direction
    bound = apply(FLAME(), seen).info["bound"]
    assert float(noise.std()) == pytest.approx(0.5 * bound, rel=0.1)
    other = replace(seen, rng=Stream(99))
    assert not torch.equal(apply(FLAME(0.5), seen).direction, apply(FLAME(0.5), other).direction)


def test_flame_leaves_out_a_minority_that_agrees_on_another_way() -> None:
    g = Stream(0).torch()
    updates = torch.tensor([1.0, 0.0, 0.0]) + 0.05 * torch.randn((9, 3), generator=g)
    updates[:4] = torch.tensor([0.0, 1.0, 0.0]) + 1e-3 * torch.randn((4, 3), generator=g)
    for of_ in ("model", "update"):
        seen = replace(of(updates), start=torch.zeros(3))
        found = apply(FLAME(0.0, of_), seen)  # type: ignore[arg-type]
        assert found.info["weights"][:4].tolist() == [0.0] * 4 and found.info["kept"] == 5


def test_flame_shortens_to_the_median_of_all() -> None:
    updates = torch.tensor([[1.0, 0.0], [2.0, 0.0], [100.0, 0.0]])
    found = apply(FLAME(0.0, "update"), of(updates))
    assert found.info["bound"] == 2.0
    assert found.direction.tolist() == pytest.approx([(1 + 2 + 2) / 3, 0.0])


# -------------------------------------------------------------------------------------------------------- SignGuard


def test_sign_guard_leaves_out_other_signs_and_unusual_lengths_and_says_how_many() -> None:
    g = Stream(0).torch()
    updates = 0.2 + torch.randn((10, 2000), generator=g)
    updates[0] = -updates[0].abs()  # of usual length
    updates[1] *= 50
    updates[2] *= 0.01
    found = apply(SignGuard(), of(updates))
    assert found.info["weights"][:3].tolist() == [0.0] * 3
    assert found.info["length_refused"] == 2 and found.info["signs_refused"] >= 1
    assert found.info["kept"] == int((found.info["weights"] > 0).sum()) >= 4


def test_sign_guard_stays_put_with_a_reason_if_most_send_nothing() -> None:
    updates = torch.zeros((5, 6))
    updates[0] = 1.0
    found = apply(SignGuard(), of(updates))
    assert not found.direction.any() and "median length is 0" in found.info["reason"]


def test_sign_guard_stays_put_with_a_reason_if_the_two_filters_agree_on_nobody() -> None:
    lengths = torch.tensor([-1.0, -1.0, 1e3, 1e-3, 1e4])  # the usual lengths are those of the fewer signs
    found = apply(SignGuard(share=1.0), of(lengths[:, None].expand(5, 6)))
    assert (found.info["length_refused"], found.info["signs_refused"], found.info["kept"]) == (3, 2, 0)
    assert not found.direction.any() and "nobody has both" in found.info["reason"]


# ----------------------------------------------------------------------------------------------------------- in runs


def rooted() -> Federation:
    fed = federation((30,) * 9)
    return replace(fed, root=torch.arange(20))


@pytest.mark.parametrize(
    "server",
    [DnC(2), FLTrust(), SignGuard(share=1.0), FLAME(), chain(NNM(2), Krum(2)), chain(ARC(2), NNM(2), Krum(2))],
    ids=called,
)
def test_a_run_under_attack_learns_where_the_mean_does_not(server: ServerRule) -> None:
    attack = SignFlip(clients=(1, 4), scale=1e4)
    sim = simulation(fedavg(server=server), rooted(), attack=attack)
    plain = simulation(fedavg(), rooted(), attack=attack)
    start = sim.evaluate("train")["global"].loss.mean()
    for _ in range(6):
        record = sim.step()
        plain.step()
        assert record.skipped == "" and record.info["weights"].shape == (9,)
    assert sim.evaluate("train")["global"].loss.mean() < start < plain.evaluate("train")["global"].loss.mean()


def test_a_run_with_fltrust_and_no_root_is_never_a_silent_mean() -> None:
    with pytest.raises(EquipoiseError, match="FLTrust") as caught:
        simulation(fedavg(server=FLTrust()), federation((9,) * 4))
    assert "data.root" in caught.value.hint


def test_fools_gold_in_a_run_saves_its_memory_with_the_server() -> None:
    sim = simulation(fedavg(server=FoolsGold()), federation((9,) * 4))
    sim.step()
    dumped = sim.server.dump()
    assert dumped["state/ids"].tolist() == [0, 1, 2, 3] and len(dumped["state/history"]) == 4
