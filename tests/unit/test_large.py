"""Files of tensors that are written piece by piece and read where they lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from equipoise import files, large
from equipoise.errors import EquipoiseError
from equipoise.large import Pieces

STATUS = Path("/proc/self/status")
DTYPES = list(large._NAMES)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (torch.arange(float(torch.Size(shape).numel())) % 100).view(shape).to(dtype)


def cut(t: Tensor, sizes: int) -> Pieces:
    return Pieces(tuple(t.shape), t.dtype, partial(torch.split, t, sizes))


@settings(max_examples=50)
@given(given_=st.dictionaries(st.text(max_size=5), st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=5))
def test_what_is_written_is_read_by_us_and_by_others(tmp_path_factory: pytest.TempPathFactory, given_: dict) -> None:  # type: ignore[type-arg]
    path = tmp_path_factory.mktemp("large") / "x.safetensors"
    tensors = {f"t:{name}": numbers(*what) for name, what in given_.items() if _can_be_written(name)}
    digest = large.write(path, tensors)
    assert files.sha256(path) == digest
    for found in (large.read(path), load_file(path)):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(t, tensors[n]) and t.dtype == tensors[n].dtype for n, t in found.items())
    again = {n: cut(t, 2) if t.dim() else t for n, t in reversed(tensors.items())}
    assert large.write(path, again) == digest
    assert all(torch.equal(t, tensors[n]) for n, t in large.whole(again).items())


def _can_be_written(name: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in name)


def test_how_a_tensor_lies_does_not_matter(tmp_path: Path) -> None:
    t = numbers((3, 4), torch.float32)
    one, other = (large.write(tmp_path / n, {"t": some}) for n, some in {"a": t, "b": t.t().contiguous().t()}.items())
    assert one == other


def test_what_no_file_can_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match=r"odd is torch\.complex64"):
        large.write(tmp_path / "x", {"odd": torch.zeros(1, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", [0, 7, 20, -1])
def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path, kept: int) -> None:
    large.write(tmp_path / "x", {"t": torch.ones(9)})
    data = (tmp_path / "x").read_bytes()
    (tmp_path / "x").write_bytes(data[:kept])
    with pytest.raises(EquipoiseError, match="not a safetensors file"):
        large.read(tmp_path / "x")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match="cannot read"):
        large.read(tmp_path / "x")


def test_what_was_read_stays_when_the_file_goes_and_takes_what_is_written_to_it(tmp_path: Path) -> None:
    large.write(tmp_path / "x", {"t": torch.ones(5)})
    t = large.read(tmp_path / "x")["t"]
    t[0] = 7
    assert large.read(tmp_path / "x")["t"].tolist() == [1.0] * 5
    (tmp_path / "x").unlink()
    assert t.tolist() == [7.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not say")
def test_neither_way_takes_the_memory_of_all(tmp_path: Path) -> None:
    rows, width, per, most = 128, 1 << 20, 4, list[int]()  # 512 MiB, in pieces of 16

    def each() -> Iterator[Tensor]:
        for n in range(rows // per):
            most.append(own_memory())
            yield torch.full((per, width), float(n))

    before = own_memory()
    large.write(tmp_path / "x", {"t": Pieces((rows, width), torch.float32, each)})
    assert max(most) - before < 200 * 1024
    before, found = own_memory(), large.read(tmp_path / "x")["t"]
    assert found[:, 0].tolist() == [float(n // per) for n in range(rows)]
    assert own_memory() - before < 200 * 1024


def own_memory() -> int:
    """KiB of this process; what it has mapped from files the system can take back."""
    return int(re.findall(r"RssAnon:\s+(\d+)", STATUS.read_text())[0])
