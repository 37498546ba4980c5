"""Who has many steps goes on without the others: where a round is cut, and what becomes of rows there."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.engine.batches import Batches
from equipoise.engine.legs import _LEAST, Leg, halves, stretches


def batches(steps: tuple[int, ...], width: int = 2) -> Batches:
    """Sample 100 s + 10 k + b in step s of client k, while it has any."""
    longest, k = max(steps), len(steps)
    s, who = torch.arange(longest)[:, None], torch.arange(k)
    counts = torch.where(s < torch.tensor(steps), width, 0)
    index = (100 * s[..., None] + 10 * who[:, None] + torch.arange(width))[:, None]
    mask = (torch.arange(width) < counts[..., None])[:, None]
    return Batches(index, mask, steps, (width,) * k, counts)


def test_halves_up_to_one() -> None:
    assert halves(10) == {10, 5, 3, 2, 1} and halves(1) == {1} and halves(8) == {8, 4, 2, 1}


def test_a_round_by_hand() -> None:
    steps = (30, 2, 12, 2, 3, 12, 2, 1)
    assert stretches(steps, 8, halves(8)) == [(0, 2, 8), (2, 12, 4), (12, 30, 1)]  # two at a time: never for long
    assert stretches(steps, 8, frozenset()) == [(0, 30, 8)]
    assert stretches((5, 5, 5, 5), 4, halves(4)) == [(0, 5, 4)]


@given(steps=st.lists(st.integers(0, 40), min_size=1, max_size=12), more=st.integers(0, 3))
def test_every_step_of_every_client_is_taken_once_and_few_go_on_alone(steps: list[int], more: int) -> None:
    steps[0] += 1
    rows = len(steps) + more
    found = stretches(steps, rows, halves(rows))
    assert [f[0] for f in found] == [0, *(f[1] for f in found[:-1])] and found[-1][1] == max(steps)
    assert all(last - first >= _LEAST for first, last, _ in found[1:])
    assert all(sum(n > first for n in steps) <= few for first, _, few in found[1:])
    assert [f[2] for f in found] == sorted({f[2] for f in found}, reverse=True) and found[0][2] == rows


def test_a_leg_has_the_steps_and_the_rows_of_those_who_go_on() -> None:
    whole = batches((1, 6, 0, 9))
    leg = Leg.of(whole, 2, 6, 2)
    assert leg.who is not None and leg.who.tolist() == [1, 3] and leg.batches.steps == (4, 4)
    assert torch.equal(leg.batches.index, whole.index[2:6, :, [1, 3]]) and leg.batches.counts.tolist() == [[2, 2]] * 4
    given_ = leg.each({"index": whole.index, "mask": whole.mask})
    assert torch.equal(given_["index"], leg.batches.index) and torch.equal(given_["mask"], leg.batches.mask)
    rows = leg.fixed({"w": torch.arange(4.0)[:, None], "lr": torch.tensor(0.1)})
    assert rows["w"].flatten().tolist() == [1, 3] and rows["lr"].dim() == 0
    assert leg.put(torch.arange(4.0)[:, None], rows["w"] + 10).flatten().tolist() == [0, 11, 2, 13]


@pytest.mark.parametrize("last", [9, 4])
def test_the_first_leg_has_everyone(last: int) -> None:
    whole = batches((1, 6, 0, 9))
    leg = Leg.of(whole, 0, last, 4)
    assert leg.who is None and (leg.batches is whole) is (last == 9)
    assert leg.batches.steps == tuple(min(n, last) for n in whole.steps) and leg.batches.longest == last
    rows = torch.zeros(4, 1)
    assert leg.put(torch.ones(4, 1), rows) is rows
