"""A small table in memory: named columns, and the few things people do with them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from equipoise.errors import EquipoiseError, nearest

Array = np.ndarray[Any, Any]


class Table:
    """Named columns of equal length, one numpy array each: `table["loss"]`, `table.filter(split="test")`."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._columns = {name: np.asarray(column) for name, column in columns.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Array:
        if name not in self._columns:
            raise EquipoiseError(f"table: no column {name!r}", nearest(name, self._columns))
        return self._columns[name]

    def _take(self, rows: Any) -> Table:
        return Table({name: column[rows] for name, column in self._columns.items()})

    def filter(self, **equals: Any) -> Table:
        """The rows where every named column has the given value."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in equals.items():
            keep &= np.asarray(self[name] == value, dtype=bool)
        return self._take(keep)

    def sort(self, *names: str, descending: bool = False) -> Table:
        """Rows in order of the named columns, the first one first; equals keep their order, missing values go last."""
        return self._take(np.lexsort([_ranks(self[name], descending) for name in reversed(names)])) if names else self

    def head(self, n: int = 5) -> Table:
        return self._take(slice(0, n))

    def to_pandas(self) -> Any:
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as e:
            raise EquipoiseError("to_pandas: pandas is not installed", "pip install pandas") from e
        return pandas.DataFrame({k: list(c) if c.ndim > 1 else c for k, c in self._columns.items()})

    def __repr__(self) -> str:
        lines, shown = [""] * (min(len(self), 10) + 1), 0
        for name, column in self._columns.items():
            cells = [name, *map(_cell, column[:10])]
            width = max(map(len, cells))
            if shown and len(lines[0]) + width > 118:
                break
            lines = [f"{line}{cell:>{width}}  " for line, cell in zip(lines, cells, strict=True)]
            shown += 1
        hidden = f", {len(self._columns) - shown} not shown" if shown < len(self._columns) else ""
        tail = f"[{len(self)} rows, {len(self._columns)} columns{hidden}]"
        return "\n".join([*(line.rstrip() for line in lines), tail])


def _ranks(column: Array, descending: bool) -> Array:
    if column.ndim > 1:
        raise EquipoiseError("table: cannot sort by a column of lists", "sort by a column of single values")
    missing = np.array([v is None for v in column]) if column.dtype == object else column != column
    ranks = np.full(len(column), len(column))
    ranks[~missing] = np.unique(column[~missing], return_inverse=True)[1] * (-1 if descending else 1)
    return ranks


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join(str(value).split())
    return text if len(text) <= 24 else text[:23] + "…"
