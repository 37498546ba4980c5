"""The guard on what clients say about themselves."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.attacks.lie_loss import LieLoss
from equipoise.engine.admission import admit
from equipoise.engine.exchange import Replies
from equipoise.engine.guard import guarded, probed
from equipoise.engine.settings import Admission
from equipoise.methods.fedmdfg import fedmdfg
from tests.small import federation, simulation

LOSSES = st.lists(st.floats(0, 50), min_size=3, max_size=15)


def replies(losses: list[float], sizes: list[int] | None = None) -> Replies:
    m = len(losses)
    claimed = torch.tensor(sizes or [10] * m)
    told = torch.tensor(losses, dtype=torch.float64)
    return Replies(torch.arange(m), torch.zeros(m, 2), claimed, told, {"gap": told - 1, "votes": torch.arange(m)})


def losses_of(found: Replies) -> np.ndarray:
    assert found.losses is not None
    return found.losses.numpy()


def centre(losses: list[float], width: float) -> tuple[float, float]:
    """The median and its spread, and both again without what is out of bounds."""
    x = np.array(losses)
    middle = np.median(x)
    spread = 1.4826 * np.median(np.abs(x - middle)) or max(1.0, abs(middle))
    within = x[np.abs(x - middle) <= width * spread]
    again = np.median(within)
    return float(again), float(1.4826 * np.median(np.abs(within - again)) or spread)


@given(losses=LOSSES, width=st.floats(1, 5))
def test_winsorising_is_the_median_and_its_spread(losses: list[float], width: float) -> None:
    middle, spread = centre(losses, width)
    wanted = [max(0.0, min(max(x, middle - width * spread), middle + width * spread)) for x in losses]
    assert np.allclose(losses_of(guarded(replies(losses), "winsorise", width)[0]), wanted, rtol=0, atol=1e-12)


@given(losses=LOSSES, width=st.floats(1, 5))
def test_redescending_falls_from_the_fence_to_the_median(losses: list[float], width: float) -> None:
    middle, spread = centre(losses, width)
    fence, wanted = width * spread, []
    for x in losses:
        away = abs(x - middle)
        if away > fence:
            away = max(0.0, fence * (3 * fence - away) / (2 * fence))
        wanted.append(max(0.0, middle + np.sign(x - middle) * away))
    assert np.allclose(losses_of(guarded(replies(losses), "redescend", width)[0]), wanted, rtol=0, atol=1e-9)


@given(losses=LOSSES)
def test_ranks_are_normal_scores(losses: list[float]) -> None:
    middle, spread = centre(losses, 3.0)
    m, wanted = len(losses), []
    for x in losses:
        rank = sum(y < x for y in losses) + (sum(y == x for y in losses) - 1) / 2
        wanted.append(max(0.0, middle + spread * NormalDist().inv_cdf((rank + 0.5) / m)))
    assert np.allclose(losses_of(guarded(replies(losses), "rank", 3.0)[0]), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("how", ["redescend", "winsorise", "rank"])
@given(honest=st.lists(st.floats(0, 50), min_size=6, max_size=12), lies=st.lists(st.floats(0, 1e300), max_size=4))
def test_fewer_than_half_cannot_leave_the_range_of_the_honest_by_much(
    how: str, honest: list[float], lies: list[float]
) -> None:
    """The median stays within the honest range and the spread is no wider than it, unless there is none."""
    found = losses_of(guarded(replies([*lies, *honest]), how, 3.0)[0])
    reach = max(honest) - min(honest)
    assert np.isfinite(found).all()
    assert found.max() <= max(honest) + 3 * max(1.4826 * reach, max(honest), 1.0) + 1e-9


@pytest.mark.parametrize("how", ["redescend", "winsorise"])
def test_reports_within_bounds_pass_as_they_are(how: str) -> None:
    given_in = replies([1.0, 1.2, 0.9, 1.1, 1.3], [8, 10, 12, 9, 29])
    found, out = guarded(given_in, how, 3.0)
    assert np.array_equal(losses_of(found), losses_of(given_in)) and torch.equal(found.sizes, given_in.sizes)
    assert not out.any()


def test_a_liar_is_named_and_counts_as_the_farthest_believable_one() -> None:
    found, out = guarded(replies([1.0, 1.2, 1e30, 0.9, 1.1], [10, 10, 10, 10**9, 10]), "winsorise", 3.0)
    assert out.tolist() == [False, False, True, True, False]
    assert losses_of(found)[2] == pytest.approx(1.05 + 3 * 1.4826 * 0.1)  # 1.05: the median of the other four
    assert found.sizes.tolist() == [10, 10, 10, 30, 10]
    assert float(found.signals["gap"][2]) == pytest.approx(0.05 + 3 * 1.4826 * 0.1)
    assert found.signals["votes"].tolist() == [0, 1, 2, 3, 4]


def test_what_cannot_be_believed_counts_as_if_nothing_had_been_said() -> None:
    found, out = guarded(replies([1.0, 1.2, 1e30, 0.9, 1.1, 1.3]), "redescend", 3.0)
    middle, fence = 1.1, 3 * 1.4826 * 0.1  # of the other five
    assert out.nonzero().flatten().tolist() == [2] and losses_of(found)[2] == pytest.approx(middle)
    beyond = middle + 2 * fence  # half way from the fence to where nothing is left
    found, out = guarded(replies([1.0, 1.2, beyond, 0.9, 1.1, 1.3]), "redescend", 3.0)
    assert out.nonzero().flatten().tolist() == [2] and losses_of(found)[2] == pytest.approx(middle + 0.5 * fence)


def test_two_reports_tell_nothing_and_off_is_off() -> None:
    for how, losses in (("winsorise", [1.0, 1e30]), ("off", [1.0, 1.0, 1e30])):
        given_in = replies(losses)
        found, out = guarded(given_in, how, 3.0)
        assert found is given_in and not out.any()


def test_it_is_on_unless_turned_off() -> None:
    lies = replies([1.0, 1.1, 0.9, 1e30])
    assert admit(lies, Admission()).guarded == (3,)
    assert losses_of(admit(lies, Admission()).replies)[3] == pytest.approx(1.0)
    off = admit(lies, Admission(guard="off"))
    assert off.guarded == () and float(off.replies.losses[3]) == 1e30  # type: ignore[index]


# ------------------------------------------------------------------------------------------------ answers to probes


def test_every_trial_model_is_guarded_by_itself() -> None:
    answers = torch.tensor([[1.0, 1.2, 1e30, 0.9, 1.1], [5.0, 6.0, 5.5, 1e30, 5.8]], dtype=torch.float64)
    found = probed(answers, "redescend", 3.0)
    wanted = [[1.0, 1.2, 1.05, 0.9, 1.1], [5.0, 6.0, 5.5, 5.65, 5.8]]  # the medians of the others
    assert torch.allclose(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.equal(probed(answers, "off", 3.0), answers)


@pytest.mark.parametrize("how", ["redescend", "winsorise", "rank", "off"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_answer_that_is_not_finite_is_the_median_unless_most_are(how: str, value: float) -> None:
    found = probed(torch.tensor([[1.0, 3.0, value, 2.0, 4.0], [1.0, value, value, value, 2.0]]), how, 3.0)
    assert bool(torch.isfinite(found[0]).all()) and float(found[0][2]) == pytest.approx(3.0, abs=1.0)
    assert found[1][1:4].tolist() == [float("inf")] * 3


def test_liars_lie_in_probes_too() -> None:
    fed = federation((9, 9, 9, 9, 9))
    for claim, said in (("huge", 1e30), ("zero", 0.0)):
        sim = simulation(fedmdfg(), fed, attack=LieLoss(clients=(1,), claim=claim))  # type: ignore[arg-type]
        honest, plan = simulation(fedmdfg(), fed), sim.server.plan()
        models = torch.stack([plan.w, plan.w + 1])
        told, truth = (s.simulator.probe(plan, plan.ids, models) for s in (sim, honest))
        assert told[:, 1].tolist() == [said, said]
        others = [0, 2, 3, 4]
        assert torch.equal(told[:, others], truth[:, others])


def test_a_liar_does_not_stop_a_line_search_that_is_guarded() -> None:
    fed = federation((30, 30, 30, 30, 30, 30, 30))

    def accepted(admission: Admission) -> list[bool]:
        sim = simulation(fedmdfg(), fed, attack=LieLoss(clients=(1,), claim="huge"), admission=admission)
        return [bool(sim.step().info["accepted"]) for _ in range(6)]

    assert not any(accepted(Admission(guard="off")))
    assert sum(accepted(Admission())) >= 4
