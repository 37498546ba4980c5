"""The user's own data as a federation: arrays with a client id per sample, or a folder with an .npz file per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federation import Dataset, Federation, Split
from equipoise.data.formats import broken, read_npz
from equipoise.data.partition import split_clients
from equipoise.errors import EquipoiseError, require
from equipoise.streams import Stream

_X_HINT = "uint8 images [n, c, h, w], floats [n, ...], or integer tokens [n, length]"
_NUMBER_THEM = "number the classes of all clients together from 0: np.unique(y, return_inverse=True)[1]"
_FLOAT32 = float(np.finfo(np.float32).max)
_MANY = 1000  # classes; so many may well be sparse in small data


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
    samples, labels = _numpy(x, "x"), _numpy(y, "y")
    _check_classes(classes, name)
    _check_pair(samples, labels, name)
    _check_some(samples, name)
    _check(samples, labels, classes, name)
    data, ids = _dataset(samples, labels, classes, name), _ids(client, name)
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
    name = name or folder.name
    _check_classes(classes, name)
    held = [read_npz(file) for file in files]
    given = [file for file, arrays in zip(files, held, strict=True) if _has_test(file, arrays)]
    if given and len(given) < len(files):
        odd = next(file for file in files if file not in given)
        raise broken(odd, f"has no x_test and y_test, but {given[0].name} has", "give them to all clients, or to none")
    ends = ("", "_test") if given else ("",)
    pairs = [[_pair(file, arrays, end) for file, arrays in zip(files, held, strict=True)] for end in ends]
    _same_form(files, [pair for column in pairs for pair in column])
    for column, end in zip(pairs, ends, strict=True):
        for file, (x, y) in zip(files, column, strict=True):
            _check(x, y, classes, str(file), end)
    x, y = (np.concatenate([pair[i] for column in pairs for pair in column]) for i in (0, 1))
    _check_some(x, name)
    sizes = torch.tensor([[len(pair[0]) for pair in column] for column in pairs])
    code = torch.arange(len(files)).repeat(len(ends)).repeat_interleave(sizes.flatten())
    data = replace(_dataset(x, y, classes, name), attributes={"client": code})
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


def _ids(client: Any, name: str) -> list[Any]:
    try:
        return list(client.tolist() if isinstance(client, np.ndarray | Tensor) else client)
    except TypeError:
        raise EquipoiseError(f"{name}: client is {client!r}", "give one client id per sample") from None


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
    if np.ma.is_masked(value):
        hint = "leave these samples out, or fill the gaps: x.filled(0)"
        raise EquipoiseError(f"{what} is a masked array with {np.ma.getmaskarray(value).sum()} values missing", hint)
    try:
        return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (TypeError, ValueError) as problem:
        raise EquipoiseError(f"{what} is not an array: {problem}", "all samples must have the same shape") from problem


def _has_test(file: Path, arrays: dict[str, NDArray[Any]]) -> bool:
    found = sorted({"x_test", "y_test"} & arrays.keys())
    if len(found) == 1:
        other = "y_test" if found == ["x_test"] else "x_test"
        raise broken(file, f"has {found[0]} but no {other}", "save both, or none")
    return bool(found)


def _pair(file: Path, arrays: dict[str, NDArray[Any]], end: str) -> tuple[NDArray[Any], NDArray[Any]]:
    for name in (f"x{end}", f"y{end}"):
        if name not in arrays:
            holds, hint = ", ".join(arrays) or "nothing", f"save x{end} and y{end} in it"
            raise broken(file, f"has no array {name!r}; it holds {holds}", hint)
    x, y = arrays[f"x{end}"], arrays[f"y{end}"]
    _check_pair(x, y, str(file), end)
    return x, y


def _same_form(files: list[Path], pairs: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
    """Concatenating would otherwise fail without a name, or turn integers into floats in silence."""
    for place, pair in enumerate(pairs):
        for what, array, first in zip("xy", pair, pairs[0], strict=True):
            if (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
                seen = f"{what} is {array.dtype} of shape {list(array.shape[1:])} per sample"
                wanted = f"{files[0].name} has {first.dtype} of shape {list(first.shape[1:])}"
                raise broken(files[place % len(files)], f"{seen}, but {wanted}", "save all clients' data alike")


def _check_classes(classes: Any, name: str) -> None:
    whole = classes is None or (isinstance(classes, Integral) and int(classes) >= 2)
    require(whole, f"{name}: classes", classes, "a whole number, 2 or more; leave it out for a regression")


def _check_pair(x: NDArray[Any], y: NDArray[Any], where: str, end: str = "") -> None:
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        told = f"{where}: x{end} has shape {x.shape}, y{end} has shape {y.shape}"
        raise EquipoiseError(told, "give one label per sample")


def _check_some(x: NDArray[Any], name: str) -> None:
    if x.size == 0:
        raise EquipoiseError(f"{name}: there are no samples: x has shape {x.shape}", "give one or more")


def _check(x: NDArray[Any], y: NDArray[Any], classes: int | None, where: str, end: str = "") -> None:
    """Refuses what a Dataset cannot hold. `where` is the file, if there is one: behind this, all are one array."""
    if not _is_images(x) and not _is_tokens(x) and (x.dtype.kind != "f" or x.ndim < 2):
        raise EquipoiseError(f"{where}: x{end} is {x.dtype} of shape {x.shape}", f"give {_X_HINT}")
    _check_finite(x, f"{where}: x{end}")
    if y.dtype.kind in "iub":
        _check_labels(y, classes, f"{where}: y{end}")
    else:
        _check_targets(y, classes, f"{where}: y{end}")


def _is_images(x: NDArray[Any]) -> bool:
    return x.dtype == np.uint8 and x.ndim == 4


def _is_tokens(x: NDArray[Any]) -> bool:
    return x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim == 2


def _check_labels(y: NDArray[Any], classes: int | None, what: str) -> None:
    if y.ndim != 1:
        raise EquipoiseError(f"{what} has shape {y.shape}", "integer labels are one class per sample: [n]")
    bad = y < 0 if classes is None else (y < 0) | (y >= classes)
    if bad.any():
        hint = _NUMBER_THEM if y.min() < 0 else f"classes={classes} means from 0 to {(classes or 1) - 1}"
        raise EquipoiseError(f"{what} runs from {y.min()} to {y.max()}; it is out of range {_in(bad)}", hint)


def _check_targets(y: NDArray[Any], classes: int | None, what: str) -> None:
    if y.dtype.kind != "f" or y.ndim > 2:
        hint = _NUMBER_THEM if y.dtype.kind in "OSTU" else "give classes 0, 1, ... or float targets"
        raise EquipoiseError(f"{what} is {y.dtype} of shape {y.shape}", hint)
    if classes and y.shape[1:] != (classes,):
        hint = "class labels must be integers; float labels are probabilities [n, classes] or regression targets"
        raise EquipoiseError(f"{what} is {y.dtype} of shape {y.shape}, with classes = {classes}", hint)
    _check_finite(y, what)
    if classes:
        bad = (y < 0).any(1) | (np.abs(y.sum(1, dtype=np.float64) - 1) > 1e-3)
        if bad.any():
            hint = "with classes, float labels are probabilities: 0 or more, with sum 1 in every row"
            raise EquipoiseError(f"{what} is no row of probabilities {_in(bad)}", hint)


def _check_finite(values: NDArray[Any], what: str) -> None:
    """What is beyond float32 would be infinity in a run."""
    if values.dtype.kind != "f":
        return
    fine = np.abs(values) <= _FLOAT32 if values.dtype.itemsize >= 8 else np.isfinite(values)
    if not fine.all():
        bad = ~fine.reshape(len(fine), -1).all(1)
        raise EquipoiseError(f"{what} is NaN, infinity or beyond float32 {_in(bad)}", "clean the data first")


def _in(bad: NDArray[np.bool_]) -> str:
    """How many samples are refused, and where to look."""
    return f"in {bad.sum()} of {len(bad)} samples, first in sample {bad.argmax()} (counted from 0)"


def _dataset(x: NDArray[Any], y: NDArray[Any], classes: int | None, name: str) -> Dataset:
    """Of arrays that are checked: in one of the forms that a Dataset has, with the scale that goes with it."""
    count = (classes or 0) if y.dtype.kind == "f" else _count(y, classes, name)
    scale = 1 / 255 if _is_images(x) else 1.0
    return Dataset(name, _tensor(x), _tensor(y), int(count), scale, source="own data")


def _count(y: NDArray[Any], classes: int | None, name: str) -> int:
    """How many classes there are. Ids and codes taken for class numbers would make a model of millions of outputs."""
    if classes is not None:
        return classes
    count, distinct = int(y.max()) + 1, len(np.unique(y))
    if count == 1:
        hint = "a classification needs two classes or more: give classes=... if others are possible"
        raise EquipoiseError(f"{name}: all labels are 0", hint)
    if count > max(_MANY, 10 * distinct):
        told = f"{name}: {distinct} different labels run up to {count - 1}, which makes {count} classes"
        raise EquipoiseError(told, f"{_NUMBER_THEM}; or give classes={count}")
    return count


def _tensor(values: NDArray[Any]) -> Tensor:
    """A copy, in a type that a Dataset has; torch takes no steps backwards through memory, as in x[:, ::-1]."""
    wide = np.float64 if values.dtype.itemsize >= 8 else np.float32
    dtype = wide if values.dtype.kind == "f" else np.uint8 if _is_images(values) else np.int64
    return torch.tensor(np.ascontiguousarray(values, dtype))
