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

A section [participants] there is for what a paper's numbers were worked out from; nothing reads it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from equipoise import config as configs
from equipoise import registry
from equipoise.config.checks import require_tests
from equipoise.config.parts import Table as Params
from equipoise.config.parts import section, shown
from equipoise.errors import EquipoiseError, nearest, require
from equipoise.reproduce.checks import check, check_run, published

_STRICT = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class Column:
    """A scenario."""

    title: str
    """As the page calls it."""
    set: dict[str, Any] = field(default_factory=dict)
    """What it sets over the run's sections: `set.data.partition = { kind = "iid" }`."""
    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Row:
    """A method."""

    title: str
    """As the page calls it."""
    set: dict[str, Any] = field(default_factory=dict)
    """What it sets over the run's sections and the column's: `set.method = { name = "fedavg" }`."""
    at: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What it sets in one column, by the column's name."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    """Values to choose from on validation data, by full key; goes over the table's grid."""
    seeds: list[int] | None = None
    """Left out: the table's."""
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
    """The share of the training samples that a choice is made on."""
    rounds: int | None = None
    """How many rounds a trial has; left out: as many as the run."""
    by: Literal["accuracy_mean", "worst_10", "accuracy_min"] = "accuracy_mean"
    """What is to be high."""
    seed: int = 1000
    """A seed of its own, so that no reported run decided anything."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        require(0 < self.validation < 1, "choose.validation", self.validation, "a share above 0, below 1")
        require(self.rounds is None or self.rounds >= 1, "choose.rounds", self.rounds, "1 or more, or leave it out")
        require(0 <= self.seed < 2**63, "choose.seed", self.seed, "0 or more, below 2^63")


@dataclass(frozen=True)
class Claim:
    """An inequality that the paper states: in every column, `measure` of one row is less (or more) than others'."""

    says: str
    """The claim in words."""
    measure: str
    """Which of the table's measures it is about."""
    less: str | None = None
    """The row that is to have less than the others."""
    more: str | None = None
    """The row that is to have more; one of the two is given."""
    than: list[str] | float | None = None
    """Rows, or a number; left out: all other rows."""
    by: float = 0.0
    """At least by so much; below 0: it may be so much worse."""
    columns: list[str] | None = None
    """Left out: all."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        one = (self.less is None) != (self.more is None)
        require(one, f"claim {self.says!r}: less, more", (self.less, self.more), "name a row in exactly one of them")


@dataclass(frozen=True)
class Head:
    """A table's file, but for the run's sections, which `configs` reads."""

    title: str
    """At the top of the table's page."""
    source: str
    """Where the table was published."""
    measures: list[str]
    """What is measured: numbers of a run's summary, or those of `reproduce/measures.py`."""
    rows: dict[str, Row]
    """The methods, by name."""
    columns: dict[str, Column]
    """The scenarios, by name."""
    within: dict[str, float] = field(default_factory=dict)
    """As near as this to the published number agrees with it, by measure; left out: no marks."""
    seeds: list[int] = field(default_factory=lambda: [0])
    """The seeds of every row that has none of its own."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    """Values to choose from on validation data, by full key, for all rows and columns."""
    choose: Choose = Choose()
    """How a grid is decided."""
    remarks: list[str] = field(default_factory=list)
    """What the paper leaves open, and what was chosen."""
    claims: list[Claim] = field(default_factory=list)
    """What the paper says of the numbers."""
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
        """Tells this cell from what it was before its file was changed, or that of a part of the user's own in it."""
        own = registry.own_files({name: [self.spec.get(name), self.grid] for name in configs.SECTIONS})
        told = [self.spec, self.grid, self.extra_epoch, self.model, *([own] if own else [])]
        written = json.dumps(told, sort_keys=True)
        return hashlib.sha256(written.encode()).hexdigest()[:12]

    def config(self, chosen: Params | None = None, rounds: float = 1.0, sets: Sequence[str] = ()) -> configs.Config:
        """The run, for a choice out of the grid, with a share of its rounds."""
        spec = merged(self.spec, {"run": {"seed": self.seed}})
        try:
            for key, value in (chosen or {}).items():
                configs.put(spec, key.split("."), value, f"grid: {key}")
            for change in sets:
                configs.override(spec, change)
            config = configs.resolve(spec)
            return with_rounds(config, config.train.rounds * rounds)
        except EquipoiseError as error:
            raise EquipoiseError(f"{self.row} in {self.column}: {error.message}", error.hint) from error


def with_rounds(config: configs.Config, rounds: float) -> configs.Config:
    """The run with so many rounds, at least one."""
    return replace(config, train=replace(config.train, rounds=max(1, round(rounds))))


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
    """The tables that are meant by PAPER, PAPER/TABLE, or PAPER/TABLE for TABLE on all of its datasets."""
    known = names(folder)
    out: list[str] = []
    for name in wanted:
        found = [n for n in known if name in (n, n.split("/")[0])] or [n for n in known if n.startswith(f"{name}-")]
        if not found:
            papers = {n.split("/")[0] for n in known}
            raise EquipoiseError(f"no published table {name!r} in {folder}", nearest(name, {*known, *papers}))
        out += [n for n in found if n not in out]
    return out


def load(name: str, folder: Path) -> Table:
    """Read and check a table; every run that it may come to is resolved, so that nothing wrong waits for its turn."""
    path = folder / f"{name}.toml"
    try:
        raw = configs.parse(configs.read_text(path))
        run = raw.pop("run", {})
        if not isinstance(run, dict):
            raise EquipoiseError(f"run is {shown(run)}", "the run's sections: [run.data], [run.model], ...")
        head: Head = section(Head, raw, "")
        check(head)
        table = Table(name, head, tuple(_cells(head, run)), published(head, path))
        for cell in {cell.key: cell for cell in table.cells}.values():  # seeds change nothing about what is right
            for tried in cell.grid:
                require_tests(cell.config(tried), "a table")
        return table
    except EquipoiseError as error:
        raise EquipoiseError(f"{path}: {error.message}", error.hint) from error


def _cells(head: Head, run: Params) -> list[Cell]:
    cells = []
    for row_name, row in head.rows.items():
        grid = {**head.grid, **row.grid}
        choices = tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
        for column_name in row.columns or head.columns:
            spec = merged(run, head.columns[column_name].set, row.set, row.at.get(column_name, {}))
            check_run(spec, f"{row_name} in {column_name}")
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
