"""Who takes part in a round: drawn from a stream of its own, so that no method and no attack changes the draw.

Clients are drawn one by one, uniformly or in proportion to their size, and a client that was drawn already, has been
excluded or is not available is passed over. That is exactly sampling without replacement, and its cost depends
on how many are drawn, not on how many there are. All of it is in host memory and done by numpy: the numbers are so few
that an operation costs what it costs to call it.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.engine.settings import Participation
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_BLOCKS = 64  # blocks of draws before giving up on passing over and looking at every client instead


def cohort_size(settings: Participation, n_clients: int) -> int:
    """How many clients a round asks for."""
    if settings.per_round is not None:
        if settings.per_round > n_clients:
            raise EquipoiseError(
                f"participation.per_round is {settings.per_round}, but the federation has {n_clients} clients",
                "lower it, or leave it out for everyone",
            )
        return settings.per_round
    return n_clients if settings.fraction is None else max(1, round(settings.fraction * n_clients))


def with_added(size: int, n_clients: int, added: int) -> int:
    """How many clients a round asks for if an attack added some: as large a share of these as of the others."""
    return size + (-(-added * size // n_clients) if added else 0)


class Participants:
    """Draws the cohort of every round."""

    def __init__(self, settings: Participation, sizes: Tensor, stream: Stream, added: int = 0) -> None:
        self.n, self.size, self.added = len(sizes), cohort_size(settings, len(sizes)), added
        self.settings, self.stream = settings, stream
        self._sizes = sizes.to(torch.float64)
        self._total = self._sizes.cumsum(0).numpy() if settings.sampling == "size" else None
        self._trace = _read_trace(settings.trace, self.n) if settings.trace else None

    def draw(self, round: int, excluded: Tensor) -> Tensor:
        """The ids drawn in a round, ascending; `excluded` [N + added] bool are passed over.

        Clients that an attack added have the ids from N on. As large a share of them is drawn as of the others, from
        a stream of their own, so that they change nothing about who else is drawn.
        """
        out = excluded.numpy()
        drawn = self._honest(round, out[: self.n])
        if self.added:
            free = self.n + np.flatnonzero(~out[self.n :])
            order = free[self.stream.child("added", round).bits(free).argsort()]
            drawn = np.concatenate([drawn, np.sort(order[: self.most - self.size])])
        return torch.from_numpy(drawn)

    @property
    def most(self) -> int:
        """How many clients a round asks for, the added ones included."""
        return with_added(self.size, self.n, self.added)

    def _honest(self, round: int, excluded: Flags) -> Numbers:
        out = excluded if self._trace is None else excluded | ~self._available(round)
        stream = self.stream.child("sample", round)
        if self.size >= self.n and self._trace is None:
            return np.flatnonzero(~out)
        pick = self._by_size if self._total is not None else self._uniform
        drawn: dict[int, None] = {}  # in the order of their first appearance
        block = 2 * self.size + 16
        for b in range(_BLOCKS):
            new = pick(stream, np.arange(b * block, (b + 1) * block))
            drawn.update(dict.fromkeys(new[~out[new]].tolist()))
            if len(drawn) >= self.size:
                return np.sort(np.fromiter(drawn, np.int64, self.size))
        return self._exhaustive(stream, ~out)

    def answering(self, round: int, ids: Tensor) -> Tensor:
        """Those of the drawn clients that do not drop out."""
        if self.settings.dropout == 0:
            return ids
        chance = self.stream.child("dropout", round).uniform(ids.numpy())
        return ids[torch.from_numpy(chance >= self.settings.dropout)]

    def _uniform(self, stream: Stream, counter: Numbers) -> Numbers:
        return stream.integers(self.n, counter)

    def _by_size(self, stream: Stream, counter: Numbers) -> Numbers:
        assert self._total is not None
        if self._total[-1] == 0:
            return self._uniform(stream, counter)
        drawn: Numbers = self._total.searchsorted(stream.uniform(counter) * self._total[-1], side="right")
        return np.minimum(drawn, self.n - 1)

    def _exhaustive(self, stream: Stream, free: Flags) -> Numbers:
        """For when few are left to draw from: the same law, by exponential races over all free clients."""
        ids = torch.from_numpy(np.flatnonzero(free))  # by torch: logarithms of numpy's may differ in the last bit
        speed = self._sizes[ids] if self._total is not None else torch.ones(len(ids), dtype=torch.float64)
        time = -torch.log1p(-stream.child("race").uniform(ids)) / speed
        return np.sort(ids[time.argsort(stable=True)[: self.size]].numpy())

    def _available(self, round: int) -> Flags:
        assert self._trace is not None
        client, first, last = self._trace
        free = np.zeros(self.n, dtype=np.bool_)
        free[client[(first <= round) & (round <= last)].numpy()] = True
        return free


def _read_trace(path: str, n: int) -> tuple[Tensor, Tensor, Tensor]:
    try:
        rows = list(csv.DictReader(Path(path).read_text().splitlines()))
        table = torch.tensor([[int(r["client"]), int(r["from"]), int(r["to"])] for r in rows]).view(-1, 3)
    except (OSError, UnicodeDecodeError) as error:
        raise EquipoiseError(
            f"participation.trace: cannot read {path}: {error}", "give the path of a CSV file"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        hint = "three columns of whole numbers: client,from,to"
        raise EquipoiseError(f"participation.trace: {path} is not a trace: {error!r}", hint) from None
    if len(table) == 0:
        raise EquipoiseError(f"participation.trace: {path} names no client", "a header and a row per client and period")
    if not 0 <= int(table[:, 0].min()) <= int(table[:, 0].max()) < n:
        raise EquipoiseError(f"participation.trace: {path} names a client beyond 0..{n - 1}")
    return table[:, 0], table[:, 1], table[:, 2]
