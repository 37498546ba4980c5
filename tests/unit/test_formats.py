"""Readers of file formats: what is written comes back, and whatever is broken is refused with its name."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import math
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from equipoise.data import formats
from equipoise.data.pickled import read_pickled
from equipoise.errors import EquipoiseError

IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def idx_bytes(array: np.ndarray[Any, Any], kind: int) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    return head + array.astype(IDX_TYPES[kind]).tobytes()


def outcome(read: Any, path: Path) -> Any:
    try:
        return read(path)
    except EquipoiseError as error:
        return error


def refuses(read: Any, path: Path, *words: str) -> None:
    with pytest.raises(EquipoiseError) as caught:
        read(path)
    for word in (path.name, *words):
        assert word in str(caught.value)


# --------------------------------------------------------------------------------------------------------- IDX


@given(data=st.data(), kind=st.sampled_from(sorted(IDX_TYPES)), packed=st.booleans())
@same_folder
def test_an_idx_file_gives_back_the_array_that_was_written(tmp_path, data, kind, packed):
    dtype = np.dtype(IDX_TYPES[kind]).newbyteorder("=")
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
    array = data.draw(hnp.arrays(dtype, shape))
    path = tmp_path / "a-idx"
    path.write_bytes(gzip.compress(idx_bytes(array, kind)) if packed else idx_bytes(array, kind))
    read = formats.read_idx(path)
    assert read.dtype == dtype
    assert read.shape == shape
    assert read.tobytes() == array.tobytes()


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda b: b"\0\0\x08" + b))
@same_folder
def test_any_bytes_are_an_idx_file_or_an_error_that_names_the_file(tmp_path, body):
    path = tmp_path / "any-idx"
    path.write_bytes(body)
    found = outcome(formats.read_idx, path)
    if isinstance(found, EquipoiseError):
        assert "any-idx" in str(found)
    else:
        assert len(body) == 4 + 4 * found.ndim + found.nbytes


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "not how an IDX file starts"),
        (b"\x89PNG\r\n\x1a\n", "89 50 4e 47"),
        (b"\0\0\x07\x01\0\0\0\x01a", "not how an IDX file starts"),
        (b"\0\0\x08\0", "not how an IDX file starts"),
        (b"\0\0\x08\x03\0\0", "ends within its head"),
        (b"\0\0\x08\x01\0\0\0\x05abc", "only 3"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "more than 2"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab", mtime=0)[:-6], "ended"),
        (b"\x1f\x8bnot gzip at all", "IDX"),
    ],
)
def test_a_broken_idx_file_is_refused_with_the_reason(tmp_path, body, word):
    path = tmp_path / "x-idx"
    path.write_bytes(body)
    refuses(formats.read_idx, path, "" if word == "IDX" else word)


@pytest.mark.parametrize("packed", [False, True])
def test_a_header_that_claims_a_gigabyte_allocates_nothing(tmp_path, packed):
    body = b"\0\0\x08\x03" + struct.pack(">3I", 1000, 1000, 1000) + bytes(84)
    path = tmp_path / "huge-idx"
    path.write_bytes(gzip.compress(body, mtime=0) if packed else body)
    tracemalloc.start()
    refuses(formats.read_idx, path, "1000000000 bytes", "only 84")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_the_checksum_is_of_the_uncompressed_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "b").write_bytes(gzip.compress(b"hello", mtime=0))
    for name in "ab":
        assert formats.digest(tmp_path / name, "md5") == "5d41402abc4b2a76b9719d911017c592"


# -------------------------------------------------------------------------------------------------- CIFAR, npz


def test_a_cifar_record_is_labels_then_red_green_blue_rows(tmp_path):
    rows = np.arange(2 * 3074).reshape(2, 3074).astype(np.uint8)
    (tmp_path / "train.bin").write_bytes(rows.tobytes())
    x, labels = formats.read_cifar(tmp_path / "train.bin", 2)
    assert labels.tolist() == rows[:, :2].tolist()
    assert x[1, 2, 5, 7] == rows[1, 2 + 2 * 1024 + 5 * 32 + 7]


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_a_cifar_file_of_the_wrong_size_is_refused(tmp_path, size):
    (tmp_path / "b.bin").write_bytes(bytes(size))
    refuses(lambda path: formats.read_cifar(path, 1), tmp_path / "b.bin", str(size), "3073")


@given(arrays=st.lists(hnp.arrays(st.sampled_from(["u1", "<f4", ">i2", "<U3"]), hnp.array_shapes()), max_size=3))
@same_folder
def test_an_npz_file_gives_back_its_arrays(tmp_path, arrays):
    named = {f"a{i}": np.asfortranarray(a) if i % 2 else a for i, a in enumerate(arrays)}
    np.savez_compressed(tmp_path / "some.npz", **named)
    read = formats.read_npz(tmp_path / "some.npz")
    assert read.keys() == named.keys()
    for name, array in named.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_object_arrays_in_an_npz_file_are_refused(tmp_path):
    np.savez(tmp_path / "o.npz", x=np.array([{"a": 1}, None], dtype=object))
    refuses(formats.read_npz, tmp_path / "o.npz", "'x' holds Python objects")


def npy_head(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize("body", [npy_head((1 << 40,)), npy_head((5,)) + bytes(8), b"", b"\x93NUMPY\x09\x00", b"junk"])
def test_a_broken_array_in_an_npz_file_is_refused_without_allocating_what_it_claims(tmp_path, body):
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
        archive.writestr("x.npy", body)
    refuses(formats.read_npz, tmp_path / "bad.npz")


def test_a_file_that_is_no_zip_is_no_npz(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    refuses(formats.read_npz, tmp_path / "bad.npz")
    refuses(formats.read_npz, tmp_path / "absent.npz")


# -------------------------------------------------------------------------------------------- text, CSV, JSON


def test_only_line_feeds_end_a_line(tmp_path):
    (tmp_path / "t").write_bytes("one\x85still one\r\n\ntwo\x0b two\n".encode("latin-1"))
    assert formats.read_lines(tmp_path / "t", "latin-1") == ["one\x85still one", "two\x0b two"]


@pytest.mark.parametrize("body", [b"", b"\n \n", b"caf\xe9"])
def test_a_text_file_without_text_or_of_another_encoding_is_refused(tmp_path, body):
    (tmp_path / "t.txt").write_bytes(body)
    refuses(formats.read_lines, tmp_path / "t.txt")


def test_a_table_leaves_out_blank_lines_and_remarks(tmp_path):
    (tmp_path / "t.csv").write_text("|remark\na, b\n\n c,d \n")
    assert formats.read_table(tmp_path / "t.csv", 2) == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize("body", ["", "a,b,c\n", "a\n", 'a,"b\n', f"a,{'b' * 200_000}\n"])
def test_a_malformed_table_is_refused(tmp_path, body):
    (tmp_path / "t.csv").write_text(body)
    refuses(lambda path: formats.read_table(path, 2), tmp_path / "t.csv")


def test_a_leaf_file_gives_each_users_samples(tmp_path):
    whole = {
        "users": ["u", "v"],
        "num_samples": [1, 0],
        "user_data": {"u": {"x": [[1]], "y": [0]}, "v": {"x": [], "y": []}},
    }
    (tmp_path / "l.json").write_text(json.dumps(whole))
    assert formats.read_leaf(tmp_path / "l.json") == {"u": ([[1]], [0]), "v": ([], [])}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[" * 100_000,
        "[1, 2]",
        '{"users": ["u"]}',
        '{"users": ["u"], "user_data": {}}',
        '{"users": ["u"], "user_data": {"u": [1]}}',
        '{"users": ["u"], "user_data": {"u": {"x": [1, 2], "y": [1]}}}',
        '{"users": [["u"]], "user_data": {"u": {"x": [1], "y": [1]}}}',
    ],
)
def test_a_malformed_leaf_file_is_refused(tmp_path, body):
    (tmp_path / "l.json").write_text(body)
    refuses(formats.read_leaf, tmp_path / "l.json")


@pytest.mark.parametrize("values", [None, "a", ["a"], [[1, 2], [3]], [1, [2]], [math.nan], [10**400], {"a": 1}])
def test_what_is_not_a_row_of_finite_numbers_is_refused(values):
    with pytest.raises(EquipoiseError, match=r"f\.json: labels"):
        formats.numbers(Path("f.json"), values, "labels")


# ------------------------------------------------------------------------------------------ CIFAR's python batches


def python2_batch(data: np.ndarray[Any, Any], labels: list[int]) -> bytes:
    """Byte for byte what Python 2's pickle writes: the form of the official files, which Python 3 cannot write."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    shape = b"".join(b"M" + struct.pack("<H", n) for n in data.shape)
    dtype = b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
    array += b"(K\x01" + shape + b"\x86" + dtype + b"\x89T" + struct.pack("<i", data.size) + data.tobytes() + b"tb"
    numbers = b"]q\x02(" + b"".join(b"K" + bytes([n]) for n in labels) + b"e"
    items = text("batch_label") + text("training batch 1 of 5") + text("labels") + numbers + text("data") + array
    return b"\x80\x02}q\x01(" + items + b"u."


@given(data=hnp.arrays(np.uint8, st.tuples(st.integers(0, 4), st.integers(1, 40))), packed=st.booleans())
@same_folder
def test_a_python_2_batch_reads_as_python_would_read_it(tmp_path, data, packed):
    body = python2_batch(data, [7] * len(data))
    expected = pickle.loads(body, encoding="latin1")  # noqa: S301 (bytes of this test's own making, as the oracle)
    path = tmp_path / "data_batch_1"
    path.write_bytes(gzip.compress(body, mtime=0) if packed else body)
    read = read_pickled(path)
    assert read.keys() == expected.keys()
    assert read["labels"] == expected["labels"]
    np.testing.assert_array_equal(read["data"], expected["data"])


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_batch_that_python_3_wrote_reads_alike(tmp_path, protocol, order):
    data = np.asarray(np.arange(600).reshape(2, 300) % 251, dtype=np.uint8, order=order)
    whole = {b"data": data, b"labels": [3, 300], "filenames": ["a.png", "b.png"], "n": -1, "t": (1, True, None)}
    (tmp_path / "b").write_bytes(pickle.dumps(whole, protocol=protocol))
    read = read_pickled(tmp_path / "b")
    np.testing.assert_array_equal(read.pop("data"), data)
    assert read == {"labels": [3, 300], "filenames": ["a.png", "b.png"], "n": -1, "t": (1, True, None)}


class Runs:
    """Pickles as a call of `function`, which any unpickler would make."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("function", [os.system, eval, exec, __import__])
def test_a_malicious_pickle_is_refused_and_never_runs(tmp_path, function, protocol):
    marker = tmp_path / "it-ran"
    shell = f"touch {marker}"
    argument = {os.system: shell, __import__: "this"}.get(function, f"__import__('os').system({shell!r})")
    evil = pickle.dumps({"data": Runs(function, argument), "labels": []}, protocol=protocol)
    (tmp_path / "data_batch_1").write_bytes(evil)
    refuses(read_pickled, tmp_path / "data_batch_1", "nothing of it was run")
    assert not marker.exists()


@pytest.mark.parametrize(
    "value",
    [
        Runs(codecs.encode, "uryyb", "rot13"),
        Runs(np.dtype, "O"),
        Runs(np.ndarray, (1 << 40,)),
        np.arange(3.0),
        np.array([None]),
        {(1, 2): 3},
        {1, 2},
        1.5,
        "x".join,
    ],
)
def test_what_cifar_does_not_hold_is_refused(tmp_path, value):
    (tmp_path / "b").write_bytes(pickle.dumps({"data": value}, protocol=2))
    refuses(read_pickled, tmp_path / "b", "refused")


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_a_damaged_batch_reads_or_is_refused_but_never_crashes(tmp_path, data):
    body = bytearray(python2_batch(np.arange(24, dtype=np.uint8).reshape(2, 12), [1, 2]))
    for place in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=3)):
        body[place] = data.draw(st.integers(0, 255))
    (tmp_path / "b").write_bytes(body[: data.draw(st.integers(0, len(body)))])
    found = outcome(read_pickled, tmp_path / "b")
    assert isinstance(found, dict) or "nothing of it was run" in str(found)
