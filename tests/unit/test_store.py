"""The client store keeps what it was given, wherever that is, and room only for those who gave something."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.engine import store as stores
from equipoise.engine.store import ClientStore, Lane, Place
from equipoise.errors import EquipoiseError


class SlowLane(Lane):
    """A device that is always behind: it copies rows out of its memory when somebody waits for it, and no earlier."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.queue: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []
        self.outside: list[Tensor] = []
        self.waits = 0

    def block(self, place: Place, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.outside.append(super().block(place, shape, dtype))
        return self.outside[-1]

    def leaving(self, mapped: Tensor) -> Tensor:
        return mapped.clone()

    def landing(self, mapped: Tensor) -> Tensor:
        self.outside.append(torch.ones_like(mapped))
        return self.outside[-1]

    def copy(self, to: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        ours = {t.untyped_storage().data_ptr() for t in self.outside}
        if any(t.untyped_storage().data_ptr() in ours for t in to):
            self.queue.append((to, [row.clone() for row in rows]))
        else:  # into the device's own memory, where nobody looks before the device does
            self.run()
            super().copy(to, rows)

    def run(self) -> None:
        for to, rows in self.queue:
            super().copy(to, rows)
        self.queue.clear()

    def arrival(self) -> Callable[[], object]:
        def wait() -> None:
            self.waits += 1
            self.run()

        return wait


@contextmanager
def kept(place: str, slow: bool = False, block: int = 48) -> Iterator[Callable[[int], ClientStore]]:
    """Stores with small blocks, all in one place or mixed, with a device that is in time or late.

    Mixed: half of what is free is room for a block on the device and one in host memory; the others go to files.
    """
    wish = "auto" if place == "mixed" else place
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "_BLOCK", block)
        patch.setattr(stores, "_MANY", 1)
        patch.setattr(stores, "free_memory", lambda device: (2 * block, 2 * block))
        patch.setattr(stores, "Lane", SlowLane if slow else Lane)
        yield lambda n: ClientStore(n, personal=wish)  # type: ignore[arg-type]


PLACES = pytest.mark.parametrize("place", ["device", "host", "disk", "mixed"])
LANES = pytest.mark.parametrize("slow", [False, True], ids=["in time", "late"])


@PLACES
@LANES
@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), max_size=8))
def test_the_last_row_put_is_the_row_got(place: str, slow: bool, puts: list[list[int]]) -> None:
    with kept(place, slow, block=96) as made:
        store, truth = made(31), {}
        for n, ids in enumerate(puts):
            rows = torch.tensor([[100.0 * n + i, i] for i in ids])
            state = {"a": rows, "b": rows[:, 0], "odd": rows[:, :1] > 7, "wide": rows.double()[:, None].repeat(1, 3, 1)}
            truth.update(dict(zip(ids, rows.clone(), strict=True)))
            store.put(torch.tensor(ids), {**state, "none": rows[:, :0]})
            rows.zero_()  # what was put is put, whatever becomes of the tensor
        assert store.ids().tolist() == sorted(truth)
        for some in (sorted(truth), sorted(truth)[::-2]) if truth else ():
            right, got = torch.stack([truth[i] for i in some]), store.get(torch.tensor(some))
            assert torch.equal(got["a"], right) and torch.equal(got["b"], right[:, 0])
            assert torch.equal(got["odd"], right[:, :1] > 7) and got["odd"].dtype == torch.bool
            assert torch.equal(got["wide"], right.double()[:, None].repeat(1, 3, 1))
            assert got["none"].shape == (len(some), 0)
        again = made(31)
        again.load(store.dump())
        assert again.dump().keys() == store.dump().keys()
        assert all(torch.equal(t, again.dump()[n]) for n, t in store.dump().items())
        if truth:
            assert all(t.shape[0] == 0 for t in store.get(torch.empty(0, dtype=torch.int64)).values())


@PLACES
def test_what_was_got_or_dumped_stays_as_it_was(place: str) -> None:
    with kept(place) as made:
        store, ids = made(12), torch.arange(12)
        store.put(ids, {"a": torch.zeros(12, 3)})
        got, dumped = store.get(ids), store.dump()
        store.put(ids, {"a": torch.ones(12, 3)})
        store.dump()
        assert float(got["a"].sum()) == float(dumped["rows/a"].sum()) == 0


def test_clients_without_state_take_no_room() -> None:
    store = ClientStore(1_000_000)
    store.put(torch.arange(10), {})
    assert store.dump() == {} and store.places() == {}
    store.put(torch.tensor([5, 999_999]), {"a": torch.ones(2, 3)})
    assert store.dump()["rows/a"].shape == (2, 3)


# ------------------------------------------------------------------------------------------------------- growing


def test_growing_moves_no_row_and_room_follows_the_clients_seen() -> None:
    with kept("device", block=1 << 10) as made:
        store, first = made(1_000_000), []
        for n in range(10):
            store.put(torch.arange(10 * n, 10 * n + 10), {"a": torch.full((10, 16), float(n))})
            table = store._tables["a"]
            first = first or [table.blocks[0][1].data_ptr()]
            assert table.blocks[0][1].data_ptr() == first[0]
            assert 0 <= table.room - 10 * (n + 1) < table.length == 16
        assert torch.equal(store.get(torch.arange(100))["a"][:, 0], torch.arange(10.0).repeat_interleave(10))


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_a_block_is_one_for_a_small_table_and_else_loses_little_of_a_power_of_two(row: int, n: int) -> None:
    table = stores.Table(torch.empty((0, row), dtype=torch.uint8), n, Lane(torch.device("cpu")))
    assert table.length == n or table.bytes > 1 << 27
    if table.length < n:
        whole = 1 << (table.bytes - 1).bit_length()
        assert whole - table.bytes < whole / 8


# ------------------------------------------------------------------------------------------------- where blocks go


def test_auto_fills_half_of_the_device_then_half_of_the_host_then_files() -> None:
    assert stores.rooms("auto", 100, 40) == {"device": 50, "host": 20, "disk": float("inf")}
    for place in ("device", "host", "disk"):
        assert stores.rooms(place, 0, 0) == {place: float("inf")}
    with kept("mixed") as made:
        store = made(100)
        store.put(torch.arange(12), {"a": torch.ones(12, 4)})  # 3 rows in a block
        assert store.places() == {"a": ["device", "host", "disk", "disk"]}


def test_tables_share_the_room_in_a_place() -> None:
    with kept("mixed") as made:
        store = made(3)
        store.put(torch.arange(3), {n: torch.ones(3, 4) for n in "abc"})
        assert store.places() == {"a": ["device"], "b": ["host"], "c": ["disk"]}


def test_a_smaller_table_finds_room_where_a_larger_one_did_not() -> None:
    with kept("mixed") as made:
        store = made(3)
        store.put(torch.arange(3), {"small": torch.ones(3, 1), "large": torch.ones(3, 4), "tiny": torch.ones(3, 2)})
        assert store.places() == {"small": ["device"], "large": ["host"], "tiny": ["device"]}


def test_without_a_gpu_the_host_is_the_device() -> None:
    on_device, besides = stores.free_memory(torch.device("cpu"))
    assert 0 < on_device <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") and besides == 0


def test_a_container_has_what_its_limit_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = {"/proc/meminfo": {"MemAvailable:": 1000}}
    monkeypatch.setattr(stores, "_lines", lambda path, before="": told.get(path, {}))
    assert stores.free_memory(torch.device("cpu"))[0] == 1000 * 1024
    told["/sys/fs/cgroup/memory.max"] = {"max": 5000}
    told["/sys/fs/cgroup/memory.stat"] = {"anon": 1000}
    assert stores.free_memory(torch.device("cpu"))[0] == 4000
    told["/sys/fs/cgroup/memory.stat"] = {"anon": 6000}
    assert stores.free_memory(torch.device("cpu"))[0] == 0


def test_the_kernels_files_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("MemTotal:       24689764 kB\nMemAvailable:   23000000 kB\nodd\n")
    assert stores._lines(str(path)) == {"MemTotal:": 24689764, "MemAvailable:": 23000000}
    path.write_text("max\n")
    assert stores._lines(str(path), "max ") == {}
    path.write_text("1073741824\n")
    assert stores._lines(str(path), "max ") == {"max": 1073741824}
    assert stores._lines(str(tmp_path / "nothing")) == {}


# ------------------------------------------------------------------------------------------------------- the disk


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_files_have_no_name_so_whoever_is_killed_leaves_nothing(folder: Path) -> None:
    with kept("disk") as made:
        store = made(40)
        store.put(torch.arange(40), {"a": torch.arange(120.0).view(40, 3)})
        assert set(store.places()["a"]) == {"disk"} and list(folder.iterdir()) == []
        maps = Path("/proc/self/maps")
        ours = (
            [line.split()[1] for line in maps.read_text().splitlines() if f"{folder}/" in line] if maps.exists() else []
        )
        assert not maps.exists() or set(ours) == {"rw-s"}  # what is written goes to the file, and leaves the memory
        assert torch.equal(store.get(torch.tensor([39]))["a"], torch.tensor([[117.0, 118.0, 119.0]]))


def test_a_full_disk_is_named_with_what_is_wanted_and_what_is_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10_000, 9_000, 1_000))
    with pytest.raises(EquipoiseError, match=r"needs 4,000 bytes more in .*, where 1,000 are free\n.*TMPDIR"):
        ClientStore(100, personal="disk").put(torch.arange(1), {"a": torch.ones(1, 10)})
    assert list(folder.iterdir()) == []


def test_room_is_taken_when_a_file_is_made_not_when_it_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(EquipoiseError, match=r"cannot keep 4,000 bytes of the clients' state in .*No space left"):
        ClientStore(100, personal="disk").put(torch.arange(1), {"a": torch.ones(1, 10)})
    assert list(folder.iterdir()) == []


# ------------------------------------------------------------------------------------------------------- the lane


def test_nobody_waits_for_rows_on_their_way_to_a_file_until_their_table_is_asked_again() -> None:
    with kept("disk", slow=True) as made:
        store, ids = made(6), torch.arange(6)
        lane = store._lane
        assert isinstance(lane, SlowLane)
        for n in range(3):
            store.put(ids, {"a": torch.full((6, 2), 1.0 + n), "b": torch.full((6,), -1.0 - n)})
            assert lane.waits == 2 * n and lane.queue
        assert torch.equal(store.get(ids)["a"], torch.full((6, 2), 3.0))
        assert lane.waits == 6 and not lane.queue
        store.get(ids)
        assert lane.waits == 6
