"""Streams: values, not machines."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import streams
from equipoise.streams import Stream


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 10**6))
def test_bits_are_splitmix64_of_the_ids(seed: int, a: int, b: int) -> None:
    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return z ^ (z >> 31)

    z = seed
    for i in (a, b):
        z = mix((z + (i + 1) * 0x9E3779B97F4A7C15) % 2**64)
    assert int(Stream(seed).bits(torch.tensor(a), torch.tensor(b))) % 2**64 == z


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    st.lists(st.integers(-5, 10**6), min_size=1, max_size=5),
    st.sampled_from(["int64", "int32"]),
)
def test_arrays_get_the_numbers_of_tensors(seed: int, a: list[int], b: list[int], kind: str) -> None:
    s, ids = Stream(seed), (np.array(a)[:, None], np.array(b, kind))
    tensors = [torch.from_numpy(i) for i in ids]
    for draw in (s.bits, s.uniform, lambda *i: s.integers(1000, *i)):
        here, there = draw(*ids), draw(*tensors)
        assert here.dtype == there.numpy().dtype and np.array_equal(here, there.numpy())


def test_numbers_are_those_that_results_were_measured_with() -> None:
    s, at = Stream(5).child("pinned"), np.arange(3)
    assert s.bits(at[:2, None], at).tolist() == [
        [-6717557074905391423, 8159349435718034654, -8722039453293204241],
        [2472058672064288582, 3844232489221621856, 6331806860415347962],
    ]
    assert s.uniform(at).tolist() == [0.47834582320218044, 0.23984697449086045, 0.43824961971871645]
    assert s.integers(10**6, at).tolist() == [478345, 239846, 438249]


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    s, ids, place = Stream(5).child("batch", 3), torch.arange(100), torch.arange(50)
    whole = s.bits(ids[:, None], place)
    assert torch.equal(whole[[7, 99]], s.bits(torch.tensor([[7], [99]]), place))


def test_children_differ_by_name_and_kind_of_name() -> None:
    s = Stream(1)
    keys = [s.child(n).key for n in ("a", "b", 1, "1")] + [s.child("a", "b").key, s.child("a").child("b").key, s.key]
    assert len(set(keys)) == len(keys)


def test_uniform_normal_and_integers_have_their_laws() -> None:
    at = torch.arange(200_000)
    u, z, i = Stream(2).uniform(at), Stream(3).normal(at), Stream(4).integers(7, at)
    assert float(u.min()) >= 0 and float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(z.mean()) == pytest.approx(0, abs=0.01)
    assert float(z.std()) == pytest.approx(1, abs=0.01)
    assert float((z**4).mean()) == pytest.approx(3, abs=0.1)
    assert np.allclose(torch.bincount(i) / len(at), 1 / 7, atol=0.005)
    assert abs(float(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1])) < 0.01


def test_generators_repeat_and_leave_the_global_one_alone() -> None:
    before, s = torch.get_rng_state(), Stream(9)
    assert torch.equal(torch.rand(3, generator=s.torch()), torch.rand(3, generator=s.torch()))
    assert np.array_equal(s.numpy().random(3), s.numpy().random(3))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "shapes", [((3, 1), (5000,)), ((5000, 1), (3,)), ((7, 1, 1), (911, 1), (2,)), ((9001,),), ((1,), (9001,))]
)
def test_normal_numbers_are_the_same_however_many_are_drawn_at_once(
    shapes: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [torch.arange(math.prod(s)).view(s) + 10 * i for i, s in enumerate(shapes)]
    whole = Stream(3)._normal(*ids)
    for piece in (1, 64, 1000, 1 << 20):
        monkeypatch.setattr(streams, "_PIECE", piece)
        assert torch.equal(Stream(3).normal(*ids), whole)
