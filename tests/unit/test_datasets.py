"""Datasets by name: every one is written small in its own format and read back."""

from __future__ import annotations

import gzip
import importlib.util
import json
import pickle
import re
import struct
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data import find
from equipoise.data.catalogue import CATALOGUE
from equipoise.data.datasets import load
from equipoise.data.loaders import CHARACTERS
from equipoise.data.tokens import words
from equipoise.errors import EquipoiseError

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    """A machine without any dataset, whose cache folder is the test's own."""
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(find, "SYSTEM", (tmp_path / "system",))


# ------------------------------------------------------------------------------------------- small copies of each


def write_idx(path: Path, array: np.ndarray[Any, Any], kind: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = array.astype(">i4" if kind == 12 else "u1").tobytes()
    path.write_bytes(struct.pack(f">4B{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + body)


def pixels(*shape: int) -> np.ndarray[Any, Any]:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def make_idx(folder: Path, train: str = "train", test: str = "t10k", first: int = 0) -> None:
    for name, n in ((train, 6), (test, 3)):
        write_idx(folder / f"{name}-images-idx3-ubyte", pixels(n, 4, 5))
        write_idx(folder / f"{name}-labels-idx1-ubyte", np.arange(n) + first)


def make_leaf(folder: Path, train: dict[str, tuple[Any, Any]], test: dict[str, tuple[Any, Any]]) -> None:
    for part, users in (("train", train), ("test", test)):
        data = {u: {"x": x, "y": y} for u, (x, y) in users.items()}
        (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / part / "all_data_0.json").write_text(json.dumps({"users": list(users), "user_data": data}))


def make_femnist(folder: Path) -> None:
    images = (pixels(3, 784) / 255).tolist()
    make_leaf(folder, {"f2": (images[:1], [61]), "f1": (images[1:], [0, 35])}, {"f1": (images[:1], [9])})


def make_shakespeare(folder: Path) -> None:
    make_leaf(folder, {"ROMEO": ([CHARACTERS, "a" * 80], ["\n", "}"])}, {"JULIET": (["b" * 80], ["c"])})


def make_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        np.concatenate([rng.integers(0, 10, (2, 1), dtype=np.uint8), pixels(2, 3072)], 1).tofile(folder / name)


def make_cifar100(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train.bin", "test.bin"):
        np.concatenate([np.array([[19, 99], [0, 1]], np.uint8), pixels(2, 3072)], 1).tofile(folder / name)


def make_texts(folder: Path, files: dict[str, str], encoding: str = "utf-8") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode(encoding))


def make_mr(folder: Path) -> None:
    make_texts(
        folder, {"rt-polarity.pos": "good\x85 caf\xe9 !\ngood film\n", "rt-polarity.neg": "bad film\n"}, "latin-1"
    )


def make_sst(folder: Path) -> None:
    parts = {"train": "0 a dull , dull film\n1 a joy\n", "dev": "1 fresh\n", "test": "0 a dull surprise\n1 joy\n"}
    fine = {f"stsa.fine.{k}": v.replace("1 ", "4 ") for k, v in parts.items()}
    make_texts(folder, {**{f"stsa.binary.{k}": v for k, v in parts.items()}, **fine})


def make_vehicle(folder: Path) -> None:
    data = {"users": ["f_1", "f_0"], "user_data": {"f_1": {"x": [[0.5] * 100], "y": [[-1]]}}}
    data["user_data"]["f_0"] = {"x": [[1] * 100, [2] * 100], "y": [1, -1]}
    make_texts(folder, {"mytrain.json": json.dumps(data)})


def adult_row(age: int, work: str, sex: str, income: str, education: str = "HS-grad") -> str:
    return f"{age}, {work}, 1000, {education}, 9, Divorced, Sales, Wife, White, {sex}, 0, 0, 40, Peru, {income}\n"


def make_adult(folder: Path) -> None:
    train = adult_row(20, "?", "Male", "<=50K") + adult_row(40, "Private", "Female", ">50K", "Masters") + "\n"
    test = "|1x3 Cross validator\n" + adult_row(50, "Never-seen", "Male", ">50K.") + "\n"
    make_texts(folder, {"adult.data": train, "adult.test": test})


MAKERS = {
    "mnist": make_idx,
    "fashion-mnist": make_idx,
    **{
        f"emnist-{s}": lambda f, s=s: make_idx(f, f"emnist-{s}-train", f"emnist-{s}-test", int(s == "letters"))
        for s in ("byclass", "balanced", "letters", "digits")
    },
    "cifar-10": make_cifar10,
    "cifar-100": make_cifar100,
    "femnist": make_femnist,
    "shakespeare": make_shakespeare,
    "mr": make_mr,
    "sst": make_sst,
    "vehicle": make_vehicle,
    "adult": make_adult,
}
SAMPLES = {"cifar-10": 12, "cifar-100": 4, "femnist": 4, "shakespeare": 3, "mr": 3, "sst": 5, "vehicle": 3, "adult": 3}


@pytest.fixture(params=sorted(MAKERS))
def small(request, tmp_path) -> tuple[str, Path]:
    """A dataset's name, and a folder with a small copy of it."""
    MAKERS[request.param](tmp_path / "small")
    return request.param, tmp_path / "small"


def same(a: Any, b: Any) -> None:
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert a.attributes.keys() == b.attributes.keys()
    assert all(torch.equal(a.attributes[k], b.attributes[k]) for k in a.attributes)


def test_every_dataset_loads_from_files_in_its_own_format(small):
    name, folder = small
    data = load(name, folder=folder)
    assert len(data) == len(data.y) == SAMPLES.get(name, 9)
    assert data.y.dtype == torch.int64
    assert data.classes == CATALOGUE[name].classes
    assert 0 <= int(data.y.min()) <= int(data.y.max()) < data.classes
    assert data.source
    assert data.licence
    for column in data.attributes.values():
        assert column.dtype == torch.int64
        assert column.shape == data.y.shape
    if "part" in data.attributes:
        assert data.attributes["part"].unique().tolist() == [0, 1]
        assert data.attributes["part"].diff().ge(0).all()
    if data.x.dtype == torch.uint8:
        assert data.x.ndim == 4
        assert data.scale == 1 / 255


def test_gzipped_files_load_the_same(small):
    name, folder = small
    plain = load(name, folder=folder)
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    same(plain, load(name, folder=folder))


def test_an_empty_file_is_refused_by_name(small):
    name, folder = small
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "fine" not in p.name):
        whole = path.read_bytes()
        path.write_bytes(b"")
        with pytest.raises(EquipoiseError, match=re.escape(str(path))):
            load(name, folder=folder)
        path.write_bytes(whole)


def test_half_a_binary_file_is_refused_by_name(small):
    name, folder = small
    for path in sorted(p for p in folder.rglob("*") if "ubyte" in p.name or p.suffix in (".bin", ".json")):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2 - 1])
        with pytest.raises(EquipoiseError, match=re.escape(str(path))):
            load(name, folder=folder)
        path.write_bytes(whole)


# ------------------------------------------------------------------------------------------------- each in detail


def test_digits_come_with_the_package_and_equal_their_source():
    data = load("digits")
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == torch.uint8
    assert data.scale == 1 / 16
    assert "part" not in data.attributes
    assert float(data.inputs(torch.arange(1797)).max()) == 1.0
    source = importlib.util.find_spec("sklearn")  # its file is read without importing it, which takes seconds
    if source is None or source.origin is None:
        pytest.skip("scikit-learn, where the digits come from, is not installed")
    rows = np.loadtxt(Path(source.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    np.testing.assert_array_equal(data.x.flatten(1), rows[:, :-1])
    np.testing.assert_array_equal(data.y, rows[:, -1])


def make_writers(folder: Path, train: list[int], test: list[int]) -> None:
    for part, writers in (("train", train), ("test", test)):
        rows = np.zeros((len(writers), 8), np.int64)
        rows[:, 0], rows[:, 2] = np.arange(len(writers)), writers
        write_idx(folder / f"qmnist-{part}-labels-idx2-int", rows, 12)


def test_mnist_knows_its_writers_where_the_labels_of_qmnist_are(tmp_path):
    make_idx(tmp_path / "mnist")
    assert "writer" not in load("mnist", folder=tmp_path / "mnist").attributes
    make_writers(tmp_path / "mnist-writers", [2154, 0, 2154, 7, 7, 0], [9, 9, 8, 5000])
    data = load("mnist", folder=tmp_path / "mnist")
    assert data.attributes["writer"].tolist() == [4, 0, 4, 1, 1, 0, 3, 3, 2]


def test_mnist_finds_writers_in_the_cache_folder_too(tmp_path, monkeypatch):
    make_idx(tmp_path / "data" / "mnist")
    make_writers(tmp_path / "cache" / "equipoise" / "mnist-writers", [1] * 6, [2] * 3)
    assert "writer" not in load("mnist", folder=tmp_path / "data" / "mnist").attributes
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "data"))
    assert load("mnist").attributes["writer"].tolist() == [0] * 6 + [1] * 3


def test_writers_of_other_digits_are_refused(tmp_path):
    make_idx(tmp_path / "mnist", first=1)
    make_writers(tmp_path / "mnist-writers", [1] * 6, [2] * 3)
    with pytest.raises(EquipoiseError, match="does not belong to these digits"):
        load("mnist", folder=tmp_path / "mnist")


def test_emnist_images_stand_upright_and_letters_count_from_0(tmp_path):
    make_idx(tmp_path, "emnist-letters-train", "emnist-letters-test", 1)
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 3, 20] = 255  # stored column by column: row 20, column 3 of the upright image
    write_idx(tmp_path / "emnist-letters-train-images-idx3-ubyte", np.repeat(image, 6, 0))
    write_idx(tmp_path / "emnist-letters-test-images-idx3-ubyte", np.repeat(image, 3, 0))
    data = load("emnist-letters", folder=tmp_path)
    assert data.x[0, 0].nonzero().tolist() == [[20, 3]]
    assert data.x.is_contiguous()
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize("classes", [10, 100])
def test_both_forms_of_cifar_hold_the_same(tmp_path, classes):
    name = f"cifar-{classes}"
    MAKERS[name](tmp_path / "bin")
    binary = load(name, folder=tmp_path / "bin")
    (tmp_path / "py").mkdir()
    labels = ["labels"] if classes == 10 else ["coarse_labels", "fine_labels"]
    for path in (tmp_path / "bin").iterdir():
        rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(2, -1)
        batch = {b"data": rows[:, -3072:], **{key.encode(): rows[:, i].tolist() for i, key in enumerate(labels)}}
        (tmp_path / "py" / path.stem).write_bytes(pickle.dumps(batch, protocol=2))
    same(binary, load(name, folder=tmp_path / "py"))
    assert binary.attributes["part"].tolist() == ([0] * 10 if classes == 10 else [0] * 2) + [1] * 2
    if classes == 100:
        assert binary.y.tolist() == [99, 1, 99, 1]
        assert binary.attributes["coarse"].tolist() == [19, 0, 19, 0]


@pytest.mark.parametrize("batch", [{}, {"data": [1]}, {"data": np.zeros((2, 3072), np.uint8), "labels": [1]}])
def test_a_python_batch_without_its_parts_is_refused(tmp_path, batch):
    for name in CATALOGUE["cifar-10"].variants[1].files:
        (tmp_path / name.name).write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(EquipoiseError, match="data_batch_1"):
        load("cifar-10", folder=tmp_path)


def test_femnist_has_writers_and_parts_in_both_forms(tmp_path):
    make_femnist(tmp_path / "leaf" / "data")
    leaf = load("femnist", folder=tmp_path / "leaf")
    assert leaf.y.tolist() == [61, 0, 35, 9]
    assert leaf.attributes["writer"].tolist() == [1, 0, 0, 0]
    assert leaf.attributes["part"].tolist() == [0, 0, 0, 1]
    assert torch.equal(leaf.x[0], leaf.x[3])
    (tmp_path / "npz").mkdir()
    arrays = {"x": leaf.x[:, 0].numpy(), "y": leaf.y.numpy(), "writer": np.array([7, 4, 4, 4]), "split": [2, 0, 0, 1]}
    np.savez(tmp_path / "npz" / "some.npz", **arrays)
    npz = load("femnist", folder=tmp_path / "npz")
    assert npz.attributes["official_split"].tolist() == [2, 0, 0, 1]
    same(leaf, replace(npz, attributes={k: v for k, v in npz.attributes.items() if k != "official_split"}))
    np.savez(tmp_path / "npz" / "some.npz", x=arrays["x"], y=arrays["y"])
    with pytest.raises(EquipoiseError, match=r"some\.npz: has no array 'writer'"):
        load("femnist", folder=tmp_path / "npz")


def test_femnist_inverted_is_light_on_black_in_both_forms(tmp_path):
    make_femnist(tmp_path / "leaf" / "data")
    plain = load("femnist", folder=tmp_path / "leaf")
    (tmp_path / "npz").mkdir()
    columns = {"y": plain.y.numpy(), "writer": np.arange(4), "split": np.array([0, 0, 1, 2])}
    np.savez(tmp_path / "npz" / "a.npz", x=plain.x[:, 0].numpy(), **columns)
    for folder in ("leaf", "npz"):
        assert torch.equal(load("femnist", folder=tmp_path / folder, inverted=True).x, 255 - plain.x)


@pytest.mark.parametrize(
    ("x", "y"), [([[2.0] * 784], [0]), ([[0.0] * 783], [0]), ([[0.0] * 784], [0.5]), ([[0] * 784], [62])]
)
def test_femnist_refuses_what_is_no_image_or_no_class(tmp_path, x, y):
    make_leaf(tmp_path, {"u": (x, y)}, {"v": ([[0.0] * 784], [1])})
    with pytest.raises(EquipoiseError):
        load("femnist", folder=tmp_path)


def test_shakespeare_is_80_characters_and_the_next(tmp_path):
    make_shakespeare(tmp_path)
    data = load("shakespeare", folder=tmp_path)
    assert data.x.dtype == torch.int64
    assert data.x[0].tolist() == list(range(80))
    assert data.y.tolist() == [0, 79, CHARACTERS.index("c")]
    assert data.attributes["writer"].tolist() == [1, 1, 0]
    assert len(set(CHARACTERS)) == 80


@pytest.mark.parametrize(
    ("x", "y"), [("a" * 79, "b"), ("é" * 80, "b"), ("\ud800" * 80, "b"), ("a" * 80, "#"), (5, "b")]
)
def test_shakespeare_refuses_other_characters_and_lengths(tmp_path, x, y):
    make_leaf(tmp_path, {"u": ([x], [y])}, {"u": (["a" * 80], ["a"])})
    with pytest.raises(EquipoiseError, match="user u"):
        load("shakespeare", folder=tmp_path)


def test_celeba_without_pillow_says_which_package_it_needs(tmp_path, monkeypatch):
    make_leaf(tmp_path, {"1": (["a.jpg"], [1.0])}, {"2": (["b.jpg"], [0.0])})
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(EquipoiseError, match="Pillow"):
        load("celeba", folder=tmp_path)


class Photograph:
    """As much of a Pillow image as is used: the file's first byte in every pixel."""

    def __init__(self, path: Path) -> None:
        self.array = np.full((2, 2, 3), Path(path).read_bytes()[0], np.uint8)

    def __enter__(self) -> Photograph:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def convert(self, mode: str) -> Photograph:
        return self

    def resize(self, size: tuple[int, int]) -> np.ndarray[Any, Any]:
        return np.resize(self.array, (*size, 3))


def test_celeba_reads_the_images_that_leafs_files_name(tmp_path, monkeypatch):
    make_leaf(tmp_path, {"20": (["a.jpg"], [1.0])}, {"3": (["b.jpg"], [0.0])})
    monkeypatch.setitem(sys.modules, "PIL.Image", types.SimpleNamespace(open=Photograph))
    make_texts(tmp_path / "raw" / "img_align_celeba", {"a.jpg": "\x07", "b.jpg": "\x09"})
    data = load("celeba", folder=tmp_path, size=4)
    assert data.x.shape == (2, 3, 4, 4)
    assert data.x[:, 0, 0, 0].tolist() == [7, 9]
    assert data.y.tolist() == [1, 0]
    with pytest.raises(EquipoiseError, match=r"elsewhere/a\.jpg"):
        load("celeba", folder=tmp_path, images=tmp_path / "elsewhere")


def test_celeba_reads_no_files_outside_its_image_folder(tmp_path):
    make_leaf(tmp_path, {"1": (["../../etc/passwd"], [1.0])}, {"2": (["b.jpg"], [0.0])})
    with pytest.raises(EquipoiseError, match="not the name of an image file"):
        load("celeba", folder=tmp_path)


def test_words_are_lower_case_and_marks_stand_alone():
    assert words("It's DULL,dull -- caf\xe9!") == ["it's", "dull", ",", "dull", "-", "-", "caf\xe9", "!"]


def test_film_reviews_are_labelled_by_file_and_padded_at_the_end(tmp_path):
    make_mr(tmp_path)
    data = load("mr", folder=tmp_path, length=3)
    assert data.y.tolist() == [0, 1, 1]
    numbered = {w: i for i, w in enumerate(["film", "good", "!", "bad", "caf\xe9"], 2)}
    assert data.x[0].tolist() == [numbered["bad"], numbered["film"], 0]
    assert data.x[2].tolist() == [numbered["good"], numbered["film"], 0]


def test_the_vocabulary_of_sst_is_that_of_its_training_part_only(tmp_path):
    make_sst(tmp_path)
    data = load("sst", folder=tmp_path, length=4)
    assert data.attributes["official_split"].tolist() == [0, 0, 1, 2, 2]
    assert data.attributes["part"].tolist() == [0, 0, 0, 1, 1]
    assert data.x[2].tolist() == [1, 0, 0, 0]  # "fresh" is in the dev part only
    assert data.x[3, 2] == 1  # so is "surprise", in the test part
    assert load("sst", folder=tmp_path, vocabulary=4).x.unique().tolist() == [0, 1, 2, 3]


def test_fine_sst_has_five_classes_and_needs_only_its_own_files(tmp_path):
    make_sst(tmp_path)
    for path in tmp_path.glob("stsa.binary.*"):
        path.unlink()
    data = load("sst", folder=tmp_path, fine=True)
    assert data.classes == 5
    assert data.y.tolist() == [0, 4, 4, 0, 4]
    with pytest.raises(EquipoiseError, match=r"stsa\.binary\.train"):
        load("sst", folder=tmp_path)


def test_vehicle_labels_are_0_and_1_and_a_test_file_makes_a_test_part(tmp_path):
    make_vehicle(tmp_path)
    data = load("vehicle", folder=tmp_path)
    assert data.y.tolist() == [0, 1, 0]
    assert data.attributes["writer"].tolist() == [1, 0, 0]
    assert "part" not in data.attributes
    (tmp_path / "mytest.json").write_bytes((tmp_path / "mytrain.json").read_bytes())
    assert load("vehicle", folder=tmp_path).attributes["part"].tolist() == [0, 0, 0, 1, 1, 1]


def test_adult_is_scaled_and_coded_by_its_training_part(tmp_path):
    make_adult(tmp_path)
    data = load("adult", folder=tmp_path)
    assert data.y.tolist() == [0, 1, 1]
    assert data.x[:, 0].tolist() == [-1.0, 1.0, 2.0]  # ages 20 and 40 are the training part
    assert data.x[:, 1:3].tolist() == [[1, 0], [0, 1], [0, 0]]  # "?", "Private", and a kind of work never seen
    assert data.attributes["sex"].tolist() == [1, 0, 1]
    assert data.attributes["education"].tolist() == [0, 1, 0]
    assert bool(data.x.isfinite().all())


@pytest.mark.parametrize(
    "row", [adult_row(1, "a", "b", "50K"), "1,2\n", adult_row(1, "a", "b", ">50K").replace("40", "x")]
)
def test_a_malformed_record_of_adult_is_refused(tmp_path, row):
    make_adult(tmp_path)
    (tmp_path / "adult.test").write_text(row)
    with pytest.raises(EquipoiseError, match=r"adult\.test|income"):
        load("adult", folder=tmp_path)


@pytest.mark.parametrize("options", [{"length": 0}, {"vocabulary": 2}])
def test_a_text_needs_room_for_words(tmp_path, options):
    make_mr(tmp_path)
    with pytest.raises(EquipoiseError, match=f"{next(iter(options))} is"):
        load("mr", folder=tmp_path, **options)
