"""What server rules remember of clients: the newest row of each, so that absent clients can still count.

A memory is part of a rule's state: "ids" [n] ascending, "rounds" [n], when each client was last heard, and any columns
with a row per client. It never holds more than `cap` clients, the newest first, so its cost does not grow with their
number: cap x d numbers, and twice that for a moment while it changes. Inputs are never changed: a memory that was
handed out stays what it was (a round may be tried again, or written to disk), so whoever stays in it is copied once a
round. Where the cohort is all that is kept, as when everyone takes part, nothing old is touched.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipoise.core import State


def blank(**columns: Tensor) -> State:
    """A memory of nobody; each column is given by an example of one client's row, such as `rows=w`."""
    some = next(iter(columns.values()))
    none = torch.empty(0, dtype=torch.int64, device=some.device)
    return {"ids": none, "rounds": none, **{n: t.new_empty((0, *t.shape)) for n, t in columns.items()}}


def kept(memory: State, ids: Tensor, round: int, cap: int, since: int = 0) -> Tensor:
    """What stays when `ids` are heard in `round`: positions in [ids; memory's ids], in ascending order of client id.

    Whoever was last heard before `since` is forgotten; among clients heard in the same round, lower ids come first.
    Decided in host memory, where this takes a few microseconds, but told where `ids` are.
    """
    again = absent(memory, ids).cpu().numpy()
    new, old, rounds = (t.cpu().numpy() for t in (ids, memory["ids"], memory["rounds"]))
    who = np.concatenate([new, old])
    when = np.concatenate([np.full_like(new, round), rounds])
    at = np.flatnonzero(np.concatenate([np.ones_like(new, dtype=np.bool_), again]) & (when >= since))
    at = at[np.lexsort((who[at], -when[at]))][:cap]
    return torch.from_numpy(at[who[at].argsort()]).to(ids.device)


def remember(memory: State, ids: Tensor, round: int, cap: int, since: int = 0, **columns: Tensor) -> State:
    """The memory after hearing `ids` in `round`, with a new row for each of them in every column."""
    return moved(memory, ids, round, kept(memory, ids, round, cap, since), **columns)


def moved(memory: State, ids: Tensor, round: int, at: Tensor, **columns: Tensor) -> State:
    """The same, for whoever has asked `kept` already, and has more to move in the same way."""
    new, k, at = {"ids": ids, "rounds": torch.full_like(ids, round), **columns}, len(ids), at.cpu()
    fresh = torch.nonzero(at < k).flatten()
    where = torch.cat([(at - k).clamp_(min=0), fresh, at[fresh]])
    sizes = [len(at), len(fresh), len(fresh)]
    there = {d: where.to(d, non_blocking=True).split(sizes) for d in {t.device for t in new.values()}}
    return {name: _picked(t, memory[name], *there[t.device]) for name, t in new.items()}


def _picked(new: Tensor, old: Tensor, stay: Tensor, fresh: Tensor, chosen: Tensor) -> Tensor:
    """`cat([new, old])[at]` without the copy in between, which would be as large as the memory.

    The old rows `stay` but for those at `fresh`, where the `chosen` new ones come.
    """
    rows = new.index_select(0, chosen)
    return rows if len(fresh) == len(stay) else old.index_select(0, stay).index_copy_(0, fresh, rows)


def recall(memory: State, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where `ids` are in the memory, and which of them are in it at all: (positions [K], known [K])."""
    old = memory["ids"]
    if len(old) == 0:
        return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    at = torch.searchsorted(old, ids).clamp(max=len(old) - 1)
    return at, old[at] == ids


def absent(memory: State, ids: Tensor, since: float = 0) -> Tensor:
    """[n]: which of those in the memory are not among `ids`, and were heard in round `since` or later."""
    return ~torch.isin(memory["ids"], ids) & (memory["rounds"] >= since)
