"""What robust rules promise: they hold against outliers, say whom they followed, and refuse what cannot work."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import registry
from equipoise.aggregators.clip import Clip
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.multi_krum import MultiKrum
from equipoise.attacks.sign_flip import SignFlip
from equipoise.config import dump, load
from equipoise.core import Chain, Cohort, Outcome, ServerRule, WeightedMean, chain
from equipoise.engine.settings import Participation
from equipoise.errors import EquipoiseError
from equipoise.experiment import build, execute
from equipoise.methods.fedavg import fedavg
from equipoise.streams import Stream
from tests.small import cohort, federation, simulation

RULES = [Krum, MultiKrum, CoordinateMedian]
WITH_F = [Krum, MultiKrum]
each_rule = pytest.mark.parametrize("rule", RULES)
each_with_f = pytest.mark.parametrize("rule", WITH_F)


def made(rule: Any, f: int) -> ServerRule:
    return rule(f) if rule in WITH_F else rule()  # type: ignore[no-any-return]


def apply(rule: ServerRule, updates: Tensor) -> Outcome:
    return rule(replace(cohort(*updates.shape, dtype=updates.dtype), updates=updates), {})


def attacked(m: int, f: int, seed: int, size: float, pattern: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """m updates, of which f in random places are `size` large, and which those are."""
    g = Stream(seed).torch()
    updates = torch.randn((m, 7), generator=g, dtype=dtype)
    bad = torch.randperm(m, generator=g)[:f]
    shape = {
        "together": torch.ones((f, 7), dtype=dtype),
        "apart": torch.randn((f, 7), generator=g, dtype=dtype),
        "opposite": torch.tensor([1.0, -1.0], dtype=dtype).repeat(f)[:f, None].expand(f, 7),
        "one coordinate": torch.eye(7, dtype=dtype)[:1].expand(f, 7),
    }[pattern]
    updates[bad] = size * shape
    return updates, torch.isin(torch.arange(m), bad)


@each_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=50)
@given(
    m=st.integers(5, 12),
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1e4, 1e30, -1e30]),
    pattern=st.sampled_from(["together", "apart", "opposite", "one coordinate"]),
)
def test_f_malicious_rows_cannot_take_the_step_out_of_the_honest_range(
    rule: Any, dtype: torch.dtype, m: int, seed: int, size: float, pattern: str
) -> None:
    f = (m - 3) // 2
    updates, bad = attacked(m, f, seed, size, pattern, dtype)
    found, honest = apply(made(rule, f), updates), updates[~bad]
    assert bool((found.direction >= honest.min(0).values - 1e-5).all())
    assert bool((found.direction <= honest.max(0).values + 1e-5).all())
    if rule in WITH_F:
        assert float(found.info["weights"][bad].sum()) == 0.0


def test_one_malicious_row_takes_the_mean_out_of_it() -> None:
    updates, _ = attacked(9, 1, 0, 1e30, "together", torch.float32)
    assert float(apply(WeightedMean("uniform"), updates).direction.abs().min()) > 1e28


@each_rule
def test_rows_whose_squares_overflow_even_float64_are_outvoted(rule: Any) -> None:
    updates, bad = attacked(9, 3, 0, 1e300, "apart", torch.float64)
    assert bool((apply(made(rule, 3), updates).direction.abs() <= updates[~bad].abs().max()).all())


@given(m=st.integers(3, 12), seed=st.integers(0, 10**6), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_clipping_leaves_no_update_longer_than_the_median_and_keeps_all_directions(
    m: int, seed: int, dtype: torch.dtype
) -> None:
    updates, bad = attacked(m, (m - 1) // 2, seed, 1e30, "apart", dtype)
    seen = replace(cohort(*updates.shape, dtype=dtype), updates=updates)
    clipped, info = Clip()(seen)
    lengths = torch.linalg.vector_norm(updates.double(), dim=1)
    after = torch.linalg.vector_norm(clipped.updates.double(), dim=1)
    bound = lengths[~bad].max()
    assert bool((after <= bound * (1 + 1e-6)).all())
    assert clipped.updates.dtype == dtype
    cosine = (updates.double() * clipped.updates.double()).sum(1) / (lengths * after)
    assert cosine.tolist() == pytest.approx([1.0] * m, abs=1e-5)
    assert info["clipped"] == m // 2


def test_clipping_keeps_sizes_losses_and_ids_for_the_rule_behind_it() -> None:
    seen = cohort()
    clipped, _ = Clip(0.1)(seen)
    assert clipped.sizes is seen.sizes and clipped.losses is seen.losses and clipped.ids is seen.ids
    assert not torch.equal(clipped.updates, seen.updates)


def test_clipping_to_a_fixed_bound_says_who_was_shortened_and_by_how_much() -> None:
    updates = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [0.0, -2.0]])
    clipped, info = Clip(1.0)(replace(cohort(4, 2, dtype=torch.float32), updates=updates))
    assert torch.allclose(clipped.updates, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0], [0.0, -1.0]]))
    assert info["scale"].tolist() == pytest.approx([0.2, 1.0, 1.0, 0.5])
    assert (info["clipped"], info["bound"]) == (2, 1.0)


def test_updates_of_length_zero_stay_and_a_median_of_zero_is_told() -> None:
    updates = torch.zeros((5, 3))
    seen = replace(cohort(5, 3, dtype=torch.float32), updates=updates)
    same, info = Clip()(seen)
    assert same is seen and info["clipped"] == 0
    updates[0] = 2.0
    clipped, info = Clip()(replace(seen, updates=updates))
    assert torch.equal(clipped.updates, torch.zeros((5, 3)))
    assert info["clipped"] == 1 and "median length is 0" in info["warning"]


@each_rule
def test_all_zero_and_all_equal_updates_give_that_update(rule: Any) -> None:
    for value in (0.0, 3.0):
        found = apply(made(rule, 1), torch.full((6, 5), value))
        assert torch.equal(found.direction, torch.full((5,), value))
        assert float(found.info["weights"].sum()) == pytest.approx(1.0)


@each_rule
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_the_order_in_which_clients_arrive_changes_no_bit(rule: Any, seed: int) -> None:
    seen = cohort(8, seed=seed, ids=range(8))
    seen = seen.with_updates(seen.updates.round())  # ties
    order = torch.randperm(8, generator=Stream(seed).torch())
    other = replace(seen, ids=seen.ids[order], updates=seen.updates[order], sizes=seen.sizes[order], losses=None)
    a, b = made(rule, 2)(seen, {}), made(rule, 2)(other, {})
    assert torch.equal(a.direction, b.direction)
    assert torch.equal(a.info["weights"], b.info["weights"])


@each_rule
def test_reported_sizes_give_no_client_more_say(rule: Any) -> None:
    seen = cohort(8)
    boasting = replace(seen, sizes=seen.sizes * torch.tensor([10**6, 1, 1, 1, 1, 1, 1, 1]))
    assert torch.equal(made(rule, 2)(seen, {}).direction, made(rule, 2)(boasting, {}).direction)


def test_the_limits_of_f() -> None:
    seen = cohort(7)
    assert torch.allclose(MultiKrum(0)(seen, {}).direction, seen.updates.mean(0))
    assert torch.equal(apply(CoordinateMedian(), seen.updates[:1]).direction, seen.updates[0])
    assert torch.allclose(apply(CoordinateMedian(), seen.updates[:2]).direction, seen.updates[:2].mean(0))


def test_by_default_a_rule_expects_somebody_malicious() -> None:
    assert Krum().f == MultiKrum().f == 1


def test_rules_say_that_they_are_robust_and_a_chain_is_what_its_rule_is() -> None:
    assert all(made(rule, 1).robust for rule in RULES)
    assert chain(Clip(), Krum()).robust and not chain(Clip(), WeightedMean()).robust


# -------------------------------------------------------------------------------------------- what cannot work


@each_with_f
def test_too_few_clients_for_f_are_refused_before_the_first_round(rule: Any) -> None:
    rule(3).check(6)
    with pytest.raises(EquipoiseError, match=r"m = 5 .*f = 3 .*m - f - 2 = 0") as caught:
        simulation(fedavg(server=chain(Clip(), rule(3))), federation((9,) * 5))
    assert "6 clients" in caught.value.hint


@each_with_f
def test_a_round_that_lost_too_many_clients_is_skipped_with_the_reason(rule: Any) -> None:
    sim = simulation(fedavg(server=rule(1)), federation((9,) * 6), participation=Participation(dropout=0.5))
    records = [sim.step() for _ in range(12)]
    for record in records:
        refused = 1 <= len(record.admitted) < 4
        assert refused == ("m = " in record.skipped and "f = 1" in record.skipped)
    assert any(r.skipped for r in records) and not all(r.skipped for r in records)


@each_with_f
def test_a_cohort_too_small_for_the_guarantee_is_told_in_every_round(rule: Any) -> None:
    assert "2f + 2 = 6" in rule(2)(cohort(6), {}).info["warning"]
    assert "warning" not in rule(2)(cohort(7), {}).info


@each_with_f
@pytest.mark.parametrize("f", [-1, 1.5, "two"])
def test_an_f_that_is_no_number_of_clients_is_refused(rule: Any, f: Any) -> None:
    with pytest.raises(EquipoiseError, match=f"f is {f}"):
        rule(f)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bound_that_clips_everything_or_nothing_is_refused(bound: float) -> None:
    with pytest.raises(EquipoiseError, match="clip: bound is"):
        Clip(bound)


# ------------------------------------------------------------------------------------------------ in a run


@each_rule
def test_a_run_under_attack_records_whom_the_rule_followed(rule: Any) -> None:
    attack = SignFlip(clients=(1, 4), scale=1e6)
    sim = simulation(fedavg(server=chain(Clip(1e9), made(rule, 2))), federation((9,) * 9), attack=attack)
    plain = simulation(fedavg(), federation((9,) * 9), attack=attack)
    start = sim.evaluate("train")["global"].loss.mean()
    for _ in range(8):
        record = sim.step()
        plain.step()
        assert record.skipped == ""
        assert record.info["weights"].shape == record.info["Clip.scale"].shape == (9,)
        if rule in WITH_F:
            assert record.info["weights"][[1, 4]].tolist() == [0.0, 0.0]
    assert sim.evaluate("train")["global"].loss.mean() < start < plain.evaluate("train")["global"].loss.mean()


CONFIG = """
[data]
dataset = "digits"
clients = 9
partition = "iid"
[model]
kind = "linear"
[train]
rounds = 2
[method]
name = "fedavg"
server = { name = "krum", f = 2 }
filters = [{ name = "clip" }]
"""


def told(*overrides: str) -> str:
    with pytest.raises(EquipoiseError) as caught:
        load(CONFIG, overrides)
    assert caught.value.hint
    return caught.value.message


def test_a_config_names_a_rule_and_the_filters_before_it() -> None:
    config = load(CONFIG)
    assert config.make_method().server == Chain((Clip(),), Krum(f=2))
    assert load(dump(config)) == config
    fixed = load(CONFIG, ['method.filters=[{ name = "clip", bound = 2.5 }]', "method.server=coordinate-median"])
    assert fixed.make_method().server == Chain((Clip(2.5),), CoordinateMedian())
    assert load(dump(fixed)) == fixed


def test_a_config_with_an_f_or_a_bound_that_cannot_work_names_the_key() -> None:
    assert "method.server.f" in told("method.server.f=-1")
    assert "m = 9" in told("method.server.f=7") and "f = 7" in told("method.server.f=7")
    assert "m = 4" in told("participation.per_round=4")
    assert "method.filters[0].bound" in told('method.filters=[{ name = "clip", bound = 0.0 }]')


def test_a_run_from_a_config_writes_down_weights_and_scales_of_every_round() -> None:
    rounds = execute(build(load(CONFIG))).rounds
    for told in map(json.loads, rounds["info"]):
        assert len(told["weights"]) == len(told["scores"]) == len(told["Clip.scale"]) == len(told["admitted"]) == 9
        assert sum(told["weights"]) == 1.0
        assert told["Clip.clipped"] == 4


def test_the_parts_are_known_by_their_names() -> None:
    assert {"krum", "multi-krum", "coordinate-median"} <= set(registry.rules())
    assert registry.filters()["clip"].make is Clip
    seen: Cohort = cohort(9)
    assert registry.rules()["krum"].make()(seen, {}).direction.shape == (12,)
