"""Which samples every client sees in every local step, worked out for the whole cohort before training starts.

A client walks through its data epoch after epoch, each in a new random order, `batch` samples at a time; the last batch
of an epoch may be smaller. The order depends on (seed, round, client) alone: not on the method, the attack, the
other clients in the cohort or the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.at import Schedule
from equipoise.data.federation import Split
from equipoise.streams import Stream

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

    def to(self, device: torch.device) -> Batches:
        return replace(self, index=self.index.to(device), mask=self.mask.to(device))

    @property
    def turns(self) -> list[bool]:
        """[S]: whether the mask of a step is another than that of the step before."""
        return [True, *(self.counts[1:] != self.counts[:-1]).any(1).tolist()]


def plan_batches(
    split: Split, ids: Tensor, schedule: Schedule, stream: Stream, per_step: int = 1, sizes: Tensor | None = None
) -> Batches:
    """The batches of clients `ids` for one round; `per_step` independent batches in each step.

    All is worked out where `split` and `ids` are; `sizes` [K] in host memory, if known there, saves waiting for a GPU.
    """
    known = split.size[ids].cpu() if sizes is None else sizes
    longest = int(known.max()) if len(ids) else 0
    width = max(1, min(schedule.batch or longest, longest))
    laps = (known + width - 1) // width
    steps = laps * schedule.epochs if schedule.steps is None else schedule.steps * (known > 0)
    s = torch.arange(int(steps.max()) if len(ids) else 0)[:, None]
    lap = laps.clamp(min=1)  # clients without data take no step; they must not divide by zero either
    epoch, place = s // lap, s % lap
    counts = (known - place * width).clamp(0, width) * (s < steps)
    runs = (steps + lap - 1) // lap
    epoch, before, count = (t.to(ids.device) for t in (epoch, place * width, counts))
    within = torch.arange(width, device=ids.device)
    mask = within < count[..., None]
    layers = []
    for j in range(per_step):
        order, first, pitch = _orders(split, ids, known, runs, stream.child(j))
        entry = first + epoch * pitch + before
        at = (entry[..., None] + within).masked_fill(~mask, 0)
        layers.append(order[at] if len(order) else torch.zeros_like(at))
    index = torch.stack(layers, 1) if layers else count.new_zeros((0, 0, 0, 0))
    widths = known.clamp(max=width)
    return Batches(index, mask[:, None].expand_as(index), tuple(steps.tolist()), tuple(widths.tolist()), counts)


def _orders(split: Split, ids: Tensor, sizes: Tensor, epochs: Tensor, stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
    """Every client's sample numbers, shuffled anew for each epoch and laid end to end; where each client begins [K],
    and how far its epochs lie apart [K].

    `sizes` and `epochs` [K] are in host memory, so that the lengths of everything are known without asking the device.
    Where clients have about as much to do, their orders are the rows of one table, sorted at once; where a few have
    many times more than others, a table would be mostly empty.
    """
    total, k = int((sizes * epochs).sum()), len(ids)
    longest, most = (int(t.max()) if k else 0 for t in (sizes, epochs))
    if 0 < k * most * longest <= _EMPTY * total:
        return _table(split, ids, sizes, longest, most, stream)
    return _strips(split, ids, sizes, epochs, total, stream)


def _table(
    split: Split, ids: Tensor, sizes: Tensor, longest: int, epochs: int, stream: Stream
) -> tuple[Tensor, Tensor, Tensor]:
    """All orders [K, epochs, longest], flat; what lies behind a client's own samples is never looked at."""
    device, k = ids.device, len(ids)
    place = torch.arange(longest, device=device)
    key = stream.bits(ids[:, None, None], torch.arange(epochs, device=device)[:, None], place)
    if int(sizes.min()) < longest:
        key = key.masked_fill(place >= sizes.to(device)[:, None, None], torch.iinfo(torch.int64).max)
    at = split.start[ids][:, None, None] + torch.argsort(key, dim=-1, stable=True)
    order = split.index[at.clamp_(max=len(split.index) - 1).flatten()]
    each = torch.full((k,), longest, device=device)
    return order, torch.arange(k, device=device) * (epochs * longest), each


def _strips(
    split: Split, ids: Tensor, sizes: Tensor, epochs: Tensor, total: int, stream: Stream
) -> tuple[Tensor, Tensor, Tensor]:
    """The same orders one behind the other, without room between them."""
    device = ids.device
    client = torch.repeat_interleave(torch.arange(len(ids)), epochs)  # one entry per (client, epoch)
    each = sizes[client]
    begin = each.cumsum(0) - each
    epoch = torch.arange(len(client)) - (epochs.cumsum(0) - epochs)[client]
    client, each, begin, epoch = (t.to(device) for t in (client, each, begin, epoch))
    run = torch.repeat_interleave(torch.arange(len(client), device=device), each, output_size=total)
    place = torch.arange(total, device=device) - begin[run]
    key = stream.bits(ids[client][run], epoch[run], place)
    shuffled = torch.argsort(key, stable=True)
    shuffled = shuffled[torch.argsort(run[shuffled], stable=True)]
    laid = sizes * epochs
    order = split.index[split.start[ids][client][run] + place[shuffled]]
    return order, (laid.cumsum(0) - laid).to(device), sizes.to(device)
