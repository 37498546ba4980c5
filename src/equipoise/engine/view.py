"""What a client rule sees: the implementation of `at.At`, for one client (a row) or for a cohort (many rows)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.at import CustomLoss, Forward, Stop
from equipoise.core import ClientRule
from equipoise.data.federation import Federation, Split
from equipoise.engine.batches import Batches
from equipoise.engine.net import Net
from equipoise.engine.risk import Risks, risk
from equipoise.streams import Stream

if TYPE_CHECKING:
    from equipoise.engine.replay import Replay

Disturb = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(x, y, client, index) -> (x, y): what an attack does to the batches of malicious clients, anew every round."""

_NUMBERS = 1 << 24  # disturbed at a time


@dataclass(frozen=True)
class World:
    """What local training needs to know and a rule does not: the model, the data, and how to run them."""

    net: Net
    federation: Federation
    train: Split
    """The training split again, kept in host memory, where batches are planned."""
    vectorised: bool
    disturb: Disturb | None = None
    replay: Replay | None = None
    precision: str = "full"
    """Of local steps, see `engine.precision`."""
    risks: Risks | None = None
    alone: bool = False
    """Whether training alone is played back too."""


class View:
    """A client rule's view of one round; `step` moves it to the next local step."""

    def __init__(
        self,
        world: World,
        ids: Tensor,
        rule: ClientRule,
        batches: Batches,
        received: Tensor,
        message: Mapping[str, Tensor],
        lr: float,
        round: int,
        stream: Stream,
        alone: Callable[[Tensor, Stop], Tensor],
    ) -> None:
        self.world, self.ids, self.objective, self.batches = world, ids, rule.objective, batches
        self._features = rule.features
        self.received, self.message, self.lr, self.round = received, message, lr, round
        self._stream, self._alone, self._step = stream, alone, 0
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}

    def step(self, number: int) -> None:
        self._step = number
        self._cache.clear()

    # ------------------------------------------------------------------------------------------- the batch of this step

    def lookup(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples `index` [K, B] and their labels."""
        data = self.world.federation.data
        x, y = data.inputs(index, self.received.dtype), data.y[index]
        return x, y.to(self.received.dtype) if y.is_floating_point() else y

    def _disturbed(self, index: Tensor, clients: slice = slice(None)) -> tuple[Tensor, Tensor]:
        x, y = self.lookup(index)
        return (x, y) if self.world.disturb is None else self.world.disturb(x, y, self.ids[clients], index)

    def _disturbed_once(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples of all steps [S, b, K, B], each of a client's disturbed once, however often it comes up."""
        flat = index.permute(2, 0, 1, 3).flatten(1)
        held = self.world.federation.splits["train"].padded(self.ids)[0].sort(1).values
        often = held.shape[1] < flat.shape[1]
        asked = held if often else flat
        # A few clients at a time: random numbers for every pixel take many times the memory of the pixels.
        block = max(1, _NUMBERS // (asked.shape[1] * self.world.federation.data.x[0].numel()))
        parts = [slice(c, c + block) for c in range(0, len(asked), block)]
        x, y = (torch.cat(t) for t in zip(*(self._disturbed(asked[c], c) for c in parts), strict=True))
        if often:  # what is masked may be another client's sample, and nobody looks at it
            at = torch.searchsorted(held, flat).clamp_(max=held.shape[1] - 1)
            row = torch.arange(len(at), device=at.device)[:, None]
            x, y = x[row, at], y[row, at]
        k, s = len(flat), index.shape
        x, y = (t.view(k, s[0], s[1], s[3], *t.shape[2:]).movedim(0, 2).contiguous() for t in (x, y))
        return x, y

    def _batch(self, batch: int) -> tuple[Tensor, Tensor]:
        if batch not in self._cache:
            self._cache[batch] = self._disturbed(self.batches.index[self._step, batch])
        return self._cache[batch]

    def _mask(self, batch: int) -> Tensor:
        return self.batches.mask[self._step, batch]

    def _key(self, batch: int) -> Tensor:
        """[K]: drives dropout; without dropout nobody looks at it."""
        if not self.world.net.keys:
            return self.ids
        return self._stream.bits(self.ids, torch.full_like(self.ids, self._step), torch.full_like(self.ids, batch))

    def prepared(self) -> dict[str, Tensor]:
        """What steps need that cannot be part of a recording, for all of them [S, batches, K, ...]."""
        index, found = self.batches.index, {}
        if self.world.net.keys:
            s, b = (torch.arange(n, device=index.device) for n in index.shape[:2])
            shape = (*index.shape[:2], len(self.ids))
            grid = (t.expand(shape).contiguous() for t in (self.ids, s[:, None, None], b[:, None]))
            found["key"] = self._stream.bits(*grid)
        if self.world.disturb is not None:
            found["x"], found["y"] = self._disturbed_once(index)
        return found

    @property
    def x(self) -> Tensor:
        return self._batch(0)[0]

    @property
    def y(self) -> Tensor:
        return self._batch(0)[1]

    @property
    def mask(self) -> Tensor:
        return self._mask(0)

    @property
    def index(self) -> Tensor:
        return self.batches.index[self._step, 0]

    def _forward(self, params: dict[str, Tensor], batch: int, times: int = 1) -> tuple[Forward, Tensor, Tensor]:
        """The answers of models on a batch, its labels and mask; `times` models of each client, one after the other."""
        net, (x, y) = self.world.net, self._batch(batch)
        key, mask = self._key(batch), self._mask(batch)
        if times > 1:
            x, y, key, mask = (t.unsqueeze(1).expand(-1, times, *t.shape[1:]).flatten(0, 1) for t in (x, y, key, mask))
        outputs, *features = net.call(
            params,
            x,
            key,
            vectorised=self.world.vectorised,
            train=True,
            features=self._features,
            precision=self.world.precision,
        )
        return Forward(outputs, net.loss(outputs, y), tuple(features)), y, mask

    def _objective(self, params: dict[str, Tensor], loss: CustomLoss | None, batch: int, times: int = 1) -> Tensor:
        seen, y, mask = self._forward(params, batch, times)
        return self.objective(seen.losses, y, mask) if loss is None else loss(seen)

    def grad(self, rows: Tensor, loss: CustomLoss | None = None, batch: int = 0) -> Tensor:
        if rows.dim() == 2:
            return self._grad(rows, loss, batch)
        if not self.world.vectorised:
            out = torch.empty_like(rows)
            for model, place in zip(rows.unbind(1), out.unbind(1), strict=True):
                self._grad(model, loss, batch, into=place)
            return out
        return self._grad(rows.flatten(0, 1), loss, batch, times=rows.shape[1]).view(rows.shape)

    def _grad(
        self, rows: Tensor, loss: CustomLoss | None, batch: int, times: int = 1, into: Tensor | None = None
    ) -> Tensor:
        # Gradients are taken for each named tensor and copied once into place: cheaper than through a view of `rows`.
        tensors = self.world.net.layout.tensors(rows)
        params = {n: t.detach().requires_grad_() for n, t in tensors.items()}
        with torch.enable_grad():
            total = self._objective(params, loss, batch, times).sum()
        grads = torch.autograd.grad(total, list(params.values()), materialize_grads=True)
        out = torch.empty_like(rows) if into is None else into
        for place, g in zip(self.world.net.layout.tensors(out).values(), grads, strict=True):
            place.copy_(g)
        return out

    def loss(self, rows: Tensor, batch: int = 0) -> Tensor:
        return self._objective(self.world.net.layout.tensors(rows), None, batch)

    def outputs(self, rows: Tensor, batch: int = 0) -> Tensor:
        return self._forward(self.world.net.layout.tensors(rows), batch)[0].outputs

    def features(self, rows: Tensor, batch: int = 0) -> tuple[Tensor, ...]:
        return self._forward(self.world.net.layout.tensors(rows), batch)[0].features

    def descend(self, rows: Tensor, grad: Tensor) -> Tensor:
        return torch.sub(rows, grad, alpha=self.lr)

    # ------------------------------------------------------------------------------------------------- beyond the batch

    def risk(self, rows: Tensor, split: str = "train") -> Tensor:
        return risk(self.world, self.ids, rows, split)

    def size(self, split: str = "train") -> Tensor:
        return self.world.federation.splits[split].size[self.ids]

    def fit_alone(self, stop: Stop) -> Tensor:
        return self._alone(self.ids, stop)
