"""Files are whole or not there, whatever happens to the one who writes them."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import files
from equipoise.errors import EquipoiseError

OPERATIONS = ("open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir")


class Killed(BaseException):
    """Stands for a process that is gone: nothing catches it."""


def fail_at(patch: pytest.MonkeyPatch, n: int, error: Callable[[], BaseException], for_good: bool) -> list[int]:
    """Let the n-th file operation fail, and with `for_good` all after it; the list counts them."""
    count = [0]

    def wrap(real: Callable[..., Any], real_thing: bool) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == n or (for_good and count[0] > n):
                raise error()
            return real(*args, **kwargs) if real_thing else None

        return operation

    for name in OPERATIONS:
        patch.setattr(os, name, wrap(getattr(os, name), name != "fsync"))
    return count


@pytest.mark.parametrize("for_good", [False, True])
def test_a_failure_at_any_operation_leaves_the_old_file_or_the_new_one(tmp_path: Path, for_good: bool) -> None:
    path, old, new = tmp_path / "file", b"old" * 100, b"new" * 200
    for n in range(1, 100):
        files.write_atomic(path, old)
        with pytest.MonkeyPatch.context() as patch:
            count = fail_at(patch, n, Killed, for_good)
            try:
                files.write_atomic(path, new)
            except Killed:
                done = False
            else:
                done = True
        assert path.read_bytes() in (old, new)
        files.clean(tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
        if done:
            break
    assert done
    assert count[0] >= 5


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append("folder" if os.path.isdir(fd) else "file"), sync(fd)))  # noqa: PTH112
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append("name"), replace(a, b)))
    files.write_atomic(tmp_path / "file", b"content")
    assert seen == ["file", "name", "folder"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_an_error_with_a_hint_and_the_old_file_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "file"
    files.write_atomic(path, b"old")
    real = os.write

    def write(fd: int, data: Any) -> int:
        if len(data) < 5000:
            raise OSError(code, os.strerror(code))
        return real(fd, data[:1000])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(EquipoiseError, match=r"cannot write .*file") as error:
        files.write_atomic(path, b"n" * 9000)
    assert "space" in error.value.hint
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_takes_a_little_at_a_time_gets_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    files.write_atomic(tmp_path / "file", bytes(range(256)))
    assert (tmp_path / "file").read_bytes() == bytes(range(256))


def test_a_missing_folder_and_a_file_in_its_place_are_errors_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match="nowhere") as error:
        files.write_atomic(tmp_path / "nowhere" / "file", b"")
    assert error.value.hint
    files.write_atomic(tmp_path / "file", b"")
    with pytest.raises(EquipoiseError, match="file"):
        files.make_folder(tmp_path / "file")
    with pytest.raises(EquipoiseError, match="gone"):
        files.read_bytes(tmp_path / "gone")


def test_the_checksum_returned_is_that_of_the_file(tmp_path: Path) -> None:
    for n, write in enumerate([files.write_atomic, files.write_json, files.write_tensors]):
        path = tmp_path / f"{n}"
        content: Any = [b"abc", {"a": 1}, {"a": torch.ones(2)}][n]
        assert write(path, content) == files.sha256(path)


def test_cleaning_takes_only_what_killed_writers_left(tmp_path: Path) -> None:
    keep = [".hidden", "a.partial", "file", "sub/file"]
    (tmp_path / "sub").mkdir()
    for name in [*keep, ".file.1-2.partial", "sub/.file.1-2.partial"]:
        (tmp_path / name).write_bytes(b"x")
    files.clean(tmp_path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(keep)


NURSERY = """
import os, signal, sys, time
import torch
from equipoise import files
folder, delays = files.Path(sys.argv[1]), [float(d) for d in sys.argv[2:]]

def write_forever():
    for i in range(10**9):
        size = 20_000 + 7_000 * (i % 5)
        files.write_json(folder / "numbers.json", {"n": [i] * (size // 10), "i": i})
        files.write_tensors(folder / "tensors", {"t": torch.full((size,), i)}, {"i": i})

def check():
    seen = 0
    if (folder / "numbers.json").exists():
        j = files.read_json(folder / "numbers.json")
        assert set(j["n"]) == {j["i"]}, "half a JSON file"
        seen += 1
    if (folder / "tensors").exists():
        t, m = files.read_tensors(folder / "tensors")
        assert (t["t"] == m["i"]).all(), "half a tensor file"
        seen += 1
    return seen

seen = 0
for delay in delays:
    child = os.fork()
    if not child:
        write_forever()
    end = time.monotonic() + delay
    while time.monotonic() < end:
        check()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    seen += check()
files.clean(folder)
print(seen, *sorted(os.listdir(folder)))
"""


def test_writers_killed_at_random_moments_never_leave_half_a_file(tmp_path: Path) -> None:
    delays = [f"{0.02 + 0.013 * i:.3f}" for i in range(12)]
    done = subprocess.run([sys.executable, "-c", NURSERY, str(tmp_path), *delays], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen, *names = done.stdout.split()
    assert int(seen) >= 12
    assert names == ["numbers.json", "tensors"]


# ----------------------------------------------------------------------------------------------------------------- JSON

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=8,
)


@given(values)
def test_json_comes_back_as_it_was(value: Any) -> None:
    assert files.decode_json(files.encode_json(value), "x") == value


@given(st.dictionaries(st.text(), scalars, min_size=2), st.randoms())
def test_json_bytes_do_not_depend_on_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert files.encode_json(dict(items)) == files.encode_json(value)


@given(values)
def test_json_is_written_in_one_way_only(value: Any) -> None:
    data = files.encode_json(value)
    assert data.endswith(b"\n")
    assert data.isascii()
    assert files.encode_json(json.loads(data)) == data


def test_json_takes_numpy_and_torch_and_writes_null_for_what_it_cannot_say() -> None:
    given_ = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf],
        "np": np.float32(0.5),
        "array": np.array([1, 2]),
        "bool": np.bool_(True),
        "tensor": torch.tensor([0.25, math.nan]),
        "tuple": (1, 2),
        "path": Path("a/b"),
        3: "key",
    }
    expected = {
        "nan": None,
        "inf": [None, None],
        "np": 0.5,
        "array": [1, 2],
        "bool": True,
        "tensor": [0.25, None],
        "tuple": [1, 2],
        "path": "a/b",
        "3": "key",
    }
    assert files.decode_json(files.encode_json(given_), "x") == expected


@pytest.mark.parametrize("value", [object(), {1, 2}, {1: 0, "1": 0}, b"bytes", 1j])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(EquipoiseError, match="JSON"):
        files.encode_json({"a": value})


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"a": 1} x', b"[" * 100_000])
def test_a_damaged_json_file_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(EquipoiseError, match=r"x\.json"):
        files.read_json(tmp_path / "x.json")


# -------------------------------------------------------------------------------------------------------------- tensors

names = st.text().filter(lambda name: name != "__metadata__")
dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8])
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(lambda shape, dtype: (torch.arange(math.prod(shape)) % 2).to(dtype).reshape(shape), shapes, dtypes)


@given(st.dictionaries(names, tensors, max_size=5), st.randoms())
def test_tensors_come_back_bit_by_bit_and_their_bytes_do_not_depend_on_order(
    given_: dict[str, torch.Tensor], random: Any
) -> None:
    data = files.encode_tensors(given_, {"a": 1, "b": [2], "c": None})
    back, metadata = files.decode_tensors(data, "x")
    assert metadata == {"a": 1, "b": [2], "c": None}
    assert set(back) == set(given_)
    for name, t in given_.items():
        assert back[name].dtype == t.dtype
        assert back[name].shape == t.shape
        assert torch.equal(back[name], t)
    items = list(given_.items())
    random.shuffle(items)
    assert files.encode_tensors(dict(items), {"c": None, "b": [2], "a": 1}) == data


def test_views_and_shared_and_odd_tensors_are_written_as_what_they_show() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    given_ = {"t": base.T, "row": base[1], "again": base, "nan": torch.tensor([math.nan, -0.0, math.inf])}
    given_["grad"] = torch.ones(2, requires_grad=True)
    back, _ = files.decode_tensors(files.encode_tensors(given_), "x")
    assert all(torch.equal(back[k], v) for k, v in given_.items() if k != "nan")
    assert back["nan"].numpy().tobytes() == given_["nan"].numpy().tobytes()


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_names_that_the_format_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(EquipoiseError, match="name"):
        files.encode_tensors({name: torch.ones(1)})


@settings(max_examples=60)
@given(st.data())
def test_a_truncated_or_scrambled_tensor_file_is_an_error_or_readable_and_never_a_crash(data: st.DataObject) -> None:
    whole = files.encode_tensors({"a": torch.ones(3), "b": torch.ones(2, dtype=torch.int64)}, {"x": 1})
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(EquipoiseError, match="safetensors"):
        files.decode_tensors(whole[:cut], "x")
    scrambled = bytearray(whole)
    scrambled[cut] ^= data.draw(st.integers(1, 255))
    with suppress(EquipoiseError):
        files.decode_tensors(bytes(scrambled), "x")


# ------------------------------------------------------------------------------------------------------------- the lock

HOLDER = """
import sys, time
from equipoise import files
with files.Lock(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_the_lock_keeps_other_processes_out_and_is_freed_when_its_holder_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(EquipoiseError, match=str(holder.pid)) as error, files.Lock(tmp_path):
            pass
        assert str(tmp_path) in error.value.message
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate()
    with files.Lock(tmp_path):
        pass


def test_the_lock_works_within_a_process_and_can_be_taken_again(tmp_path: Path) -> None:
    first, second = files.Lock(tmp_path), files.Lock(tmp_path)
    for _ in range(2):
        with first, pytest.raises(EquipoiseError, match=str(os.getpid())):
            second.acquire()
    with second:
        pass


def test_locking_where_there_is_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match="lock"):
        files.Lock(tmp_path / "nowhere").acquire()
