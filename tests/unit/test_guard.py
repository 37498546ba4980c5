"""The guard on what clients say about themselves."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.engine.admission import admit
from equipoise.engine.exchange import Replies
from equipoise.engine.guard import guarded
from equipoise.engine.settings import Admission

LOSSES = st.lists(st.floats(0, 50), min_size=3, max_size=15)


def replies(losses: list[float], sizes: list[int] | None = None) -> Replies:
    m = len(losses)
    claimed = torch.tensor(sizes or [10] * m)
    told = torch.tensor(losses, dtype=torch.float64)
    return Replies(torch.arange(m), torch.zeros(m, 2), claimed, told, {"gap": told - 1, "votes": torch.arange(m)})


def losses_of(found: Replies) -> np.ndarray:
    assert found.losses is not None
    return found.losses.numpy()


@given(losses=LOSSES, width=st.floats(1, 5))
def test_winsorising_is_the_median_and_its_spread(losses: list[float], width: float) -> None:
    middle = np.median(losses)
    spread = 1.4826 * np.median(np.abs(np.array(losses) - middle)) or max(1.0, abs(middle))
    wanted = [max(0.0, min(max(x, middle - width * spread), middle + width * spread)) for x in losses]
    assert np.allclose(losses_of(guarded(replies(losses), "winsorise", width)[0]), wanted, rtol=0, atol=1e-12)


@given(losses=LOSSES)
def test_ranks_are_normal_scores(losses: list[float]) -> None:
    middle = np.median(losses)
    spread = 1.4826 * np.median(np.abs(np.array(losses) - middle)) or max(1.0, abs(middle))
    m, wanted = len(losses), []
    for x in losses:
        rank = sum(y < x for y in losses) + (sum(y == x for y in losses) - 1) / 2
        wanted.append(max(0.0, middle + spread * NormalDist().inv_cdf((rank + 0.5) / m)))
    assert np.allclose(losses_of(guarded(replies(losses), "rank", 3.0)[0]), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("how", ["winsorise", "rank"])
@given(honest=st.lists(st.floats(0, 50), min_size=6, max_size=12), lies=st.lists(st.floats(0, 1e300), max_size=4))
def test_fewer_than_half_cannot_leave_the_range_of_the_honest_by_much(
    how: str, honest: list[float], lies: list[float]
) -> None:
    """The median stays within the honest range and the spread is no wider than it, unless there is none."""
    found = losses_of(guarded(replies([*lies, *honest]), how, 3.0)[0])
    reach = max(honest) - min(honest)
    assert np.isfinite(found).all()
    assert found.max() <= max(honest) + 3 * max(1.4826 * reach, max(honest), 1.0) + 1e-9


def test_reports_within_bounds_pass_as_they_are() -> None:
    given_in = replies([1.0, 1.2, 0.9, 1.1, 1.3], [8, 10, 12, 9, 29])
    found, out = guarded(given_in, "winsorise", 3.0)
    assert torch.equal(found.losses, given_in.losses) and torch.equal(found.sizes, given_in.sizes) and out == ()


def test_a_liar_is_named_and_counts_as_the_farthest_believable_one() -> None:
    found, out = guarded(replies([1.0, 1.2, 1e30, 0.9, 1.1], [10, 10, 10, 10**9, 10]), "winsorise", 3.0)
    assert out == (2, 3)
    assert losses_of(found)[2] == pytest.approx(1.1 + 3 * 1.4826 * 0.1)
    assert found.sizes.tolist() == [10, 10, 10, 30, 10]
    assert float(found.signals["gap"][2]) == pytest.approx(0.1 + 3 * 1.4826 * 0.1)
    assert found.signals["votes"].tolist() == [0, 1, 2, 3, 4]


def test_two_reports_tell_nothing_and_off_is_off() -> None:
    for how, losses in (("winsorise", [1.0, 1e30]), ("off", [1.0, 1.0, 1e30])):
        given_in = replies(losses)
        assert guarded(given_in, how, 3.0) == (given_in, ())


def test_it_is_on_unless_turned_off() -> None:
    lies = replies([1.0, 1.1, 0.9, 1e30])
    assert admit(lies, Admission()).guarded == (3,)
    off = admit(lies, Admission(guard="off"))
    assert off.guarded == () and float(off.replies.losses[3]) == 1e30  # type: ignore[index]
