"""The user's own data as a federation: arrays with a client id per sample, or a folder with an .npz file per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federation import Dataset, Federation, Split
from equipoise.data.formats import broken, read_npz
from equipoise.data.partition import split_clients
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream

_X_HINT = "uint8 images [n, c, h, w], floats [n, ...], or integer tokens [n, length]"


def from_arrays(
    x: Any,
    y: Any,
    client: Any,
    *,
    classes: int | None = None,
    name: str = "own",
    test: float = 0.2,
    validation: float = 0.0,
    seed: int = 0,
) -> Federation:
    """A federation of samples x, labels y and, for each sample, the id of the client that holds it.

    Integer labels are classes, counted from the largest unless `classes` is given; float labels are regression targets
    or, with `classes`, class probabilities [n, classes]. Clients are numbered in the order of their sorted ids.
    """
    data = _dataset(_numpy(x, "x"), _numpy(y, "y"), classes, name)
    ids = client.tolist() if isinstance(client, np.ndarray | Tensor) else list(client)
    if len(ids) != len(data):
        raise EquipoiseError(f"{name}: {len(data)} samples but {len(ids)} client ids", "give one client id per sample")
    code, names = _clients(ids)
    data = replace(data, attributes={"client": code})
    parts = _pieces(code.argsort(stable=True), torch.bincount(code))
    return split_clients(data, parts, test=test, validation=validation, stream=_stream(seed), how=_how(names))


def from_folder(
    path: str | Path,
    *,
    classes: int | None = None,
    name: str | None = None,
    test: float = 0.2,
    validation: float = 0.0,
    seed: int = 0,
) -> Federation:
    """A federation of the .npz files in a folder, a client each, in the order of their names.

    A file holds arrays x and y, and may hold x_test and y_test. If all files do, those are the test data and `test` is
    not used; otherwise `test` of each client's samples are held out. `validation` is always taken from x and y.
    """
    folder = Path(path).expanduser()
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if not files:
        raise EquipoiseError(f"{folder}: holds no .npz files", "save one per client: np.savez('anna.npz', x=x, y=y)")
    held = [read_npz(file) for file in files]
    given = [file for file, arrays in zip(files, held, strict=True) if {"x_test", "y_test"} & arrays.keys()]
    if given and len(given) < len(files):
        odd = next(file for file in files if file not in given)
        raise broken(odd, f"has no x_test and y_test, but {given[0].name} has", "give them to all clients, or to none")
    ends = ("", "_test") if given else ("",)
    pairs = [[_pair(file, arrays, end) for file, arrays in zip(files, held, strict=True)] for end in ends]
    _same_form(files, [pair for column in pairs for pair in column])
    x, y = (np.concatenate([pair[i] for column in pairs for pair in column]) for i in (0, 1))
    sizes = torch.tensor([[len(pair[0]) for pair in column] for column in pairs])
    code = torch.arange(len(files)).repeat(len(ends)).repeat_interleave(sizes.flatten())
    data = replace(_dataset(x, y, classes, name or folder.name), attributes={"client": code})
    trained = int(sizes[0].sum())
    share, how = (0.0 if given else test), _how([file.stem for file in files])
    made = split_clients(
        data, _pieces(torch.arange(trained), sizes[0]), test=share, validation=validation, stream=_stream(seed), how=how
    )
    if not given:
        return made
    tested = _pieces(torch.arange(trained, len(data)), sizes[1])
    return replace(made, splits={**made.splits, "test": Split.of(tested)})


def _pieces(index: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.tensor_split(index, sizes.cumsum(0)[:-1]))


def _stream(seed: int) -> Stream:
    return Stream(seed).child("own")


def _how(names: Sequence[Any]) -> str:
    """For the record: which number is whom. Ids that are the numbers already need no list."""
    if list(names) == list(range(len(names))):
        return f"own: {len(names)} clients by id"
    return f"own: {len(names)} clients, in order: {', '.join(map(str, names))}"


def _clients(ids: list[Any]) -> tuple[Tensor, list[Any]]:
    """Each sample's client number, and the ids in the order of their numbers."""
    try:
        names = sorted(set(ids))
    except TypeError as problem:
        raise EquipoiseError(f"client ids cannot be sorted: {problem}", "give texts, or integers") from problem
    if any(name != name for name in names):
        raise EquipoiseError("a client id is NaN", "give every sample the id of its client")
    number = {name: place for place, name in enumerate(names)}
    return torch.tensor([number[name] for name in ids], dtype=torch.int64), names


def _numpy(value: Any, what: str) -> NDArray[Any]:
    try:
        return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError) as problem:
        raise EquipoiseError(f"{what} is not an array: {problem}", "all samples must have the same shape") from problem


def _pair(file: Path, arrays: dict[str, NDArray[Any]], end: str) -> tuple[NDArray[Any], NDArray[Any]]:
    for name in (f"x{end}", f"y{end}"):
        if name not in arrays:
            raise broken(
                file, f"has no array {name!r}; it holds {', '.join(arrays) or 'nothing'}", "save x and y in it"
            )
    x, y = arrays[f"x{end}"], arrays[f"y{end}"]
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise broken(file, f"x{end} has shape {x.shape}, y{end} has shape {y.shape}", "give one label per sample")
    return x, y


def _same_form(files: list[Path], pairs: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
    """Concatenating would otherwise fail without a name, or turn integers into floats in silence."""
    for place, pair in enumerate(pairs):
        for what, array, first in zip("xy", pair, pairs[0], strict=True):
            if (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
                seen = f"{what} is {array.dtype} of shape {list(array.shape[1:])} per sample"
                wanted = f"{files[0].name} has {first.dtype} of shape {list(first.shape[1:])}"
                raise broken(files[place % len(files)], f"{seen}, but {wanted}", "save all clients' data alike")


def _dataset(x: NDArray[Any], y: NDArray[Any], classes: int | None, name: str) -> Dataset:
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
        raise EquipoiseError(f"{name}: x has shape {x.shape}, y has shape {y.shape}", "give one label per sample")
    samples, scale = _samples(x, name)
    labels, count = _labels(y, classes, name)
    return Dataset(name, torch.tensor(samples), torch.tensor(labels), count, scale, source="own data")


def _samples(x: NDArray[Any], name: str) -> tuple[NDArray[Any], float]:
    """x in one of the forms that a Dataset has, and the scale that goes with it."""
    if x.dtype == np.uint8 and x.ndim == 4:
        return x, 1 / 255
    if x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim == 2:
        return x.astype(np.int64, copy=False), 1.0
    if x.dtype.kind != "f" or x.ndim < 2:
        raise EquipoiseError(f"{name}: x is {x.dtype} of shape {x.shape}", f"give {_X_HINT}")
    return _finite(x, f"{name}: x"), 1.0


def _labels(y: NDArray[Any], classes: int | None, name: str) -> tuple[NDArray[Any], int]:
    if y.dtype.kind in "iub":
        if y.ndim != 1:
            raise EquipoiseError(f"{name}: y has shape {y.shape}", "integer labels are one class per sample: [n]")
        count = int(y.max()) + 1 if classes is None else classes
        if y.min() < 0 or y.max() >= count:
            raise EquipoiseError(f"{name}: labels run from {y.min()} to {y.max()}", f"classes are 0 to {count - 1}")
        return y.astype(np.int64, copy=False), count
    if y.dtype.kind != "f" or y.ndim > 2:
        raise EquipoiseError(f"{name}: y is {y.dtype} of shape {y.shape}", "give classes 0, 1, ... or float targets")
    if classes and y.shape[1:] != (classes,):
        hint = "class labels must be integers; float labels are probabilities [n, classes] or regression targets"
        raise EquipoiseError(f"{name}: y is {y.dtype} of shape {y.shape}, with classes = {classes}", hint)
    return _finite(y, f"{name}: y"), classes or 0


def _finite(values: NDArray[Any], what: str) -> NDArray[Any]:
    if not np.isfinite(values).all():
        raise EquipoiseError(f"{what} holds NaN or infinity", "clean the data first")
    return values.astype(np.float64 if values.dtype.itemsize >= 8 else np.float32, copy=False)
