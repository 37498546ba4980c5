"""How the files of each known dataset become a Dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.blended import blended
from equipoise.data.catalogue import CATALOGUE
from equipoise.data.federation import Dataset
from equipoise.data.find import Found, folders, locate
from equipoise.data.formats import (
    broken,
    numbers,
    read_cifar,
    read_idx,
    read_leaf,
    read_lines,
    read_npz,
    read_table,
)
from equipoise.data.pickled import read_pickled
from equipoise.data.tokens import encode, vocabulary_of
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream

Array = NDArray[Any]
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare, in its order."""


def _dataset(
    found: Found, x: Array, y: Array, attributes: Mapping[str, Array], scale: float = 1.0, classes: int = 0
) -> Dataset:
    """Puts the parts together, after a last look at the labels."""
    classes = classes or found.info.classes
    if len(y) == 0:
        raise broken(found.folder, "the files hold no samples")
    if y.min() < 0 or y.max() >= classes or (y.dtype.kind == "f" and (y != np.rint(y)).any()):
        raise broken(found.folder, f"labels are not 0 to {classes - 1}: they run from {y.min()} to {y.max()}")
    columns = {name: torch.from_numpy(value.astype(np.int64)) for name, value in attributes.items()}
    tensors = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64))
    return Dataset(found.info.name, *tensors, classes, scale, columns, found.info.source, found.info.licence)


def _parts(*lengths: int) -> Array:
    """0 for each sample of the first part, 1 for each of the second, and so on."""
    return np.repeat(np.arange(len(lengths)), lengths)


def _codes(values: Sequence[Any] | Array) -> Array:
    """Each value's place among the sorted distinct ones."""
    return np.unique(np.asarray(values), return_inverse=True)[1]


# --------------------------------------------------------------------------------------------------------- images


def digits(found: Found) -> Dataset:
    held = read_npz(found.one("digits.npz"))
    return _dataset(found, held["x"], held["y"], {}, 1 / 16)


def _idx(found: Found, images: str, labels: str) -> tuple[Array, Array]:
    x, y = read_idx(found.one(images)), read_idx(found.one(labels))
    if x.ndim != 3 or x.dtype != np.uint8:
        raise broken(found.one(images), f"holds {x.dtype} of shape {x.shape} instead of grey images")
    if y.ndim != 1 or y.dtype != np.uint8 or len(y) != len(x):
        raise broken(found.one(labels), f"holds {y.dtype} of shape {y.shape} instead of {len(x)} labels")
    return x, y


def _idx_pair(found: Found, train: str, test: str) -> tuple[Array, Array, Array]:
    """Images, labels and parts of a set in the form of MNIST."""
    images, labels = "images-idx3-ubyte", "labels-idx1-ubyte"
    (x0, y0), (x1, y1) = (_idx(found, f"{name}-{images}", f"{name}-{labels}") for name in (train, test))
    if x0.shape[1:] != x1.shape[1:]:
        raise broken(found.folder, f"training images are {x0.shape[1:]}, test images {x1.shape[1:]}")
    return np.concatenate([x0, x1])[:, None], np.concatenate([y0, y1]), _parts(len(y0), len(y1))


def fashion(found: Found) -> Dataset:
    x, y, part = _idx_pair(found, "train", "t10k")
    return _dataset(found, x, y, {"part": part}, 1 / 255)


def mnist(found: Found) -> Dataset:
    x, y, part = _idx_pair(found, "train", "t10k")
    return _dataset(found, x, y, {"part": part, **_writers(found, y, part)}, 1 / 255)


def mnist_blended(
    found: Found, *, clients: int = 5, samples: int = 1_600, least: float = 0.2, soft: bool = False, seed: int = 0
) -> Dataset:
    """MNIST's digits, some blended, see `blended`; partition "attribute" by the column "site" deals them as meant.

    clients: how many sites there are, 2 or more; the first holds no blends, the last nothing else. samples: how many
    images a site holds, 1 or more. least: the smallest share of the second image in a blend, above 0, at most 0.5.
    soft: whether a label is the two shares; otherwise one of the two classes, drawn by them. seed: that of all this,
    whatever the run's is.
    """
    x, y, _ = _idx_pair(found, "train", "t10k")
    stream = Stream(seed).child("data", found.info.name)
    shares = found.info.classes if soft else 0
    x, y, columns = blended(x, y, stream, clients=clients, samples=samples, least=least, soft=shares)
    data = _dataset(found, x, y.argmax(-1) if soft else y, columns, 1 / 255)
    return replace(data, y=torch.from_numpy(y)) if soft else data


def _writers(found: Found, y: Array, part: Array) -> dict[str, Array]:
    """Who wrote each digit, if QMNIST's labels are beside the digits or, unless a folder was named, elsewhere."""
    info = CATALOGUE["mnist-writers"]
    places: list[Path | None] = [found.folder, found.folder.parent / info.name]
    if found.folder in folders(found.info):
        places.append(None)
    labels = next((f for place in places if (f := locate(info, place))), None)
    if labels is None:
        return {}
    writer = []
    for number, name in enumerate(info.files):
        rows, of_part = read_idx(labels.one(name)), y[part == number]
        if rows.ndim != 2 or rows.shape[1] < 3 or not np.array_equal(rows[: len(of_part), 0], of_part):
            raise broken(labels.one(name), "does not belong to these digits: its classes are not their labels")
        writer.append(rows[: len(of_part), 2])
    return {"writer": _codes(np.concatenate(writer))}


def emnist(found: Found) -> Dataset:
    name = found.info.name
    x, y, part = _idx_pair(found, f"{name}-train", f"{name}-test")
    first = 1 if name == "emnist-letters" else 0  # the letters are numbered from 1
    upright = x.swapaxes(2, 3)  # EMNIST stores its images column by column
    return _dataset(found, upright, y.astype(np.int64) - first, {"part": part}, 1 / 255)


def cifar10(found: Found) -> Dataset:
    batches = [_cifar_batch(found, name, ("labels",)) for name in found.paths]
    return _cifar(found, batches, sum(len(y) for _, y in batches[:-1]))


def cifar100(found: Found) -> Dataset:
    """The attribute "coarse" is the superclass, one of 20."""
    batches = [_cifar_batch(found, name, ("coarse_labels", "fine_labels")) for name in found.paths]
    return _cifar(found, batches, len(batches[0][1]))


def _cifar_batch(found: Found, name: str, labels: tuple[str, ...]) -> tuple[Array, Array]:
    path = found.one(name)
    if found.variant == "binary":
        return read_cifar(path, len(labels))
    held = read_pickled(path)
    x = held.get("data")
    if not isinstance(x, np.ndarray) or x.ndim != 2 or x.shape[1] != 3072:
        raise broken(path, 'has no array "data" with 3072 columns')
    y = np.stack([numbers(path, held.get(key), f'"{key}"') for key in labels], axis=1)
    if len(y) != len(x):
        raise broken(path, f"has {len(x)} images but {len(y)} labels")
    return x.reshape(-1, 3, 32, 32), y


def _cifar(found: Found, batches: list[tuple[Array, Array]], train: int) -> Dataset:
    x, y = (np.concatenate(column) for column in zip(*batches, strict=True))
    columns = {"part": _parts(train, len(x) - train)}
    if y.shape[1] == 2:
        columns["coarse"] = y[:, 0]
    return _dataset(found, x, y[:, -1], columns, 1 / 255)


# ----------------------------------------------------------------------------------------------------------- LEAF

Convert = Callable[[Path, str, list[Any], list[Any]], tuple[Array, Array]]


def _leaf(found: Found, convert: Convert) -> tuple[Array, Array, dict[str, Array]]:
    """All users' samples, with the attributes "writer" (the user) and, where there is a test part, "part"."""
    xs, ys, users, parts = [], [], [], []
    for part, paths in enumerate(found.paths.values()):
        for path in paths:
            for user, (x, y) in read_leaf(path).items():
                if y:
                    a, b = convert(path, user, x, y)
                    xs.append(a)
                    ys.append(b)
                    users.append(user)
                    parts.append(part)
    if not ys:
        raise broken(found.folder, "the files hold no samples")
    sizes = [len(y) for y in ys]
    columns = {"writer": np.repeat(_codes(users), sizes)}
    if all(found.paths.values()):
        columns["part"] = np.repeat(np.asarray(parts), sizes)
    return np.concatenate(xs), np.concatenate(ys), columns


def femnist(found: Found, *, inverted: bool = False) -> Dataset:
    """From LEAF's files, or an .npz of them with x, y, writer and split.

    inverted: whether images are light on black, as EMNIST's are.

    Its split 2, writers whose samples were not split, counts as training; "official_split" has it as it is.
    """
    if found.variant == "leaf":
        x, y, columns = _leaf(found, _leaf_image)
        return _dataset(found, 255 - x if inverted else x, y, columns, 1 / 255)
    path = found.one("*.npz")
    held = read_npz(path)
    if absent := [name for name in ("x", "y", "writer", "split") if name not in held]:
        raise broken(path, f"has no array {absent[0]!r}; it holds {', '.join(held) or 'nothing'}")
    x, y, writer, split = (held[name] for name in ("x", "y", "writer", "split"))
    if x.dtype != np.uint8 or x.shape[1:] != (28, 28) or any(v.shape != (len(x),) for v in (y, writer, split)):
        raise broken(path, f"x is {x.dtype} {x.shape}, y {y.shape}, writer {writer.shape}, split {split.shape}")
    columns = {"writer": _codes(writer), "part": split == 1, "official_split": split}
    return _dataset(found, (255 - x if inverted else x)[:, None], y, columns, 1 / 255)


def _leaf_image(path: Path, user: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    pixels = numbers(path, x, f"images of {user}", 784)
    if pixels.min() < 0 or pixels.max() > 1:
        raise broken(path, f"images of {user}: values from {pixels.min()} to {pixels.max()} instead of 0 to 1")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, 28, 28), numbers(path, y, f"labels of {user}")


def shakespeare(found: Found) -> Dataset:
    x, y, columns = _leaf(found, _leaf_text)
    return _dataset(found, x, y, columns)


def _leaf_text(path: Path, user: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    for values, length in ((x, 80), (y, 1)):
        if not all(isinstance(v, str) and len(v) == length for v in values):
            raise broken(path, f"user {user}: a text that does not have {length} characters")
    return _characters(path, user, x), _characters(path, user, y)[:, 0]


def _characters(path: Path, user: str, texts: list[str]) -> Array:
    table = np.full(129, -1, np.int64)  # the last place is for every character beyond ASCII
    table[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))
    points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
    codes = table[np.minimum(points, 128)]
    if codes.min() < 0:
        raise broken(path, f"user {user}: character {chr(points[codes < 0][0])!r} is not one of LEAF's 80")
    return np.asarray(codes.reshape(len(texts), -1))


def celeba(found: Found, *, images: str | Path | None = None, size: int = 84) -> Dataset:
    """LEAF's files name the images, which lie in a folder of their own as the set comes.

    images: the folder of the images; left out: raw/img_align_celeba in that of the dataset. size: the width and height
    in pixels that images are brought to, 1 or more.
    """
    if size < 1:
        raise EquipoiseError(f"dataset celeba: size is {size}", "the images' width and height in pixels")
    names, y, columns = _leaf(found, _leaf_names)
    folder = Path(images).expanduser() if images else found.folder / "raw" / "img_align_celeba"
    return _dataset(found, _photographs(folder, names, size), y, columns, 1 / 255)


def _leaf_names(path: Path, user: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    if not all(isinstance(name, str) and Path(name).name == name for name in x):
        raise broken(path, f"user {user}: a sample that is not the name of an image file")
    return np.asarray(x), numbers(path, y, f"labels of {user}")


def _photographs(folder: Path, names: Array, size: int) -> Array:
    try:
        pillow = import_module("PIL.Image")
    except ImportError as problem:
        hint = "pip install pillow"
        raise EquipoiseError("dataset celeba: reading its JPEG images needs the package Pillow", hint) from problem
    whole = np.empty((len(names), 3, size, size), np.uint8)
    for place, name in enumerate(names):
        try:
            with pillow.open(folder / str(name)) as image:
                whole[place] = np.asarray(image.convert("RGB").resize((size, size))).transpose(2, 0, 1)
        except (OSError, ValueError) as problem:
            hint = "give the folder of the aligned images as images=..."
            raise broken(folder / str(name), f"cannot be read: {problem}", hint) from problem
    return whole


def vehicle(found: Found) -> Dataset:
    x, y, columns = _leaf(found, _leaf_sensors)
    return _dataset(found, x, y, columns)


def _leaf_sensors(path: Path, user: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    flat = [v[0] if isinstance(v, list) and len(v) == 1 else v for v in y]
    sign = numbers(path, flat, f"labels of {user}")
    if not np.isin(sign, (-1, 1)).all():
        raise broken(path, f"labels of {user}: something else than -1 and 1")
    return numbers(path, x, f"samples of {user}", 100).astype(np.float32), (sign + 1) / 2


# ---------------------------------------------------------------------------------------------- texts and tables


def mr(found: Found, *, vocabulary: int = 10_000, length: int = 60) -> Dataset:
    """It has no official split, so the vocabulary is that of the whole set."""
    negative, positive = (read_lines(found.one(f"rt-polarity.{end}"), "latin-1") for end in ("neg", "pos"))
    texts = [*negative, *positive]
    x = encode(texts, vocabulary_of(texts, vocabulary), length)
    return _dataset(found, x, _parts(len(negative), len(positive)), {})


def sst(found: Found, *, fine: bool = False, vocabulary: int = 10_000, length: int = 60) -> Dataset:
    """The attribute "official_split" is 0, 1, 2 for train, dev, test; "part" counts dev as training.

    fine: whether there are 5 classes, from files of their own, in place of 2.
    """
    texts: list[list[str]] = []
    labels: list[int] = []
    for name in found.paths:
        lines = [line.split(" ", 1) for line in read_lines(found.one(name))]
        for number, line in enumerate(lines, 1):
            if len(line) != 2 or not (line[0].isascii() and line[0].isdigit()):
                raise broken(found.one(name), f"line {number} is not a label and a text: {' '.join(line)[:40]!r}")
        texts.append([line[1] for line in lines])
        labels += [int(line[0][:9]) for line in lines]
    x = encode([t for part in texts for t in part], vocabulary_of(texts[0], vocabulary), length)
    split = _parts(*map(len, texts))
    columns = {"part": split == 2, "official_split": split}
    return _dataset(found, x, np.asarray(labels), columns, classes=5 if fine else 2)


# The columns of the file, and whether they are numbers; the income comes after them.
_ADULT = {
    "age": True,
    "workclass": False,
    "fnlwgt": True,
    "education": False,
    "education-num": True,
    "marital-status": False,
    "occupation": False,
    "relationship": False,
    "race": False,
    "sex": False,
    "capital-gain": True,
    "capital-loss": True,
    "hours-per-week": True,
    "native-country": False,
}


def adult(found: Found) -> Dataset:
    """Numbers standardised and categories one-hot, both as the training part has them; "?" is a category.

    The attributes "education" and "sex" are places in the alphabetical list of the training part's categories.
    """
    paths = [found.one(name) for name in ("adult.data", "adult.test")]
    tables = [np.asarray(read_table(path, len(_ADULT) + 1)) for path in paths]
    train, blocks, codes = len(tables[0]), [], {}
    for place, (name, numeric) in enumerate(_ADULT.items()):
        column = np.concatenate([table[:, place] for table in tables])
        if numeric:
            each = zip(paths, tables, strict=True)
            value = np.concatenate([numbers(path, table[:, place], f"column {name}") for path, table in each])
            spread = value[:train].std()
            blocks.append(((value - value[:train].mean()) / (spread if spread > 0 else 1.0))[:, None])
        else:
            known = np.unique(column[:train])
            hot = column[:, None] == known
            codes[name] = np.where(hot.any(1), hot.argmax(1), len(known))
            blocks.append(hot)
    income = np.char.rstrip(np.concatenate([table[:, -1] for table in tables]), ".")  # the test file ends lines with .
    if odd := sorted(set(income.tolist()) - {"<=50K", ">50K"}):
        raise broken(found.folder, f"column income holds {odd[0]!r} instead of <=50K or >50K")
    x = np.concatenate(blocks, axis=1).astype(np.float32)
    attributes = {"part": _parts(train, len(tables[1])), "education": codes["education"], "sex": codes["sex"]}
    return _dataset(found, x, income == ">50K", attributes)


LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "mnist-blended": mnist_blended,
    "fashion-mnist": fashion,
    "emnist-byclass": emnist,
    "emnist-balanced": emnist,
    "emnist-letters": emnist,
    "emnist-digits": emnist,
    "cifar-10": cifar10,
    "cifar-100": cifar100,
    "femnist": femnist,
    "celeba": celeba,
    "shakespeare": shakespeare,
    "mr": mr,
    "sst": sst,
    "vehicle": vehicle,
    "adult": adult,
}
