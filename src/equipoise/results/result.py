"""What a run gives back, with a folder and without."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise import files, metrics
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.results.rows import Rows, pack, table_of, unpack
from equipoise.results.table import Table

State = Literal["running", "interrupted", "finished", "failed"]
_ROWS = "rows/"  # before the names of a run's tables in a checkpoint
_UNTESTED = 'nobody was tested: there are no test samples (data.test), or run.splits is "validation"'


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a run returns, the same with a folder and without."""

    clients: Table
    rounds: Table
    _summary: Mapping[str, Any]
    model: Tensor | None
    personal: dict[int, Tensor] | None
    """The model of each client that has one of its own."""
    config: Mapping[str, Any]
    path: Path | None = None
    note: str = ""
    """Why it is not the whole run, if it is not."""

    def summary(self) -> dict[str, Any]:
        return dict(self._summary)

    def served(self, model: str = "personal") -> Table:
        """The final test rows of the models that clients use, or of the "global" one where there are both."""
        test = self.clients.filter(split="test")
        if not len(test):
            raise EquipoiseError(f"{self.path or 'this run'}: {_UNTESTED}", "give clients test samples")
        last = test.filter(round=int(test["round"].max()))
        return last.filter(model=model if model in set(last["model"]) else "global")

    @property
    def why_empty(self) -> str:
        """Why the summary has no measures of clients, if it has none."""
        if not len(self.clients.filter(split="test")):
            return _UNTESTED
        last = self.served()
        return metrics.why_nobody(last["n"], last["malicious"])

    def __repr__(self) -> str:
        why = self.note or self.why_empty
        note = f"; {why}" if why else ""
        return f"Result({self.path or 'in memory'}: {len(self.rounds)} rounds, {len(self.clients)} client rows{note})"


def parse_config(config: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(config.decode())
    except ValueError:
        return {}


class MemoryRun:
    """A run without a folder: the same calls as a RunFolder, and nothing touches the disk."""

    def __init__(self, config: bytes = b"", models: bool = True) -> None:
        self.config, self.models = config, models
        self.parts: tuple[tuple[str, str], ...] = ()
        self._rows = Rows()

    def append(self, name: str, columns: Mapping[str, Any]) -> None:
        self._rows.append(name, columns)

    def flush(self, round: int) -> tuple[tuple[str, str], ...]:
        return ()

    def time(self, round: int, seconds: Mapping[str, float]) -> None: ...

    def mark(self, state: State, round: int, reason: str = "") -> None: ...

    def log(self, line: str) -> None: ...

    def discard_after(self, round: int) -> None:
        self._rows = Rows()

    def close(self) -> None: ...

    def packed(self) -> dict[str, Tensor]:
        """The rows so far, as bytes."""
        return {_ROWS + name: torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for name, data in pack(self._rows)}

    def unpack(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from these rows."""
        self._rows = unpack(
            {n.removeprefix(_ROWS): t.numpy().tobytes() for n, t in tensors.items() if n.startswith(_ROWS)}
        )

    def finish(
        self,
        summary: Mapping[str, Any],
        model: Tensor,
        personal: Mapping[int, Tensor] | None = None,
        layout: Layout | None = None,
    ) -> Result:
        own = None if personal is None else {int(k): personal[k].detach().cpu().clone() for k in sorted(personal)}
        rounds, clients = table_of(self._rows.rounds_table()), table_of(self._rows.clients_table())
        plain = json.loads(files.encode_json(summary))
        kept = model.detach().cpu().clone() if self.models else None
        return Result(clients, rounds, plain, kept, own, parse_config(self.config))
