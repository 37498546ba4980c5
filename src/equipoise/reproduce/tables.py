"""A published table as a TOML file: rows and columns of runs, and what the paper says they come to.

    title = "Table 1, Fashion-MNIST"
    source = "Pan et al., AAAI 2024, Table 1"
    measures = ["accuracy_mean", "angle"]
    within = { accuracy_mean = 0.02, angle = 0.03 }      # as near as this to the published number agrees with it
    seeds = [0, 1, 2]
    grid = { "train.lr" = [0.01, 0.05, 0.1] }            # chosen on validation data, for every row and column
    choose = { validation = 0.1, rounds = 600 }          # how: on this share of the training samples, in so many rounds
    remarks = ["what the paper leaves open, and what we chose"]

    [run.train]                                          # the sections of a run, which all cells share
    rounds = 3000

    [columns.pat2]
    title = "Pat-2"
    set.data.partition = { kind = "pathological", classes = 2 }

    [rows.fedavg]
    title = "FedAvg"
    set.method = { name = "fedavg" }

    [[claims]]
    says = "FedLF is fairer than FedAvg"
    measure = "angle"
    less = "fedlf"
    than = ["fedavg"]

A cell is a row in a column with a seed: an ordinary run. What `set` says goes over what the run says, a column's before
a row's; a table with a name or a kind replaces the one before it. `[rows.X.at.Y]` says what row X sets in column Y
alone. The published numbers stand in `published.toml` beside the tables, in the order of `measures`:

    [table1.pat2]
    fedavg = [0.838, 0.135]
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from equipoise import config as configs
from equipoise.config.parts import Table as Params
from equipoise.config.parts import section
from equipoise.errors import EquipoiseError, nearest, require

_STRICT = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class Column:
    """A scenario."""

    title: str
    set: dict[str, Any] = field(default_factory=dict)
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Row:
    """A method."""

    title: str
    set: dict[str, Any] = field(default_factory=dict)
    at: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What it sets in one column, by the column's name."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    """Values to choose from on validation data, by full key; goes over the table's grid."""
    seeds: list[int] | None = None
    columns: list[str] | None = None
    """Left out: all."""
    extra_epoch: bool = False
    """Every client trains one more epoch by itself before it is evaluated."""
    model: Literal["personal", "global"] = "personal"
    """Which model is measured, where a method has both."""
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Choose:
    """How a grid is decided: by the best `by` on validation samples, which the final runs train on."""

    validation: float = 0.1
    rounds: int | None = None
    by: Literal["accuracy_mean", "worst_10", "accuracy_min"] = "accuracy_mean"
    """What is to be high."""
    seed: int = 1000
    """A seed of its own, so that no reported run decided anything."""
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Claim:
    """An inequality that the paper states: in every column, `measure` of one row is less (or more) than others'."""

    says: str
    measure: str
    less: str | None = None
    more: str | None = None
    than: list[str] | float | None = None
    """Rows, or a number; left out: all other rows."""
    by: float = 0.0
    """At least by so much; below 0: it may be so much worse."""
    columns: list[str] | None = None
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        one = (self.less is None) != (self.more is None)
        require(one, f"claim {self.says!r}: less, more", (self.less, self.more), "name a row in exactly one of them")


@dataclass(frozen=True)
class Head:
    """A table's file, but for the run's sections, which `configs` reads."""

    title: str
    source: str
    measures: list[str]
    rows: dict[str, Row]
    columns: dict[str, Column]
    within: dict[str, float] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    grid: dict[str, list[Any]] = field(default_factory=dict)
    choose: Choose = Choose()
    remarks: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Cell:
    """One run of a table, before a grid is decided."""

    row: str
    column: str
    seed: int
    spec: Params
    """A run's sections as they are written, without the seed."""
    grid: tuple[Params, ...]
    """What may be set besides, one of them."""
    extra_epoch: bool = False
    model: str = "personal"

    @property
    def key(self) -> str:
        """Tells this cell from what it was before its file was changed."""
        written = json.dumps([self.spec, self.grid, self.extra_epoch, self.model], sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:12]

    def config(self, chosen: Params | None = None, rounds: float = 1.0, sets: Sequence[str] = ()) -> configs.Config:
        """The run, for a choice out of the grid, with a share of its rounds."""
        spec = merged(self.spec, {"run": {"seed": self.seed}})
        for key, value in (chosen or {}).items():
            put(spec, key, value)
        train = spec.setdefault("train", {})
        train["rounds"] = max(1, round(train.get("rounds", 50) * rounds))
        for change in sets:
            configs.override(spec, change)
        try:
            return configs.resolve(spec)
        except EquipoiseError as error:
            raise EquipoiseError(f"{self.row} in {self.column}: {error.message}", error.hint) from error


@dataclass(frozen=True)
class Table:
    """A published table: what to run, and what it should come to."""

    name: str
    """Such as "fedlf/table1"."""
    head: Head
    cells: tuple[Cell, ...]
    published: Mapping[tuple[str, str], Mapping[str, float]]
    """By (row, column): the paper's number for each measure that it gives."""

    def about(self, cell: Cell) -> str:
        return f"{self.name}: {self.head.rows[cell.row].title}, {self.head.columns[cell.column].title}"


# --------------------------------------------------------------------------------------------------------- reading


def home() -> Path:
    """Where the experiments are: in the current folder, beside the package, or in the repository that it came from."""
    package = Path(__file__).resolve().parents[1]
    places = [Path("experiments"), package / "experiments", package.parents[1] / "experiments"]
    found = next((p for p in places if names(p)), None)
    if found is None:
        raise EquipoiseError("no folder experiments/ with tables here", "name it with --experiments")
    return found


def names(folder: Path) -> list[str]:
    """Every table under a folder of experiments, as PAPER/TABLE."""
    paths = (p for p in folder.glob("*/*.toml") if p.name != "published.toml")
    return sorted(f"{p.parent.name}/{p.stem}" for p in paths)


def matching(wanted: Sequence[str], folder: Path) -> list[str]:
    """The tables that are meant by PAPER or PAPER/TABLE."""
    known = names(folder)
    out: list[str] = []
    for name in wanted:
        found = [n for n in known if n == name or n.split("/")[0] == name]
        if not found:
            papers = {n.split("/")[0] for n in known}
            raise EquipoiseError(f"no published table {name!r} in {folder}", nearest(name, {*known, *papers}))
        out += [n for n in found if n not in out]
    return out


def load(name: str, folder: Path) -> Table:
    """Read and check a table; every cell is resolved, so that nothing wrong waits until its turn."""
    path = folder / f"{name}.toml"
    try:
        raw = configs.parse(configs.read_text(path))
        run = raw.pop("run", {})
        head: Head = section(Head, raw, "table")
        _check(head)
        table = Table(name, head, tuple(_cells(head, run)), _published(head, path))
        for cell in table.cells:
            cell.config(cell.grid[0])
        return table
    except EquipoiseError as error:
        raise EquipoiseError(f"{path}: {error.message}", error.hint) from error


def _check(head: Head) -> None:
    for row in head.rows.values():
        for column in (*(row.columns or ()), *row.at):
            _known(column, head.columns, f"rows: {row.title}: column")
    for claim in head.claims:
        others = claim.than if isinstance(claim.than, list) else []
        for name in (claim.less or claim.more or "", *others):
            _known(name, head.rows, f"claim {claim.says!r}: row")
        for name in claim.columns or ():
            _known(name, head.columns, f"claim {claim.says!r}: column")
        _known(claim.measure, head.measures, f"claim {claim.says!r}: measure")
    for name in head.within:
        _known(name, head.measures, "within")


def _known(name: str, names: Sequence[str] | Mapping[str, Any], where: str) -> None:
    if name not in names:
        raise EquipoiseError(f"{where} {name!r} is not in the table", nearest(name, names))


def _cells(head: Head, run: Params) -> list[Cell]:
    cells = []
    for row_name, row in head.rows.items():
        grid = {**head.grid, **row.grid}
        choices = tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
        for column_name in row.columns or head.columns:
            spec = merged(run, head.columns[column_name].set, row.set, row.at.get(column_name, {}))
            for seed in row.seeds if row.seeds is not None else head.seeds:
                cells.append(Cell(row_name, column_name, seed, spec, choices, row.extra_epoch, row.model))
    return cells


def merged(first: Params, *others: Params) -> Params:
    """Tables over tables; one with a name or a kind replaces the one before it."""
    out = {k: merged(v) if isinstance(v, dict) else v for k, v in first.items()}
    for other in others:
        for key, value in other.items():
            old = out.get(key)
            over = isinstance(value, dict) and isinstance(old, dict) and not {"name", "kind"} & set(value)
            out[key] = merged(old, value) if over else merged(value) if isinstance(value, dict) else value  # type: ignore[arg-type]
    return out


def put(spec: Params, key: str, value: Any) -> None:
    """Set a value by its full key, such as "train.lr"."""
    *path, last = key.split(".")
    for name in path:
        spec = spec.setdefault(name, {})
    spec[last] = value


def _published(head: Head, path: Path) -> dict[tuple[str, str], dict[str, float]]:
    beside = path.parent / "published.toml"
    raw = configs.parse(configs.read_text(beside)).get(path.stem, {}) if beside.is_file() else {}
    found = {}
    for column, rows in raw.items():
        _known(column, head.columns, f"{beside.name}: {path.stem}: column")
        for row, values in rows.items():
            _known(row, head.rows, f"{beside.name}: {path.stem}.{column}: row")
            if not isinstance(values, list) or len(values) > len(head.measures):
                told = f"{beside.name}: {path.stem}.{column}.{row} is {values}"
                raise EquipoiseError(told, f"a list of numbers, in the order of {head.measures}")
            pairs = zip(head.measures, map(float, values), strict=False)
            found[row, column] = {m: v for m, v in pairs if v == v}
    return found
