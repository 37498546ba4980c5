"""What must be true of a table's file before anything of it is run, and of the published numbers beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import config as configs
from equipoise.config.parts import Table as Params
from equipoise.config.parts import shown
from equipoise.errors import EquipoiseError, nearest, not_negative, require
from equipoise.reproduce.measures import NAMES

if TYPE_CHECKING:
    from equipoise.reproduce.tables import Head

_ASIDE = "participants"
"""A section of published.toml that is no table: the numbers that a paper's means were worked out from."""


def check(head: Head) -> None:
    """All that can be told of a table without its runs."""
    _some("measures", head.measures)
    for name in head.measures:
        require(name in NAMES, "measures", name, nearest(name, NAMES))
    for name, within in head.within.items():
        _known(name, head.measures, "within")
        require(not_negative(within), f"within.{name}", within, "0 or more")
    _some("columns", head.columns)
    _some("rows", head.rows)
    _seeds("seeds", head.seeds)
    _grid("grid", head.grid)
    for name, row in head.rows.items():
        _some(f"rows.{name}.columns", row.columns)
        for column in (*(row.columns or ()), *row.at):
            _known(column, head.columns, f"rows: {row.title}: column")
        _seeds(f"rows.{name}.seeds", row.seeds)
        _grid(f"rows.{name}.grid", row.grid)
    _claims(head)


def _claims(head: Head) -> None:
    for i, claim in enumerate(head.claims):
        others = claim.than if isinstance(claim.than, list) else None
        _some(f"claims[{i}].than", others)
        _some(f"claims[{i}].columns", claim.columns)
        for name in (claim.less or claim.more or "", *(others or ())):
            _known(name, head.rows, f"claim {claim.says!r}: row")
        for name in claim.columns or ():
            _known(name, head.columns, f"claim {claim.says!r}: column")
        _known(claim.measure, head.measures, f"claim {claim.says!r}: measure")


def _some(key: str, values: Collection[Any] | None) -> None:
    """A list may be left out, where that means something; an empty one means nothing."""
    given = values is None or (len(values) > 0 and len(set(map(str, values))) == len(values))
    require(given, key, values, "at least one, and none twice")


def _seeds(key: str, seeds: list[int] | None) -> None:
    _some(key, seeds)
    require(all(0 <= seed < 2**63 for seed in seeds or ()), key, seeds, "each 0 or more, below 2^63")


def _grid(key: str, grid: Mapping[str, list[Any]]) -> None:
    for name, values in grid.items():
        _some(f'{key}."{name}"', values)
        require(name != "run.seed", key, name, "seeds have a key of their own, and no grid decides on them")


def _known(name: str, names: Collection[str], where: str) -> None:
    if name not in names:
        raise EquipoiseError(f"{where} {name!r} is not in the table", nearest(name, names))


def check_run(spec: Params, where: str) -> None:
    """A cell's sections may set nothing that the table says elsewhere."""
    run = spec.get("run", {})
    require(isinstance(run, dict), f"{where}: run", run, "a table: a line [run.run], then key = value")
    if "seed" in run:
        raise EquipoiseError(f"{where}: run.seed is {shown(run['seed'])}", "list it in the table's or the row's seeds")


# ------------------------------------------------------------------------------------------------ published numbers

Numbers = dict[tuple[str, str], dict[str, float]]


def published(head: Head, path: Path) -> Numbers:
    """What published.toml says of the table in the file `path`, by row and column."""
    beside = path.parent / "published.toml"
    if not beside.is_file():
        return {}
    try:
        raw = configs.parse(configs.read_text(beside))
        tables = {p.stem for p in path.parent.glob("*.toml")} - {beside.stem}
        for name in raw.keys() - {_ASIDE} - tables:
            raise EquipoiseError(f"{name}: there is no table {name}.toml", nearest(name, tables))
        return _numbers(raw.get(path.stem, {}), path.stem, head)
    except EquipoiseError as error:
        raise EquipoiseError(f"{beside.name}: {error.message}", error.hint) from error


def _numbers(raw: Any, table: str, head: Head) -> Numbers:
    found: Numbers = {}
    for column, rows in _table(raw, table).items():
        _known(column, head.columns, f"{table}: column")
        for row, values in _table(rows, f"{table}.{column}").items():
            _known(row, head.rows, f"{table}.{column}: row")
            if not _are_numbers(values) or len(values) > len(head.measures):
                hint = f"a list of numbers, in the order of {head.measures}"
                raise EquipoiseError(f"{table}.{column}.{row} is {shown(values)}", hint)
            pairs = zip(head.measures, map(float, values), strict=False)
            found[row, column] = {m: v for m, v in pairs if v == v}
    return found


def _table(value: Any, where: str) -> Params:
    if not isinstance(value, dict):
        raise EquipoiseError(f"{where} is {shown(value)}", "a table: a line [TABLE.COLUMN], then ROW = [numbers]")
    return value


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
