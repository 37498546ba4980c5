"""Cohorts that lack some of the clients that a recording is of, made as large as it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.engine.batches import Batches
from equipoise.engine.stage import Inputs
from equipoise.questions import moved


class Fill:
    """What a recording has room for and a cohort does not fill: more rows, and wider batches, whose places are empty.

    The rows are the client with the most steps again, as any client might be, but without a step of their own to take.
    """

    def __init__(self, batches: Batches, clients: int, width: int) -> None:
        k, more = len(batches.steps), clients - len(batches.steps)
        self.steps, self._width = batches.steps + (0,) * more, width
        self.idle = more == 0 and batches.index.shape[-1] == width
        if not self.idle:
            most = batches.steps.index(max(batches.steps))
            self._who = moved(torch.tensor([*range(k), *[most] * more]), batches.index.device)

    def fixed(self, inputs: Inputs) -> Inputs:
        """[n, ...] of [K, ...]; what has no rows stays."""
        return inputs if self.idle else {n: t if t.dim() == 0 else t[self._who] for n, t in inputs.items()}

    def each(self, inputs: Inputs) -> Inputs:
        """[S, b, n, width, ...] of [S, b, K, B, ...]."""
        return inputs if self.idle else {n: self._wide(t.index_select(2, self._who)) for n, t in inputs.items()}

    def _wide(self, t: Tensor) -> Tensor:
        more = self._width - t.shape[3] if t.dim() > 3 else 0
        return t if more == 0 else F.pad(t, (*(0, 0) * (t.dim() - 4), 0, more))
