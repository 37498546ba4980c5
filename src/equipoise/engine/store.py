"""The clients' lasting state, kept only for clients that have some.

One table per key, a row per client that has ever taken part, grown by doubling: memory follows the clients seen, not
the clients registered, and reading or writing a cohort is one indexing operation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import State


class ClientStore:
    """Rows of state by client id."""

    def __init__(self, n_clients: int) -> None:
        self._slot = torch.full((n_clients,), -1, dtype=torch.int64)
        self._used = 0
        self._tables: State = {}

    def known(self, ids: Tensor) -> Tensor:
        """[K] bool: which of these clients have state here."""
        return self._slot[ids.cpu()] >= 0

    def get(self, ids: Tensor) -> State:
        """The state of clients that are all known, a row each."""
        return {n: t[self._slot[ids.cpu()].to(t.device)] for n, t in self._tables.items()}

    def put(self, ids: Tensor, state: State) -> None:
        """Replace the state of these clients; new ones get a row."""
        if not state:
            return
        ids = ids.cpu()
        new = ids[self._slot[ids] < 0]
        self._slot[new] = torch.arange(self._used, self._used + len(new))
        self._used += len(new)
        for name, rows in state.items():
            table = self._tables.get(name)
            if table is None or table.shape[0] < self._used:
                table = self._grown(table, rows)
                self._tables[name] = table
            table[self._slot[ids].to(table.device)] = rows

    def _grown(self, table: Tensor | None, like: Tensor) -> Tensor:
        twice = min(2 * (0 if table is None else table.shape[0]), len(self._slot))
        bigger = like.new_zeros((max(self._used, twice), *like.shape[1:]))
        if table is not None:
            bigger[: table.shape[0]] = table
        return bigger

    def ids(self) -> Tensor:
        """All clients that have state, ascending."""
        return torch.nonzero(self._slot >= 0).flatten()

    def dump(self) -> State:
        """Everything, for a checkpoint."""
        ids = self.ids()
        return {"ids": ids, **{f"rows/{n}": t for n, t in self.get(ids).items()}} if len(ids) else {}

    def load(self, dumped: State) -> None:
        if dumped:
            rows = {n.removeprefix("rows/"): t for n, t in dumped.items() if n != "ids"}
            self.put(dumped["ids"], rows)
