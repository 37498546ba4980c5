"""Batches: every client sees all of its data in every epoch, in an order of its own."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.at import Schedule
from equipoise.data.federation import Split
from equipoise.engine import batches
from equipoise.engine.batches import Batches, plan_batches
from equipoise.streams import Stream

SIZES = st.lists(st.integers(0, 23), min_size=1, max_size=6)


def split_of(sizes: list[int]) -> Split:
    first = torch.tensor([0, *sizes]).cumsum(0)
    return Split.of([torch.arange(int(a), int(a) + s) for a, s in zip(first, sizes, strict=False)])


@given(SIZES, st.integers(1, 8), st.integers(1, 3), st.integers(1, 3))
def test_every_epoch_is_a_permutation_of_the_clients_samples(sizes: list[int], batch: int, epochs: int, b: int) -> None:
    split = split_of(sizes)
    got = plan_batches(split, torch.arange(len(sizes)), Schedule(epochs, None, batch), Stream(0), b)
    for k, n in enumerate(sizes):
        for j in range(b):
            seen = got.index[:, j, k][got.mask[:, j, k]]
            assert len(seen) == n * epochs
            for e in range(epochs):
                assert torch.equal(seen[e * n : (e + 1) * n].sort().values, split.of_client(k))
        assert got.steps[k] == -(-n // min(batch, max(max(sizes), 1))) * epochs


@given(SIZES, st.integers(1, 8), st.integers(1, 9))
def test_a_number_of_steps_is_that_number_for_everyone_with_data(sizes: list[int], batch: int, steps: int) -> None:
    got = plan_batches(split_of(sizes), torch.arange(len(sizes)), Schedule(1, steps, batch), Stream(0))
    assert got.steps == tuple(steps if n else 0 for n in sizes)
    for k, n in enumerate(sizes):
        assert int(got.mask[:, 0, k].any(-1).sum()) == (steps if n else 0)


@given(SIZES, st.integers(1, 8), st.integers(0, 5))
def test_a_clients_batches_do_not_depend_on_the_cohort(sizes: list[int], batch: int, k: int) -> None:
    k %= len(sizes)
    schedule = Schedule(2, None, batch)
    together = plan_batches(split_of(sizes), torch.arange(len(sizes)), schedule, Stream(1)).cut(slice(k, k + 1))
    alone = plan_batches(split_of(sizes), torch.tensor([k]), schedule, Stream(1))
    assert together.steps == alone.steps
    assert torch.equal(together.index[together.mask], alone.index[alone.mask])


def test_batches_of_one_step_are_independent_and_the_first_is_everyones() -> None:
    split = split_of([20, 20])
    one = plan_batches(split, torch.arange(2), Schedule(1, None, 5), Stream(1), 1)
    three = plan_batches(split, torch.arange(2), Schedule(1, None, 5), Stream(1), 3)
    assert torch.equal(one.index[:, 0], three.index[:, 0])
    assert not torch.equal(three.index[:, 0], three.index[:, 1])


def test_the_full_batch_is_all_of_the_clients_data_in_one_step() -> None:
    got = plan_batches(split_of([3, 9]), torch.arange(2), Schedule(1, None, None), Stream(0))
    assert got.steps == (1, 1)
    assert got.mask.sum(-1).tolist() == [[[3, 9]]]


@given(SIZES, st.integers(1, 8), st.integers(1, 30), st.integers(1, 2))
def test_orders_in_a_table_and_in_strips_are_the_same(sizes: list[int], batch: int, steps: int, b: int) -> None:
    asked = split_of(sizes), torch.arange(len(sizes)), Schedule(1, steps, batch), Stream(3), b
    with pytest.MonkeyPatch.context() as patch:
        made = []
        for empty in (0, 10**9):  # never a table, always one
            patch.setattr(batches, "_EMPTY", empty)
            made.append(plan_batches(*asked))
    strips, table = made
    assert strips.steps == table.steps and torch.equal(strips.mask, table.mask)
    assert torch.equal(strips.index[strips.mask], table.index[table.mask])


def on_a_device(ids: torch.Tensor, split: Split, size: batches.Numbers) -> batches._Held:
    """As if host memory were a device's: torch does the work."""
    return batches._Held(batches._Far(ids.device), split.index, split.start[ids], ids, size)


def same(a: Batches, b: Batches) -> bool:
    tensors = ((getattr(a, name), getattr(b, name)) for name in ("index", "mask", "counts"))
    return (
        a.steps == b.steps
        and a.widths == b.widths
        and all(torch.equal(x, y) and x.dtype == y.dtype for x, y in tensors)
    )


ROUNDS = (  # sizes, epochs, steps, batch, batches a step, seed
    st.lists(st.sampled_from([0, 1, 2, 17, 20, 23, 300]), min_size=1, max_size=6),
    *(st.integers(1, 2), st.sampled_from([None, 1, 30]), st.sampled_from([None, 1, 7])),
    *(st.integers(1, 3), st.integers(0, 2**64 - 1)),
)


@given(*ROUNDS)
def test_numpy_in_host_memory_and_torch_on_a_device_agree_to_the_bit(
    sizes: list[int], epochs: int, steps: int | None, batch: int | None, b: int, seed: int
) -> None:
    split, ids = split_of(sizes), torch.arange(len(sizes)).flip(0)
    asked = split, ids, Schedule(epochs, steps, batch), Stream(seed), b
    here = plan_batches(*asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches._Held, "by", on_a_device)
        there = plan_batches(*asked, split.size[ids])
    assert same(here, there)


PINNED = {  # sizes, schedule, batches a step -> a digest of what torch gave before numpy did any of it
    "equal": ([40] * 5, Schedule(1, None, 8), 1, "0dc6556bec9a4d3f"),
    "equal, three batches a step": ([40] * 5, Schedule(2, None, 8), 3, "21606c3dafe3996a"),
    "a table with gaps": ([40, 33, 0, 27, 40, 38], Schedule(3, None, 8), 1, "f8537e1b9a70702c"),
    "a table whose first client is empty": ([0, 9, 9, 9], Schedule(1, None, 4), 2, "a91fc33e30d32d6e"),
    "strips": ([1, 300, 0, 2, 17, 5], Schedule(2, None, 16), 1, "e4352866c5e6f52d"),
    "many strips": ([*[1] * 300, 200, 3, 5], Schedule(1, None, 16), 1, "b82e7594cf676725"),
    "steps": ([1, 300, 0, 2, 17, 5], Schedule(1, 30, 16), 3, "e34e0cf08a547c74"),
    "the full batch": ([3, 9, 12], Schedule(2, None, None), 1, "241cfd6a96fe7034"),
    "nobody has anything": ([0, 0], Schedule(1, None, 4), 1, "14254b9b7a3e8648"),
}


@pytest.mark.parametrize("case", PINNED)
def test_batches_are_those_that_results_were_measured_with(case: str) -> None:
    sizes, schedule, b, told = PINNED[case]
    got = plan_batches(split_of(sizes), torch.arange(len(sizes)), schedule, Stream(7).child("batch", 3), b)
    found = hashlib.blake2b(repr((got.steps, got.widths, [*got.index.shape])).encode(), digest_size=8)
    for t in (got.index, got.mask, got.counts):
        found.update(t.contiguous().numpy().tobytes())
    assert found.hexdigest() == told
