"""The clients' lasting state, kept only for clients that have some, where it fits.

One table per key, a row per client that has ever taken part, in blocks of rows that are never moved: memory follows the
clients seen, not the clients registered, and growing needs no second copy. Each new block goes to the first place with
room for it (`run.personal` names one place instead, for all of them):

    device   the memory that clients train in, up to half of what was free in it when the first state came
    host     pinned memory of the machine, up to half of what was available; without a GPU this is the device's already
    disk     a file in the temporary folder (TMPDIR), mapped into memory; its name is gone at once, so nothing stays

Numbers do not depend on the place. Rows come to the device, and leave it, in the order of its current stream; nobody
waits for them, except that rows from a file are first read into pinned memory, and rows for a file are taken over from
pinned memory at the next access to their table.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from equipoise import files
from equipoise.core import State
from equipoise.errors import EquipoiseError
from equipoise.large import Pieces, whole
from equipoise.questions import sent

Place = Literal["device", "host", "disk"]
Wish = Literal["auto", "device", "host", "disk"]
_SHARE = 0.5  # of the memory that was free; the rest is for training
_BLOCK = 1 << 28  # bytes in a block: a table that is smaller has one
_MANY = 8  # rows of a block at least: pinned memory is dealt in powers of 2, and what is left of one is lost


class Seen:
    """A state as a rule is shown it, to tell afterwards what has become of it."""

    def __init__(self, state: State) -> None:
        self._state, self._writes = dict(state), {n: t._version for n, t in state.items()}

    def changed(self, new: State) -> State:
        """What of `new` is something else than was shown."""
        return {n: t for n, t in new.items() if t is not self._state.get(n)}

    def written(self) -> list[str]:
        """What has been written to, where it lies; torch counts that."""
        return [n for n, t in self._state.items() if t._version != self._writes[n]]

    def require_untouched(self, rule: object) -> None:
        """An error if a rule has written into what it was shown.

        That is also what clients fall back on who diverge, or have no local step left; and a recorded step is played
        with other memory than it was recorded with.
        """
        if written := self.written():
            found = f"{type(rule).__name__} writes into {', '.join(written)}, which it was given"
            raise EquipoiseError(found, "make a new tensor: w = w - step, in place of w -= step or w.sub_(step)")


class ClientStore:
    """Rows of state by client id."""

    def __init__(self, n_clients: int, device: torch.device | None = None, personal: Wish = "device") -> None:
        self._slot = np.full(n_clients, -1)  # numpy: there are few at a time, and its calls are cheaper
        self._used = 0
        self._tables: dict[str, Table] = {}
        self._lane, self._personal = Lane(device or torch.device("cpu")), personal
        self._room: dict[Place, float] = {}

    def known(self, ids: Tensor) -> Tensor:
        """[K] bool: which of these clients have state here."""
        return torch.from_numpy(self._slot[ids.cpu().numpy()] >= 0)

    def get(self, ids: Tensor) -> State:
        """The state of clients that are all known, a row each."""
        slots = self._slots(ids)
        return {n: t.read(slots) for n, t in self._tables.items()}

    def _slots(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self._slot[ids.cpu().numpy()])

    def put(self, ids: Tensor, state: State) -> None:
        """Replace the state of these clients; new ones get a row."""
        if not state:
            return
        at = ids.cpu().numpy()
        new = at[self._slot[at] < 0]
        self._slot[new] = np.arange(self._used, self._used + len(new))
        self._used += len(new)
        slots = self._slots(ids)
        for name, rows in state.items():
            if name not in self._tables:
                self._tables[name] = Table(rows, len(self._slot), self._lane)
            table = self._tables[name]
            while table.room < self._used:
                table.grow(self._take(table.bytes))
            table.write(slots, rows.to(self._lane.device))

    def _take(self, size: int) -> Place:
        """The first place with room for a block of this size, which is then taken."""
        self._room = self._room or rooms(self._personal, *free_memory(self._lane.device))
        place = next(p for p, room in self._room.items() if size <= room)
        self._room[place] -= size
        return place

    def ids(self) -> Tensor:
        """All clients that have state, ascending."""
        return torch.from_numpy(np.flatnonzero(self._slot >= 0))

    def places(self) -> dict[str, list[Place]]:
        """Where the blocks of each table are."""
        return {name: [place for place, _ in table.blocks] for name, table in self._tables.items()}

    def dump(self) -> State:
        """Everything, in host memory."""
        return whole(self.point())

    def point(self) -> dict[str, Tensor | Pieces]:
        """The same for a checkpoint, in pieces: neither device nor host may have room for all of it once more."""
        ids = self.ids()
        if len(ids) == 0:
            return {}

        def each(table: Table) -> Iterator[Tensor]:
            return (table.read(self._slots(some)).cpu() for some in torch.split(ids, table.length))

        rows = {n: Pieces((len(ids), *t.shape), t.dtype, partial(each, t)) for n, t in self._tables.items()}
        return {"ids": ids, **{f"rows/{n}": pieces for n, pieces in rows.items()}}

    def load(self, dumped: State) -> None:
        if dumped:
            rows = {n.removeprefix("rows/"): t for n, t in dumped.items() if n != "ids"}
            few = min(_length(t, len(self._slot)) for t in rows.values())
            for at in torch.split(torch.arange(len(dumped["ids"])), few):
                self.put(dumped["ids"][at], {n: t[at[0] : at[-1] + 1] for n, t in rows.items()})


# ------------------------------------------------------------------------------------------------------- places


def rooms(personal: Wish, device: int, host: int) -> dict[Place, float]:
    """The places that may be used, in this order, and the bytes to keep in each, with so many free on device and host.

    What a disk holds is seen when a file is made there.
    """
    if personal != "auto":
        return {personal: math.inf}
    return {"device": _SHARE * device, "host": _SHARE * host, "disk": math.inf}


def free_memory(device: torch.device) -> tuple[int, int]:
    """Bytes free on a device, and in host memory besides."""
    if device.type != "cuda":
        return _free_on_host(), 0
    set_aside = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + set_aside, _free_on_host()


def _free_on_host() -> int:
    """What the machine can spare, or the container that this runs in."""
    machine = _lines("/proc/meminfo").get("MemAvailable:")
    free = machine * 1024 if machine is not None else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _lines("/sys/fs/cgroup/memory.max", "max ").get("max")
    return free if limit is None else max(0, min(free, limit - _lines("/sys/fs/cgroup/memory.stat").get("anon", 0)))


def _lines(path: str, before: str = "") -> dict[str, int]:
    """The numbers in one of the kernel's files, by the word before each; none where there is no such file."""
    try:
        words = [(before + line).split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    return {w[0]: int(w[1]) for w in words if len(w) > 1 and w[1].isdigit()}


def _mapped(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory in a file of its own, whose name is gone before anything is in it."""
    folder, numbers = tempfile.gettempdir(), max(1, math.prod(shape))
    wanted = numbers * dtype.itemsize
    free = shutil.disk_usage(folder).free
    if wanted > free:
        told = f"the clients' state needs {wanted:,} bytes more in {folder}, where {free:,} are free"
        raise EquipoiseError(told, "free some space, or set TMPDIR to a folder on a larger disk")
    with files.disk(f"keep {wanted:,} bytes of the clients' state in", folder), tempfile.NamedTemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):  # room that is only promised kills the process once it is needed and gone
            os.posix_fallocate(file.fileno(), 0, wanted)
        whole = torch.from_file(file.name, shared=True, size=numbers, dtype=dtype)
    return whole[: math.prod(shape)].view(shape)


# ------------------------------------------------------------------------------------------------------- tables


class Lane:
    """The way of rows between the places where they are kept and the device; of copies, each waits for those before."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._apart = device, device.type == "cuda"
        self._sent = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64, device=device)

    def block(self, place: Place, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if place == "disk":
            return _mapped(shape, dtype)
        if place == "host":
            return torch.empty(shape, dtype=dtype, pin_memory=self._apart)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def near(self, slots: Tensor) -> Tensor:
        """Slots, on the device; those of the last time are there already: what is read is often what is written."""
        here, there = self._sent
        if not torch.equal(here, slots):
            self._sent = slots, sent(slots, there)
        return self._sent[1]

    def leaving(self, mapped: Tensor) -> Tensor:
        """A row in a file, where the device can copy it from."""
        return mapped.pin_memory() if self._apart else mapped

    def landing(self, mapped: Tensor) -> Tensor:
        """Where the device can copy a row to that is meant for a file: the place itself, or one on the way."""
        return torch.empty_like(mapped, pin_memory=True) if self._apart else mapped

    def copy(self, to: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        """Begin to copy rows: the device sees them at the right time, whoever else looks calls `arrival` first."""
        if to:
            torch._foreach_copy_(list(to), list(rows), non_blocking=self._apart)

    def arrival(self) -> Callable[[], object]:
        """To be called later: waits for all copies begun before now."""
        return torch.cuda.current_stream(self.device).record_event().synchronize if self._apart else lambda: None


class Table:
    """The rows of one key, in blocks; a row's slot says which block it is in."""

    def __init__(self, like: Tensor, n_clients: int, lane: Lane) -> None:
        self.shape, self.dtype, self.length = like.shape[1:], like.dtype, _length(like, n_clients)
        self.bytes = self.length * _row(like)
        self.blocks: list[tuple[Place, Tensor]] = []
        self._lane = lane
        self._late: tuple[list[Tensor], list[Tensor], Callable[[], object]] | None = None

    @property
    def room(self) -> int:
        return len(self.blocks) * self.length

    def grow(self, place: Place) -> None:
        self.blocks.append((place, self._lane.block(place, (self.length, *self.shape), self.dtype)))

    def read(self, slots: Tensor) -> Tensor:
        """The rows in these slots, on the device."""
        if self._at_hand:
            return self.blocks[0][1].index_select(0, self._lane.near(slots))
        self._settle()
        out = torch.empty((len(slots), *self.shape), dtype=self.dtype, device=self._lane.device)
        kept = [self._lane.leaving(row) if place == "disk" else row for place, row in self._rows(slots)]
        self._lane.copy(out.unbind(), kept)
        return out

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """Rows from the device into these slots."""
        if self._at_hand:
            self.blocks[0][1].index_copy_(0, self._lane.near(slots), rows)
            return
        self._settle()
        kept = self._rows(slots)
        to = [self._lane.landing(row) if place == "disk" else row for place, row in kept]
        self._lane.copy(to, rows.unbind())
        late = [(row, landed) for (_, row), landed in zip(kept, to, strict=True) if landed is not row]
        if late:
            self._late = [row for row, _ in late], [landed for _, landed in late], self._lane.arrival()

    @property
    def _at_hand(self) -> bool:
        """Whether all rows are in one tensor on the device, which is read and written in one operation."""
        return len(self.blocks) == 1 and self.blocks[0][0] == "device"

    def _rows(self, slots: Tensor) -> list[tuple[Place, Tensor]]:
        at = ((self.blocks[slot // self.length], slot % self.length) for slot in slots.tolist())
        return [(place, block[row]) for (place, block), row in at]

    def _settle(self) -> None:
        """Take over what was still on its way to a file when it was written."""
        if self._late is not None:
            rows, landed, arrival = self._late
            arrival()
            torch._foreach_copy_(rows, landed)
            self._late = None


def _row(like: Tensor) -> int:
    """Bytes in a row."""
    return max(1, math.prod(like.shape[1:]) * like.dtype.itemsize)


def _length(like: Tensor, n_clients: int) -> int:
    """How many rows a block has."""
    return max(1, min(n_clients, max(_BLOCK, 1 << (_MANY * _row(like) - 1).bit_length()) // _row(like)))
