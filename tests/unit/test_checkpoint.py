"""A checkpoint is whole or passed over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import files
from equipoise.engine.checkpoint import Checkpoint, flatten, load_latest, save, unflatten
from equipoise.errors import EquipoiseError


def sample(round: int, parts: tuple[tuple[str, str], ...] = ()) -> Checkpoint:
    tensors = {
        "model": torch.arange(3.0) + round,
        "double": torch.tensor([0.1], dtype=torch.float64),
        "ids": torch.tensor([3, 1], dtype=torch.int64),
        "mask": torch.tensor([True, False]),
        "none": torch.empty(0, 4),
        "__metadata__": torch.tensor(1.5),
        "ä/~ \n": torch.ones(1),
    }
    return Checkpoint(round, tensors, {"round": round, "nested": {"a": [1, None, "x"]}}, parts)


def assert_same(a: Checkpoint | None, b: Checkpoint) -> None:
    assert a is not None
    assert (a.round, a.meta, a.parts) == (b.round, b.meta, b.parts)
    assert set(a.tensors) == set(b.tensors)
    for name, t in b.tensors.items():
        assert a.tensors[name].dtype == t.dtype
        assert torch.equal(a.tensors[name], t)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    part = (
        "parts/rounds-000003.json",
        files.write_atomic(files.make_folder(tmp_path / "parts") / "rounds-000003.json", b"x"),
    )
    save(tmp_path, sample(3, (part,)))
    assert_same(load_latest(tmp_path, warn=pytest.fail), sample(3, (part,)))


def test_no_folder_and_no_checkpoint_are_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "nowhere") is None
    assert load_latest(tmp_path) is None


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_stay_and_the_others_go(tmp_path: Path, keep: int) -> None:
    for round in (0, 5, 10, 999_999, 1_000_000):
        save(tmp_path, sample(round), keep=keep)
        assert_same(load_latest(tmp_path), sample(round))
    left = sorted(p.name for p in (tmp_path / "checkpoint").iterdir())
    stems = ["r000010", "r1000000", "r999999"] if keep == 3 else ["r1000000", "r999999"][:keep]
    assert left == sorted(f"{s}.{e}" for s in stems for e in ("json", "safetensors"))


def test_tensors_without_a_manifest_are_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, sample(1))
    save(tmp_path, sample(2))
    (tmp_path / "checkpoint" / "r000002.json").unlink()
    assert_same(load_latest(tmp_path, warn=pytest.fail), sample(1))


def test_the_same_checkpoint_has_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        save(tmp_path / folder, sample(7))
    for name in ("r000007.json", "r000007.safetensors"):
        assert (tmp_path / "a" / "checkpoint" / name).read_bytes() == (
            tmp_path / "b" / "checkpoint" / name
        ).read_bytes()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints 1 and 2, the second with a part of its own."""
    folder = tmp_path_factory.mktemp("two")
    digest = files.write_atomic(files.make_folder(folder / "parts") / "rows", b"some rows")
    save(folder, sample(1))
    save(folder, sample(2, (("parts/rows", digest),)))
    return folder


DAMAGED = ("checkpoint/r000002.json", "checkpoint/r000002.safetensors", "parts/rows")


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_seen_and_the_checkpoint_before_is_used(two: Path, data: st.DataObject) -> None:
    path = two / data.draw(st.sampled_from(DAMAGED))
    whole = path.read_bytes()
    at, flip = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    said: list[str] = []
    try:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        assert_same(load_latest(two, said.append), sample(1))
    finally:
        path.write_bytes(whole)
    assert len(said) == 1
    assert "round 2" in said[0]
    assert path.name in said[0]


def test_every_position_of_the_manifest_counts(two: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    path = folder / "checkpoint" / "r000002.json"
    whole = path.read_bytes()
    for at, byte in enumerate(whole):
        other = b"\t" if bytes([byte]).isspace() else bytes([byte ^ 1])
        path.write_bytes(whole[:at] + other + whole[at + 1 :])
        assert_same(load_latest(folder, lambda _: None), sample(1))


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("how", ["cut", "empty", "longer", "gone"])
def test_a_file_cut_short_or_gone_is_seen(two: Path, tmp_path: Path, name: str, how: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    path, whole = folder / name, (folder / name).read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": whole[:-1], "empty": b"", "longer": whole + b" "}[how])
    assert_same(load_latest(folder, lambda _: None), sample(1))


def test_a_checkpoint_under_the_name_of_another_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, sample(1))
    for end in ("json", "safetensors"):
        shutil.copy(tmp_path / "checkpoint" / f"r000001.{end}", tmp_path / "checkpoint" / f"r000009.{end}")
    assert_same(load_latest(tmp_path, lambda _: None), sample(1))


def test_when_all_are_damaged_there_is_none_and_each_is_reported(two: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(two, folder)
    for path in (folder / "checkpoint").glob("*.json"):
        path.write_text("{}")
    said: list[str] = []
    assert load_latest(folder, said.append) is None
    assert len(said) == 2


def test_saving_clears_away_damaged_ones_of_later_rounds(tmp_path: Path) -> None:
    for round in (10, 20):
        save(tmp_path, sample(round))
    (tmp_path / "checkpoint" / "r000020.safetensors").write_bytes(b"")
    assert_same(load_latest(tmp_path, lambda _: None), sample(10))
    save(tmp_path, sample(15))
    assert_same(load_latest(tmp_path, pytest.fail), sample(15))
    assert sorted(p.stem for p in (tmp_path / "checkpoint").glob("*.json")) == ["r000010", "r000015"]


@pytest.mark.parametrize(("round", "keep"), [(-1, 2), (1, 0)])
def test_senseless_rounds_and_counts_are_refused(tmp_path: Path, round: int, keep: int) -> None:
    with pytest.raises(EquipoiseError, match="keep"):
        save(tmp_path, Checkpoint(round, {}), keep=keep)


# ------------------------------------------------------------------------------------------------------- nested states

leaves = st.integers(0, 3).map(lambda n: torch.arange(n))
nested = st.recursive(leaves, lambda v: st.dictionaries(st.text("ab/~01", max_size=4), v, max_size=3), max_leaves=6)


def plain(value: Any) -> Any:
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value.tolist()


@given(st.dictionaries(st.text("ab/~01", max_size=4), nested, max_size=3))
def test_nested_states_come_back_also_when_empty_and_with_any_key(state: dict[str, Any]) -> None:
    flat = flatten(state)
    assert all(isinstance(t, torch.Tensor) for t in flat.values())
    assert plain(unflatten(flat)) == plain(state)


def test_names_are_joined_by_a_stroke() -> None:
    assert list(flatten({"a": {"b": torch.ones(1)}, "c": torch.ones(1)})) == ["a/b", "c"]


@pytest.mark.parametrize("state", [{"a": 1}, {"a": {"b": [torch.ones(1)]}}, {1: torch.ones(1)}])
def test_a_state_of_anything_but_tensors_is_refused(state: Any) -> None:
    with pytest.raises(EquipoiseError, match="state"):
        flatten(state)


def test_a_name_that_is_both_a_tensor_and_a_group_is_refused() -> None:
    for names in (("a", "a/b"), ("a/b", "a")):
        with pytest.raises(EquipoiseError, match="inside a tensor"):
            unflatten({name: torch.ones(1) for name in names})
