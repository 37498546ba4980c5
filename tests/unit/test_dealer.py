"""Batches dealt at once on a device: the numbers that numpy has in host memory, and nothing is asked."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.at import Schedule
from equipoise.data.federation import Split
from equipoise.engine import dealer
from equipoise.engine.batches import Batches, plan_batches
from equipoise.engine.dealer import Dealer
from equipoise.streams import Stream, bits_of
from tests.unit.test_batches import ROUNDS, same, split_of
from tests.unit.test_questions import Far, PretendedGPU

CUDA = torch.cuda.is_available()


def far(split: Split) -> Split:
    return replace(split, **{n: getattr(split, n).as_subclass(Far) for n in ("index", "start", "size")})


def back(dealt: Batches) -> Batches:
    """In host memory."""
    return replace(dealt, **{n: getattr(dealt, n).cpu().as_subclass(Tensor) for n in ("index", "mask")})


@given(*ROUNDS)
def test_what_is_dealt_is_what_is_planned(
    sizes: list[int], epochs: int, steps: int | None, batch: int | None, b: int, seed: int
) -> None:
    split, ids = split_of([*sizes, 20]), torch.arange(len(sizes)).flip(0)  # one more, who may hold the most
    asked = ids, Schedule(epochs, steps, batch), Stream(seed), b
    with PretendedGPU() as gpu:
        there = Dealer(split, far(split))(*asked)
    assert not gpu.questions and isinstance(there.index, Far) and isinstance(there.mask, Far)
    assert same(plan_batches(split, *asked), back(there))


@pytest.mark.parametrize(
    ("sizes", "dealt"),
    [([20, 20, 20], True), ([20, 11, 20], True), ([1, 2, 300], False), ([2000] * 600, False)],
    ids=["equal", "about as many", "a few have most", "more than a graph should hold"],
)
def test_it_is_dealt_where_clients_hold_about_as_much(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], dealt: bool
) -> None:
    calls: list[object] = []
    monkeypatch.setattr(Dealer, "_at_once", lambda *asked: calls.append(asked))
    split = split_of(sizes)
    with PretendedGPU():
        Dealer(split, far(split))(torch.arange(len(sizes)), Schedule(1, None, 5), Stream(0))
    assert bool(calls) == dealt


def test_cohorts_of_clients_with_about_as_much_share_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: set[object] = set()
    deal = dealer.deal
    monkeypatch.setattr(dealer, "deal", lambda samples, what, told: (kinds.add(what), deal(samples, what, told))[1])
    split = split_of([20, 17, 19, 20, 14])
    with PretendedGPU():
        dealt = Dealer(split, far(split))
        for ids in ([0, 1], [1, 2], [3, 4], [0, 4], [2, 4]):
            dealt(torch.tensor(ids), Schedule(2, None, 3), Stream(0))
    assert len(kinds) == 1


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_bits_of_many_streams_are_those_of_each(keys: list[int]) -> None:
    streams, ids = [Stream(key) for key in keys], torch.arange(5)
    together = bits_of(torch.tensor([s.word for s in streams])[:, None, None], ids[:, None], ids)
    assert torch.equal(together, torch.stack([s.bits(ids[:, None], ids) for s in streams]))


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("sizes", [[600] * 12, [500, 499, 480, 500, 420, 500], [5000, 4900, 4999]])
@pytest.mark.parametrize("b", [1, 3])
def test_on_a_gpu_too_as_a_graph(sizes: list[int], b: int) -> None:
    split, schedule = split_of(sizes), Schedule(2, None, 50)
    dealt = Dealer(split, split.to(torch.device("cuda")))
    for round in range(14):
        ids = torch.randperm(len(sizes), generator=Stream(round).torch())[:3].sort().values
        asked = ids, schedule, Stream(3).child("batch", round), b
        assert same(plan_batches(split, *asked), back(dealt(*asked)))
    assert any(dealt._dealt._made.values())
