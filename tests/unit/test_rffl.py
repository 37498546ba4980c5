"""What RFFL and CGSV promise beyond their equations: shares, odd reputations, removals, and the ledger."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import equipoise
from equipoise import questions
from equipoise.attacks.sign_flip import SignFlip
from equipoise.core import Cohort, Layout, Method, Outcome, ServerRule, State
from equipoise.engine.settings import Participation
from equipoise.errors import EquipoiseError
from equipoise.methods.cgsv import CGSV, cgsv
from equipoise.methods.rffl import RFFL, largest, places, rffl, seats
from tests.small import federation, relative, simulation

D = 12


def cohort(rows: Tensor, *, round: int = 0, ids: list[int] | None = None, sizes: list[int] | None = None) -> Cohort:
    k, d = rows.shape
    layout = Layout.of({"a": torch.empty(d // 2), "b": torch.empty(d - d // 2 - 1), "c": torch.empty(1)})
    return Cohort(
        ids=torch.tensor(ids if ids is not None else list(range(k))),
        start=torch.zeros(d, dtype=rows.dtype),
        updates=rows,
        sizes=torch.tensor(sizes or [1] * k),
        layout=layout,
        round=round,
        n_clients=50,
    )


def noise(k: int, d: int = D, seed: int = 0) -> Tensor:
    return torch.randn((k, d), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alike(k: int, seed: int = 0) -> Tensor:
    """Updates that agree with each other."""
    return noise(1, seed=seed + 100) * 3 + 0.5 * noise(k, seed=seed)


def rounds(rule: ServerRule, cohorts: list[Cohort]) -> list[Outcome]:
    state: State = rule.init(cohorts[0].start)
    out = []
    for c in cohorts:
        out.append(rule(c, state))
        state = out[-1].state
        assert all(bool(torch.isfinite(t).all()) for t in state.values())
    return out


def got(outcome: Outcome) -> Tensor:
    assert outcome.downloads is not None
    assert bool(torch.isfinite(outcome.downloads).all())
    return outcome.downloads


# ------------------------------------------------------------------------------------------------------- shares


def given_by(u: Tensor, quotas: list[float], layout: Layout) -> Tensor:
    """[K, d]: what participants with these quotas get of u; without a layout, of the whole model."""
    return largest(u, places(u.double(), *seats(layout, u)), torch.tensor(quotas, dtype=torch.float64))


def chosen(values: Sequence[float], quota: float, layout: Layout) -> Tensor:
    """[d] bool, literally: in each tensor the share of the largest, rounded up; of equals the first."""
    out = torch.zeros(len(values), dtype=torch.bool)
    for slot in layout.slots:
        order = sorted(range(slot.start, slot.stop), key=lambda j: (-abs(values[j]), j))
        out[order[: math.ceil(quota * len(order) - 1e-9)]] = True
    return out


def test_quota_one_gives_everything_and_quota_zero_nothing() -> None:
    for layout in (cohort(noise(1)).layout, Layout()):
        gifts = given_by(noise(1)[0], [1.0, 0.0], layout)
        assert torch.equal(gifts[0], noise(1)[0])
        assert not gifts[1].any()


@given(seed=st.integers(0, 999), low=st.floats(0.001, 1), high=st.floats(0.001, 1))
def test_a_larger_quota_gets_all_that_a_smaller_one_gets(seed: int, low: float, high: float) -> None:
    u, layout = noise(1, seed=seed)[0], cohort(noise(1)).layout
    less, more = given_by(u, sorted((low, high)), layout)
    assert bool((more[less != 0] == u[less != 0]).all())
    for s in layout.slots:
        kept, left = u[s.start : s.stop][less[s.start : s.stop] != 0], u[s.start : s.stop][less[s.start : s.stop] == 0]
        assert len(kept) >= 1
        assert len(left) == 0 or kept.abs().min() >= left.abs().max()


def test_a_tensor_of_one_element_is_given_whole_to_anyone_with_a_quota() -> None:
    u = noise(1)[0]
    assert given_by(u, [0.01], cohort(noise(1)).layout)[0, -1] == u[-1]


def test_of_equal_magnitudes_the_first_are_given() -> None:
    u = torch.tensor([-2.0, 2.0, -2.0, 2.0], dtype=torch.float64)
    assert given_by(u, [0.25, 0.5, 0.75], Layout()).tolist() == [[-2, 0, 0, 0], [-2, 2, 0, 0], [-2, 2, -2, 0]]


@given(
    values=st.lists(st.integers(-2, 2), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    quota=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.77, 1.0]),
)
def test_in_every_tensor_equal_magnitudes_are_given_from_the_first_on(
    values: list[int], cuts: list[int], quota: float
) -> None:
    u, ends = torch.tensor(values, dtype=torch.float64), sorted({0, len(values), *(c % len(values) for c in cuts)})
    layout = Layout.of({str(a): torch.empty(b - a) for a, b in itertools.pairwise(ends)})
    assert given_by(u, [quota], layout)[0].tolist() == torch.where(chosen(values, quota, layout), u, 0.0).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "lengths", [(40000,), (1, 33000, 0, 7000, 1, 500), (3,) * 200, (1,) * 33000], ids=["one", "few", "many", "most"]
)
def test_shares_of_long_vectors_with_many_equals_are_the_same_to_the_bit(
    lengths: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Magnitudes from the smallest to the largest, zeros of both signs, and neighbours that float32 cannot part."""
    g, layout = np.random.default_rng(7), Layout.of({str(i): torch.empty(n) for i, n in enumerate(lengths)})
    kinds = np.array([0.0, 5e-324, 1e-310, 1e-30, 0.3, 1.0, 1 + 2.0**-52, 1 + 2.0**-51, 1e30, 1e300])
    u = torch.from_numpy(g.choice(kinds, layout.size) * g.choice([-1.0, 1.0], layout.size))
    place, quotas = places(u, *seats(layout, u)), [0.0, 1e-6, 0.1, 1 / 3, 0.5, 0.999, 1.0]
    for gift, quota in zip(largest(u.to(dtype), place, torch.tensor(quotas, dtype=torch.float64)), quotas, strict=True):
        expected = torch.where(chosen(u.tolist(), quota, layout), u.to(dtype), 0.0)
        assert torch.equal(gift.view(torch.uint8), expected.view(torch.uint8))


def test_a_share_that_is_a_whole_number_up_to_rounding_is_not_rounded_up() -> None:
    u = torch.arange(1.0, 50.0, dtype=torch.float64)
    assert int((given_by(u, [1 / 49 * (1 + 2e-16) * 7], Layout()) != 0).sum()) == 7


@pytest.mark.parametrize("rule", [RFFL(), CGSV()], ids=["rffl", "cgsv"])
def test_all_is_done_before_anybody_is_asked(rule: ServerRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a GPU still trains, orders for it cost no time; those that need its answer do."""
    state: State = {"ids": torch.arange(4), "reputation": torch.full((4,), 0.25, dtype=torch.float64)}
    c, whole = cohort(alike(4)), rule(cohort(alike(4)), state)
    monkeypatch.setattr(questions, "answer", lambda *a: pytest.fail("a question"))
    found = rule.ahead(c, state)
    assert torch.equal(found.likely.direction, whole.direction)
    assert found.likely.downloads is not None and torch.equal(found.likely.downloads, got(whole))


# -------------------------------------------------------------------------------------- what participants end with


@pytest.mark.parametrize("clip", [None, 0.5])
def test_with_quota_one_a_participant_keeps_its_own_learning_and_adds_the_others(clip: float | None) -> None:
    """own = start - u_k - (u - p_k u_k), signs included: the top participant, in the first round and in a later one."""
    rows = alike(5)
    for outcome in rounds(RFFL(clip=clip), [cohort(rows, sizes=[1, 2, 3, 4, 5]), cohort(rows, round=1)]):
        top = int(outcome.info["quota"].argmax())
        assert float(outcome.info["quota"][top]) == 1.0
        norm = float(rows[top].norm())
        counted = rows[top] * (1.0 if clip is None else min(1.0, clip / norm))
        own = -rows[top] + got(outcome)[top]
        wanted = -rows[top] - outcome.direction + float(outcome.info["weights"][top]) * counted
        assert relative(own, wanted) < 1e-12


def test_participants_with_the_same_update_all_get_everything() -> None:
    rows = noise(1).expand(4, -1).clone()
    outcome = rounds(RFFL(subtract_own=False), [cohort(rows)])[0]
    assert outcome.info["quota"].tolist() == pytest.approx([1.0] * 4)
    assert relative(got(outcome), -rows) < 1e-12


def test_a_participant_alone_trains_as_if_there_were_no_federation() -> None:
    fed = federation((12,))
    alone, rewarded = simulation(equipoise.methods.local(), fed), simulation(rffl(), fed)
    for _ in range(4):
        alone.step()
        rewarded.step()
    (_, a), (_, b) = alone.personal() or (None, None), rewarded.personal() or (None, None)  # type: ignore[misc]
    assert relative(b, a) < 1e-9
    assert relative(rewarded.server.w, a[0]) < 1e-9


def test_who_is_removed_keeps_what_it_trained_and_is_sent_nothing() -> None:
    outcome = rounds(RFFL(), [cohort(torch.cat([alike(4), -alike(1)]))])[0]
    assert outcome.exclude == (4,)
    assert not got(outcome)[4].any()
    assert float(outcome.info["quota"][4]) == 0.0


def test_altruism_raises_every_quota_but_keeps_their_order() -> None:
    c = cohort(alike(6) + noise(6, seed=5))
    plain, kind = (RFFL(threshold=0.0, beta=b)(c, RFFL().init(c.start)).info["quota"] for b in (None, 2.0))
    assert bool((kind >= plain - 1e-12).all())
    assert kind.argsort().tolist() == plain.argsort().tolist()


# ----------------------------------------------------------------------------------------------- odd reputations


@pytest.mark.parametrize("rule", [RFFL(), RFFL(clip=0.5), CGSV()], ids=["rffl", "clip", "cgsv"])
def test_a_zero_aggregate_changes_nothing_and_says_so(rule: ServerRule) -> None:
    rows = torch.cat([noise(1), -noise(1)])
    for c in (cohort(rows), cohort(torch.zeros(3, D, dtype=torch.float64))):
        outcome = rounds(rule, [c])[0]
        assert "aggregate is zero" in outcome.info["reason"]
        assert not outcome.direction.any()
        assert outcome.exclude == ()
        got(outcome)


@pytest.mark.parametrize(
    ("rule", "lengths"), [(RFFL(), (0.1, 0.2, -0.3)), (RFFL(clip=0.5), (9.1, -7.3)), (CGSV(), (9.1, -7.3))]
)
def test_what_rounding_leaves_where_updates_cancel_is_zero(rule: ServerRule, lengths: tuple[float, ...]) -> None:
    for seed in range(5):
        rows = torch.tensor(lengths, dtype=torch.float64)[:, None] * noise(1, seed=seed)
        outcome = rounds(rule, [cohort(rows)])[0]
        assert "aggregate is zero" in outcome.info["reason"]
        assert not outcome.direction.any() and outcome.exclude == ()


def test_a_zero_aggregate_leaves_earned_reputations_alone() -> None:
    first, second = rounds(RFFL(), [cohort(alike(4)), cohort(torch.zeros(4, D, dtype=torch.float64), round=1)])
    assert torch.equal(second.state["reputation"], first.state["reputation"])


@pytest.mark.parametrize("size", [1e-200, 1e200])
@pytest.mark.parametrize("rule", [RFFL(), RFFL(clip=0.5)], ids=["rffl", "clip"])
def test_updates_whose_norm_cannot_be_computed_remove_nobody_and_say_so(rule: ServerRule, size: float) -> None:
    outcome = rounds(rule, [cohort(size * alike(3))])[0]
    assert outcome.info["reason"]
    assert outcome.exclude == ()
    got(outcome)


def test_reputations_that_sum_to_less_than_zero_do_not_change_sign() -> None:
    """One participant with a huge update against five others: it alone agrees with the aggregate."""
    rows = torch.cat([100 * noise(1), -noise(1).expand(5, -1)])
    outcome = rounds(RFFL(), [cohort(rows)])[0]
    assert "sum to zero or less" in outcome.info["reason"]
    assert outcome.info["reputation"].tolist() == [1.0, 0, 0, 0, 0, 0]
    assert outcome.exclude == (1, 2, 3, 4, 5)


def test_a_negative_reputation_has_no_weight_while_grace_lasts() -> None:
    rows = torch.cat([alike(4), -alike(1)])
    first, second, third = rounds(RFFL(grace=2), [cohort(rows, round=r) for r in range(3)])
    assert first.exclude == second.exclude == ()
    assert float(first.info["reputation"][4]) == 0.0 == float(second.info["weights"][4])
    assert third.exclude == (4,)


@given(seed=st.integers(0, 9999), threshold=st.sampled_from([0.0, 1 / 3, 0.999]))
def test_somebody_always_stays_and_reputations_sum_to_one(seed: int, threshold: float) -> None:
    outcome = rounds(RFFL(threshold=threshold), [cohort(noise(5, seed=seed))])[0]
    assert 1 <= len(outcome.state["ids"]) == 5 - len(outcome.exclude)
    assert float(outcome.state["reputation"].sum()) == pytest.approx(1.0)
    assert outcome.info["quota"].max() == 1.0


@pytest.mark.parametrize("rule", [RFFL(), RFFL(clip=0.5), CGSV()], ids=["rffl", "clip", "cgsv"])
def test_huge_and_tiny_updates_stay_finite(rule: ServerRule) -> None:
    rows = torch.cat([1e30 * noise(2), 1e-30 * noise(2, seed=1)]).to(torch.float32)
    for outcome in rounds(rule, [cohort(rows, round=r) for r in range(3)]):
        assert bool(torch.isfinite(outcome.direction).all())
        got(outcome)


def test_a_client_without_data_is_removed_as_one_that_contributes_nothing() -> None:
    sim = simulation(rffl(), federation((9, 9, 0, 9)))
    assert [d["client"] for d in sim.step().info["removed"]] == [2]


# ------------------------------------------------------------------------------------------ who is removed, and when


@pytest.mark.parametrize("liars", [(1,), (2, 4), (0, 5)])
def test_the_malicious_are_removed_whatever_their_ids(liars: tuple[int, ...]) -> None:
    sim = simulation(rffl(clip=0.05), federation((30,) * 7), attack=SignFlip(clients=liars, scale=5.0))
    record = sim.step()
    assert tuple(d["client"] for d in record.info["removed"]) == liars == tuple(record.info["excluded"])
    assert set(sim.step().drawn) == set(range(7)) - set(liars)


def test_attackers_added_to_the_honest_are_the_ones_removed() -> None:
    sim = simulation(rffl(clip=0.05), federation((30,) * 7), attack=SignFlip(added=0.3, scale=5.0))
    assert [d["client"] for d in sim.step().info["removed"]] == [7, 8]
    assert sim.malicious.nonzero().flatten().tolist() == [7, 8]


def test_a_removal_says_why() -> None:
    outcome = rounds(RFFL(), [cohort(torch.cat([alike(4), -alike(1)]))])[0]
    (told,) = outcome.info["removed"]
    assert told["client"] == 4
    assert told["reason"].startswith("reputation -") and told["reason"].endswith("is below 0.0667")


def test_removals_do_not_leak_into_another_run_of_the_same_method() -> None:
    method, fed = rffl(clip=0.05), federation((30,) * 7)
    for _ in range(2):
        sim = simulation(method, fed, attack=SignFlip(clients=(3,), scale=5.0))
        assert [d["client"] for d in sim.step().info["removed"]] == [3]
    assert len(simulation(method, fed).step().drawn) == 7


def test_a_restored_run_goes_on_as_if_nothing_had_happened() -> None:
    for method in (rffl(clip=0.5), cgsv()):
        whole = simulation(method, participation=Participation(per_round=3))
        for _ in range(3):
            whole.step()
        restored = simulation(method, participation=Participation(per_round=3))
        restored.load(whole.dump())
        a, b = whole.step(), restored.step()
        assert a.info["reputation"].tolist() == b.info["reputation"].tolist()
        assert torch.equal(whole.server.w, restored.server.w)


# -------------------------------------------------------------------------------------------- partial participation


@pytest.mark.parametrize("rule", [RFFL(), CGSV()], ids=["rffl", "cgsv"])
def test_absent_participants_keep_their_standing_among_each_other(rule: ServerRule) -> None:
    both = alike(6)
    first, second = rounds(rule, [cohort(both), cohort(both[:2], round=1)])
    before, after = first.state["reputation"][2:], second.state["reputation"][2:]
    assert relative(after / after.sum(), before / before.sum()) < 1e-12
    assert second.state["ids"].tolist() == list(range(6))


def test_a_newcomer_has_no_weight_until_it_has_been_judged() -> None:
    rows = alike(3)
    _, second, third = rounds(
        RFFL(),
        [cohort(rows[:2], ids=[4, 9]), cohort(rows, round=1, ids=[4, 7, 9]), cohort(rows, round=2, ids=[4, 7, 9])],
    )
    assert float(second.info["weights"][1]) == 0.0
    assert float(third.info["weights"][1]) > 0.0


# ------------------------------------------------------------------------------------------------------ the ledger


def test_the_ledger_has_a_row_for_every_participant_of_the_round() -> None:
    attack = SignFlip(clients=(2,), scale=5.0)
    result = equipoise.run(federation((30,) * 6), rffl(clip=0.05), attack=attack, model="linear", rounds=3)
    infos = [json.loads(i) for i in result.rounds["info"]]
    for info in infos:
        assert len(info["reputation"]) == len(info["quota"]) == len(info["admitted"])
    assert infos[0]["reputation"][infos[0]["admitted"].index(2)] == 0.0
    assert [d["client"] for d in infos[0]["removed"]] == [2]
    assert all(2 not in i["admitted"] for i in infos[1:])


def test_only_clipping_makes_it_robust() -> None:
    assert RFFL(clip=0.5).robust
    assert not RFFL().robust
    assert not CGSV().robust


@pytest.mark.parametrize(
    ("rule", "wrong", "told"),
    [
        (RFFL, {"alpha": 1.0}, "rffl: alpha is 1.0"),
        (RFFL, {"threshold": 1.0}, "rffl: threshold is 1.0"),
        (RFFL, {"clip": 0.0}, "rffl: clip is 0.0"),
        (RFFL, {"grace": -1}, "rffl: grace is -1"),
        (RFFL, {"largest": "layer"}, "rffl: largest is 'layer'"),
        (RFFL, {"beta": float("nan")}, "rffl: beta is nan"),
        (RFFL, {"beta": float("inf")}, "rffl: beta is inf"),
        (RFFL, {"clip": float("inf")}, "rffl: clip is inf"),
        (CGSV, {"alpha": -0.1}, "cgsv: alpha is -0.1"),
        (CGSV, {"gamma": 0.0}, "cgsv: gamma is 0.0"),
        (CGSV, {"beta": -1.0}, "cgsv: beta is -1.0"),
        (CGSV, {"largest": ""}, "cgsv: largest is ''"),
    ],
)
def test_wrong_settings_are_named(rule: type, wrong: dict[str, object], told: str) -> None:
    with pytest.raises(EquipoiseError, match=told.replace("(", r"\(")):
        rule(**wrong)


def test_the_server_rule_works_with_another_client_rule() -> None:
    """Nobody keeps a model of their own then: RFFL is only a weighting that removes."""
    sim = simulation(Method("mixed", equipoise.methods.fedprox().client, replace(rffl().server)))
    assert sim.step().skipped == ""
    assert sim.personal() is None
