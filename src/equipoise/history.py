"""What server rules remember of clients: the newest row of each, so that absent clients can still count.

A memory is part of a rule's state: "ids" [n] ascending, "rounds" [n], when each client was last heard, and any columns
with a row per client. It never holds more than `cap` clients, the newest first, so its cost does not grow with their
number: cap x d numbers, twice that for a moment while it changes, and once more where a rule starts anew. Inputs are
never changed: a memory that was handed out stays what it was (a round may be tried again, or written to disk), so
whoever stays in it is copied once a round. Where the cohort is all that is kept, as when everyone takes part, nothing
old is touched.

Who stays and who is absent is decided in host memory by numpy, in microseconds, wherever the memory is; to keep "ids",
"rounds" and other single numbers there spares a GPU the questions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from equipoise.core import State
from equipoise.solvers import Bools, Ints


def blank(**columns: Tensor) -> State:
    """A memory of nobody; each column is given by an example of one client's row, such as `rows=w`."""
    device = next((t.device for t in columns.values()), torch.device("cpu"))
    none = torch.empty(0, dtype=torch.int64, device=device)
    return {"ids": none, "rounds": none, **{n: t.new_empty((0, *t.shape)) for n, t in columns.items()}}


def kept(memory: State, ids: Tensor, round: int, cap: int, since: int = 0) -> Tensor:
    """What stays when `ids` are heard in `round`: positions in [ids; memory's ids], in ascending order of client id.

    Whoever was last heard before `since` is forgotten; among clients heard in the same round, lower ids come first.
    """
    new, old, rounds = _numbers(ids, memory["ids"], memory["rounds"])
    who, when = np.concatenate([new, old]), np.concatenate([np.full_like(new, round), rounds])
    newest = np.concatenate([np.ones(len(new), np.bool_), ~among(old, new)])
    at = (newest & (when >= since)).nonzero()[0]
    at = at[np.lexsort((who[at], -when[at]))][:cap]
    return torch.from_numpy(at[who[at].argsort()]).to(ids.device)


def remember(memory: State, ids: Tensor, round: int, cap: int, since: int = 0, **columns: Tensor) -> State:
    """The memory after hearing `ids` in `round`, with a new row for each of them in every column."""
    return moved(memory, ids, round, kept(memory, ids, round, cap, since), **columns)


def moved(memory: State, ids: Tensor, round: int, at: Tensor, **columns: Tensor) -> State:
    """The same, for whoever has asked `kept` already, and has more to move in the same way."""
    new, at = {"ids": ids, "rounds": torch.full_like(ids, round), **columns}, at.cpu()
    return {name: _picked(t, memory[name], at) for name, t in new.items()}


def _picked(new: Tensor, old: Tensor, at: Tensor) -> Tensor:
    """`cat([new, old])[at]`, of rows without the copy in between, which would be as large as the memory."""
    if new.dim() == 1 and new.device.type == "cpu":
        return torch.from_numpy(np.concatenate([new.numpy(), old.cpu().numpy()])[at.numpy()])
    if new.dim() == 1:
        return torch.cat([new, old]).index_select(0, at.to(new.device, non_blocking=True))
    from_new = at.numpy() < len(new)
    if from_new.all():
        return new.index_select(0, at.to(new.device, non_blocking=True))
    fresh = from_new.nonzero()[0]
    where = np.concatenate([np.maximum(at.numpy() - len(new), 0), fresh, at.numpy()[fresh]])
    there = torch.from_numpy(where).to(new.device, non_blocking=True)  # at once, and without waiting for a GPU
    stay, into, chosen = torch.split(there, [len(at), len(fresh), len(fresh)])
    return old.index_select(0, stay).index_copy_(0, into, new.index_select(0, chosen))


def recall(memory: State, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where `ids` are in the memory, and which of them are in it at all: (positions [K], known [K])."""
    old = memory["ids"]
    if len(old) == 0:
        return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    at = torch.searchsorted(old, ids).clamp(max=len(old) - 1)
    return at, old[at] == ids


def absent(memory: State, ids: Tensor, since: float = 0) -> Tensor:
    """[n]: which of those in the memory are not among `ids`, and were heard in round `since` or later."""
    new, old, rounds = _numbers(ids, memory["ids"], memory["rounds"])
    return torch.from_numpy(~among(old, new) & (rounds >= since)).to(memory["ids"].device)


def _numbers(*tensors: Tensor) -> list[Ints]:
    return [t.cpu().numpy() for t in tensors]


def joint(known: Tensor, ids: Tensor) -> Tensor:
    """Both, ascending, as these do; `known` itself where nobody is new."""
    old, new = _numbers(known, ids)
    return known if among(new, old).all() else torch.from_numpy(np.union1d(old, new)).to(known.device)


def among(some: Ints, ids: Ints) -> Bools:
    """Which of `some` are among `ids`, which ascend."""
    found: Bools = ids.take(ids.searchsorted(some), mode="clip") == some if len(ids) else np.zeros(len(some), np.bool_)
    return found
