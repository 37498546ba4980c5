"""Which samples every client sees in every local step, worked out for the whole cohort before training starts.

A client walks through its data epoch after epoch, each in a new random order, `batch` samples at a time; the last batch
of an epoch may be smaller. The order depends on (seed, round, client) alone: not on the method, the attack, the
other clients in the cohort or the number of workers.

In host memory all is done by numpy, on a device by torch, and the numbers are the same. A round is often so small that
an operation costs what it costs to call it, and calls of numpy are several times cheaper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.at import Schedule
from equipoise.data.federation import Split
from equipoise.streams import Stream

Numbers = npt.NDArray[np.int64]

_EMPTY = 2  # times as large as its content a table of orders may be


@dataclass(frozen=True)
class Batches:
    """The steps of one round: sample numbers and masks [S, b, K, B]; each client's steps and its largest batch.

    `counts` [S, K], in host memory, says how many samples of each client a step has: all that masks depend on.
    """

    index: Tensor
    mask: Tensor
    steps: tuple[int, ...]
    widths: tuple[int, ...]
    counts: Tensor

    @property
    def longest(self) -> int:
        return self.index.shape[0]

    def cut(self, c: slice) -> Batches:
        """These clients alone, without the steps and columns that only others need."""
        s, w = max(self.steps[c], default=0), max(self.widths[c], default=0)
        index, mask = (t[:s, :, c, :w] for t in (self.index, self.mask))
        return Batches(index, mask, self.steps[c], self.widths[c], self.counts[:s, c])

    def between(self, first: int, last: int, who: list[int]) -> Batches:
        """Steps from `first` up to `last` of these clients; all of them, if that is what is asked for."""
        if first == 0 and last == self.longest and len(who) == len(self.steps):
            return self
        at = torch.tensor(who, device=self.index.device)
        index, mask = (t[first:last].index_select(2, at) for t in (self.index, self.mask))
        steps = tuple(max(0, min(self.steps[k], last) - first) for k in who)
        return Batches(index, mask, steps, tuple(self.widths[k] for k in who), self.counts[first:last, who])

    def to(self, device: torch.device) -> Batches:
        if self.index.device == device:
            return self
        return replace(self, index=self.index.to(device), mask=self.mask.to(device))

    @property
    def turns(self) -> list[bool]:
        """[S]: whether the mask of a step is another than that of the step before."""
        counts = self.counts.numpy()
        return [True, *(counts[1:] != counts[:-1]).any(1).tolist()]


class _Far:
    """What is asked of numpy here, on a device."""

    where = staticmethod(torch.where)

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def asarray(self, x: Numbers) -> Tensor:
        return torch.from_numpy(x).to(self.device)

    def arange(self, n: int) -> Tensor:
        return torch.arange(n, device=self.device)

    def repeat(self, x: Tensor, times: Numbers) -> Tensor:
        return torch.repeat_interleave(x, self.asarray(times), output_size=int(times.sum()))


@dataclass(frozen=True)
class _Held:
    """What the clients of a round hold: client k of them `samples[start[k] : start[k] + size[k]]`.

    `size` [K] is in host memory, so that the lengths of everything are known without asking a device; the others are
    what `on` works with, which is numpy or a stand-in for it.
    """

    on: Any
    samples: Any
    start: Any
    ids: Any
    size: Numbers

    @classmethod
    def by(cls, ids: Tensor, split: Split, size: Numbers) -> _Held:
        host = ids.device.type == "cpu"
        samples, start, who = (t.numpy() if host else t for t in (split.index, split.start, ids))
        return cls(np if host else _Far(ids.device), samples, start[who], who, size)


def full(batch: int | None, sizes: Tensor) -> int:
    """How many samples a full batch has, of clients with so many: None is all that one has."""
    most = int(sizes.max()) if len(sizes) else 0
    return min(batch or most, most)


class Pace(NamedTuple):
    """How clients walk through their samples, `width` at a time: in host memory, as it follows from `size` [K]."""

    size: Numbers
    width: int
    steps: Numbers
    """[K] how many they take,"""
    epochs: Numbers
    """[K] in how many orders of their samples;"""
    epoch: Numbers
    """[S, K] in which of them a step is,"""
    before: Numbers
    """[S, K] how many samples of it come before,"""
    counts: Numbers
    """[S, K] and how many are in it."""

    def batches(self, index: Tensor, mask: Tensor) -> Batches:
        widths, steps = np.minimum(self.size, self.width).tolist(), self.steps.tolist()
        return Batches(index, mask.expand_as(index), tuple(steps), tuple(widths), torch.from_numpy(self.counts))


def paces(size: Numbers, schedule: Schedule) -> Pace:
    longest = int(size.max(initial=0))
    width = max(1, min(schedule.batch or longest, longest))
    laps = -(-size // width)
    steps = laps * schedule.epochs if schedule.steps is None else schedule.steps * (size > 0)
    lap = np.maximum(laps, 1)  # clients without data take no step; they must not divide by zero either
    s = np.arange(steps.max(initial=0))[:, None]
    epoch, place = np.divmod(s, lap)
    before = place * width
    return Pace(size, width, steps, -(-steps // lap), epoch, before, np.minimum(size - before, width) * (s < steps))


def in_a_table(entries: int, size: Numbers, epochs: Numbers) -> bool:
    """Whether a table of so many entries is not mostly empty."""
    return 0 < entries <= _EMPTY * int((size * epochs).sum())


def plan_batches(
    split: Split, ids: Tensor, schedule: Schedule, stream: Stream, per_step: int = 1, sizes: Tensor | None = None
) -> Batches:
    """The batches of clients `ids` for one round; `per_step` independent batches in each step.

    All is worked out where `split` and `ids` are; `sizes` [K] in host memory, if known there, saves waiting for a GPU.
    """
    size: Numbers = (split.size[ids].cpu() if sizes is None else sizes).numpy()
    return planned(paces(size, schedule), split, ids, stream, per_step)


def planned(pace: Pace, split: Split, ids: Tensor, stream: Stream, per_step: int) -> Batches:
    """The same, where it is known how clients walk through their samples."""
    held = _Held.by(ids, split, pace.size)
    on, within = held.on, held.on.arange(pace.width)
    mask = within < on.asarray(pace.counts)[..., None]
    layers = []
    for j in range(per_step):
        order, first, pitch = _orders(held, pace.epochs, stream.child(j))
        entry = on.asarray(first + pace.epoch * pitch + pace.before)
        layers.append(torch.as_tensor(order[on.where(mask, entry[..., None] + within, 0)]))
    return pace.batches(torch.stack(layers, 1), torch.as_tensor(mask)[:, None])


def _orders(held: _Held, epochs: Numbers, stream: Stream) -> tuple[Any, Numbers, Numbers]:
    """Every client's sample numbers, shuffled anew for each epoch and laid end to end; where each client begins [K],
    and how far its epochs lie apart [K].

    Where clients have about as much to do, their orders are the rows of one table, sorted at once; where a few have
    many times more than others, a table would be mostly empty. Keys of an order differ in their last id alone, which
    `bits` maps one to one: no two are the same, and it does not matter whether the way to sort them is a stable one.
    """
    shape = len(epochs), int(epochs.max(initial=0)), int(held.size.max(initial=0))
    if in_a_table(math.prod(shape), held.size, epochs):
        return _table(held, shape, stream)
    return _strips(held, epochs, stream)


def _table(held: _Held, shape: tuple[int, int, int], stream: Stream) -> tuple[Any, Numbers, Numbers]:
    """All orders [K, epochs, longest], flat; what lies behind a client's own samples is never looked at."""
    on, (k, epochs, longest) = held.on, shape
    key = stream.bits(held.ids[:, None, None], on.arange(epochs)[:, None], on.arange(longest))
    full = int(held.size.min()) == longest
    at = held.start[:, None, None] + (key.argsort() if full else _by_row(key, held))
    order = held.samples[(at if full else at.clip(max=len(held.samples) - 1)).ravel()]
    return order, np.arange(k) * (epochs * longest), np.full(k, longest)


def _by_row(key: Any, held: _Held) -> Any:
    """The order of each client's own keys in every row; what lies behind them is for nobody to look at."""
    if isinstance(key, Tensor):
        behind = held.on.arange(key.shape[-1]) >= held.on.asarray(held.size)[:, None, None]
        return key.masked_fill(behind, torch.iinfo(torch.int64).max).argsort(stable=True)
    order = np.zeros_like(key)
    for n, row, put in zip(held.size.tolist(), key, order, strict=True):
        put[:, :n] = row[:, :n].argsort()
    return order


def _strips(held: _Held, epochs: Numbers, stream: Stream) -> tuple[Any, Numbers, Numbers]:
    """The same orders one behind the other, without room between them."""
    on, size = held.on, held.size
    client = np.repeat(np.arange(len(size)), epochs)  # one entry per (client, epoch)
    each = size[client]
    epoch = np.arange(len(client)) - (epochs.cumsum() - epochs)[client]
    whose, begin, turn = (on.asarray(x) for x in (client, each.cumsum() - each, epoch))
    run = on.repeat(on.arange(len(client)), each)
    place = on.arange(len(run)) - begin[run]
    key = stream.bits(held.ids[whose][run], turn[run], place)
    laid = size * epochs
    order = held.samples[held.start[whose][run] + place[_by_run(key, run, len(client))]]
    return order, laid.cumsum() - laid, size


def _by_run(key: Any, run: Any, runs: int) -> Any:
    """The order of the keys within each run."""
    order = key.argsort()
    if isinstance(key, Tensor):
        return order[run[order].argsort(stable=True)]
    short = run.astype(np.min_scalar_type(runs))  # 16 bits are sorted many times faster than 64
    return order[short[order].argsort(kind="stable")]
