"""Batches: every client sees all of its data in every epoch, in an order of its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.at import Schedule
from equipoise.data.federation import Split
from equipoise.engine import batches
from equipoise.engine.batches import plan_batches
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
