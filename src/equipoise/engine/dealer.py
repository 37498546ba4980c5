"""Batches where a round needs them: planned by numpy in host memory, or dealt on a GPU in one launch.

To shuffle the samples of ten clients takes numpy a quarter of the time that a GPU takes to train a small model with
them. How many samples a client has in every step follows from how many it holds, which is known in host memory; the
orders themselves are work that is the same round after round, and so one CUDA graph (`graphs.Repeated`). It is made for
the most samples that any client has, so that cohorts of clients with about as many share it. The numbers are those of
`plan_batches`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.at import Schedule
from equipoise.data.federation import Split
from equipoise.engine.batches import Batches, Numbers, Pace, full, in_a_table, paces, planned
from equipoise.engine.graphs import Repeated
from equipoise.questions import sent
from equipoise.streams import Stream, bits_of

_FEW = 1 << 14  # samples in a round, whose batches numpy has sooner than a GPU can be told to one by one
_TABLE = 1 << 20  # keys that are sorted in a graph, which holds on to memory for them


class Deal(NamedTuple):
    """What is dealt: to so many clients so many batches a step, from orders of so many samples; how many steps."""

    clients: int
    per_step: int
    epochs: int
    longest: int
    steps: int
    width: int

    @property
    def entries(self) -> int:
        return self.per_step * self.clients * self.epochs * self.longest


class Dealer:
    """The batches of rounds, of clients who hold what `host` and `far`, on the run's device, say."""

    def __init__(self, host: Split, far: Split) -> None:
        self._host, self._far, self._longest = host, far, full(None, host.size)
        self._dealt = Repeated(partial(deal, far.index))

    def __call__(self, ids: Tensor, schedule: Schedule, stream: Stream, per_step: int = 1) -> Batches:
        """Of these clients, whose ids are in host memory, in one round."""
        pace, device = paces(self._host.size[ids].numpy(), schedule), self._far.index.device
        if self._far.index.is_cuda:
            what = self._room(pace, schedule, per_step)
            if what.entries <= _TABLE and in_a_table(what.entries // per_step, pace.size, pace.epochs):
                return self._at_once(what, pace, ids, stream)
            if int(pace.size.sum()) * schedule.epochs > _FEW:
                return planned(pace, self._far, ids.to(device), stream, per_step)
        return planned(pace, self._host, ids, stream, per_step).to(device)

    def _room(self, pace: Pace, schedule: Schedule, per_step: int) -> Deal:
        """With room for clients who hold the most."""
        width = min(schedule.batch or self._longest, self._longest)
        laps = schedule.epochs * -(-self._longest // max(width, 1)) if schedule.steps is None else schedule.steps
        return Deal(len(pace.size), per_step, int(pace.epochs.max(initial=0)), self._longest, laps, width)

    def _at_once(self, what: Deal, pace: Pace, ids: Tensor, stream: Stream) -> Batches:
        steps = len(pace.counts)
        index, mask = self._dealt(what, sent(torch.from_numpy(self._told(what, pace, ids, stream)), self._far.index))
        return pace.batches(index[:steps, ..., : pace.width], mask[:steps, None, :, : pace.width])

    def _told(self, what: Deal, pace: Pace, ids: Tensor, stream: Stream) -> Numbers:
        """What `deal` has to know, end to end."""
        words = [stream.child(j).word for j in range(what.per_step)]
        row = np.arange(what.clients) * (what.epochs * what.longest)
        walk = np.zeros((2, what.steps, what.clients), dtype=np.int64)
        walk[:, : len(pace.counts)] = row + pace.epoch * what.longest + pace.before, pace.counts
        return np.concatenate([words, ids.numpy(), self._host.start[ids].numpy(), pace.size, walk.ravel()])


def deal(samples: Tensor, what: Deal, told: Tensor) -> tuple[Tensor, Tensor]:
    """Sample numbers [S, b, K, B] and masks [S, K, B], see `plan_batches`; asks a device nothing.

    `told` holds a word for each batch of a step; ids, where clients' samples begin and how many they are [K]; the place
    of each step's first sample in a table of orders [K, epochs, longest], and how many follow, itself included [S, K].
    """
    k, per_step, epochs, longest, steps, width = what
    words, ids, start, size, first, counts = torch.split(told, [per_step, k, k, k, steps * k, steps * k])
    row, turn, column = (torch.arange(n, device=told.device) for n in (width, epochs, longest))
    key = bits_of(words.view(-1, 1, 1, 1), ids.view(-1, 1, 1), turn[:, None], column)
    behind = column >= size.view(-1, 1, 1)  # what lies behind a client's own samples is for nobody to look at
    order = key.masked_fill(behind, torch.iinfo(torch.int64).max).argsort(stable=True)
    at = (start.view(-1, 1, 1) + order).clamp(max=len(samples) - 1).flatten(1)
    mask = row < counts.view(steps, k, 1)
    place = torch.where(mask, first.view(steps, k, 1) + row, 0)
    return samples[at[:, place]].transpose(0, 1), mask
