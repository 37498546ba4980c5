"""Rows on their way to a file: the schemas of the two tables, and bytes that depend on the rows alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch import Tensor

from equipoise import files
from equipoise.errors import EquipoiseError, nearest
from equipoise.results.table import Array, Table

_COUNTS = pa.list_(pa.int32())
CLIENTS = pa.schema(
    [("round", pa.int64()), ("client", pa.int64()), ("split", pa.string()), ("model", pa.string())]
    + [(name, pa.float64()) for name in ("accuracy", "balanced_accuracy", "loss")]
    + [("n", pa.int64()), ("malicious", pa.bool_()), ("quarantined", pa.bool_())]
    + [("class_n", _COUNTS), ("class_correct", _COUNTS)]
)
_CLIENT_ORDER = [(name, "ascending") for name in ("round", "client", "split", "model")]
_ROW_GROUP = 1 << 17


class Rows:
    """Rows of the two tables, in the order in which they came."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []
        self.clients: list[pa.Table] = []

    def append(self, name: str, columns: Mapping[str, Any]) -> None:
        if name == "rounds":
            self.rounds.append(_round_row(columns))
        elif name == "clients":
            self.clients.append(_client_rows(columns))
        else:
            raise EquipoiseError(f"run folder: no table {name!r}", nearest(name, ("rounds", "clients")))

    def clients_table(self) -> pa.Table:
        table = pa.concat_tables([CLIENTS.empty_table(), *self.clients]).combine_chunks()
        return table.sort_by(_CLIENT_ORDER).combine_chunks()

    def rounds_table(self) -> pa.Table:
        rows = sorted(self.rounds, key=lambda row: row["round"])
        names = sorted({name for row in rows for name in row} - {"round", "info"})
        return typed(rows, ["round", *names, "info"])


def _round_row(given: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: _scalar(name, value) for name, value in given.items() if name != "info"}
    if type(row.get("round")) is not int:
        raise EquipoiseError(f"rounds: round is {row.get('round')!r}", "every row needs the number of its round")
    info = given.get("info")
    if info is not None:
        row["info"] = info if isinstance(info, str) else files.encode_json(info, indent=None).decode().strip()
    return row


def _scalar(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic | Tensor):
        value = value.tolist()
    if value is None or type(value) in (bool, float, str) or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    raise EquipoiseError(f"rounds: {name} is {value!r}", "one number, text or truth value; the rest belongs into info")


def typed(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pa.Table:
    """Columns of one type each, over all rows: whole numbers among fractions become fractions, other mixtures text."""
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        kinds = {type(v) for v in values if v is not None}
        if kinds <= {int, float} and kinds != {int}:
            kind, values = pa.float64(), [None if v is None else float(v) for v in values]
        elif len(kinds) == 1:
            kind = {int: pa.int64(), bool: pa.bool_(), str: pa.string()}[kinds.pop()]
        else:
            kind, values = pa.string(), [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
        columns[name] = pa.array(values, pa.string() if name == "info" else kind)
    return pa.table(columns)


def _client_rows(given: Mapping[str, Any]) -> pa.Table:
    """A value for each column of the table: an array with a row per client, or one value for all of them."""
    odd = set(given) ^ set(CLIENTS.names)
    if odd:
        raise EquipoiseError(f"clients: unknown or missing: {sorted(odd)}", f"give {', '.join(CLIENTS.names)}")
    arrays = {k: v.detach().cpu().numpy() if isinstance(v, Tensor) else v for k, v in given.items()}
    n = len(np.atleast_1d(np.asarray(arrays["client"])))
    try:
        return pa.table([_client_column(arrays[f.name], f.type, n) for f in CLIENTS], schema=CLIENTS)
    except (TypeError, ValueError, pa.ArrowException) as e:
        raise EquipoiseError(f"clients: {e}", f"each column has {n} rows, or one value for all") from e


def _client_column(values: Any, kind: pa.DataType, n: int) -> pa.Array:
    if kind == _COUNTS:
        if isinstance(values, np.ndarray) and values.ndim == 2:
            sizes, flat = np.full(len(values), values.shape[1]), values.reshape(-1)
        else:
            sizes = np.array([len(row) for row in values], dtype=int)
            flat = np.concatenate([np.empty(0, int), *(row for row in values if len(row))])
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return pa.ListArray.from_arrays(ends, flat.astype(np.int32, casting="same_kind"))
    if kind == pa.string():
        return pa.array(np.broadcast_to(np.asarray(values, dtype=object), n), kind)
    return pa.array(np.broadcast_to(np.asarray(values).astype(kind.to_pandas_dtype(), casting="same_kind"), n), kind)


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=_ROW_GROUP, compression="zstd", version="2.6")
    return bytes(sink.getvalue())


def arrow(tables: Sequence[pa.Table]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, CLIENTS) as writer:
        writer.write_table(pa.concat_tables(tables).combine_chunks())
    return bytes(sink.getvalue())


def pack(rows: Rows) -> list[tuple[str, bytes]]:
    """Rows as bytes, by table."""
    clients = arrow(rows.clients) if rows.clients else b""
    return [("rounds", json.dumps(rows.rounds, sort_keys=True).encode()), ("clients", clients)]


def unpack(data: Mapping[str, bytes]) -> Rows:
    """The inverse of `pack`."""
    rows = Rows()
    rows.rounds = json.loads(data["rounds"])
    rows.clients = [pa.ipc.open_file(data["clients"]).read_all().cast(CLIENTS)] if data["clients"] else []
    return rows


def table_of(arrow: pa.Table) -> Table:
    return Table({name: _column(arrow[name]) for name in arrow.column_names})


def _column(column: pa.ChunkedArray) -> Array:
    if not pa.types.is_list(column.type):
        return np.asarray(column.to_numpy())
    flat, ends = np.asarray(pc.list_flatten(column)), np.cumsum(pc.list_value_length(column).to_numpy())
    lengths = np.diff(ends, prepend=0)
    if len(lengths) and (lengths == lengths[0]).all():
        return flat.reshape(len(lengths), int(lengths[0]))
    ragged = np.empty(len(lengths), dtype=object)
    ragged[:] = np.split(flat, ends[:-1]) if len(lengths) else []
    return ragged
