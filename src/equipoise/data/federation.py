"""A federation: one dataset, and for every client the numbers of the samples it holds.

Nothing is copied per client. A split is one array of sample numbers plus a start and a size for each client, so a
million clients cost a million integers, and clients may share a range (one common test set) without repeating it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.questions import near

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Dataset:
    """Samples and labels, as they lie on disk (images as uint8), and how to turn them into what a model eats."""

    name: str
    x: Tensor
    """[n, ...]: uint8 images [n, c, h, w], floats [n, f], or int64 tokens [n, length]."""
    y: Tensor
    """[n] int64 classes, or [n] / [n, m] floats for regression or soft labels."""
    classes: int
    """0 for regression."""
    scale: float = 1.0
    """A sample is shown to the model as x * scale (uint8 images: 1/255); tokens are left alone."""
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    """Further columns [n] int64, such as "writer" or "part" (0: the training part, 1: the test part)."""
    source: str = ""
    licence: str = ""

    def __len__(self) -> int:
        return self.x.shape[0]

    def inputs(self, index: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The samples `index` [...] as the model sees them: [..., *shape]."""
        x = self.x.index_select(0, index.reshape(-1)).view(*index.shape, *self.x.shape[1:])
        if x.dtype == torch.int64:
            return x
        if self.scale == 1.0:
            return x.to(dtype)
        if x.is_cuda and x.dtype == torch.uint8 and dtype == torch.get_default_dtype():  # both at once, in one pass
            return x * self.scale
        return x.to(dtype) * self.scale

    def to_device(self, device: torch.device) -> Dataset:
        return replace(self, x=self.x.to(device), y=self.y.to(device))


@dataclass(frozen=True)
class Split:
    """Which samples each client holds: client k has `index[start[k] : start[k] + size[k]]`."""

    index: Tensor
    start: Tensor
    size: Tensor

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> Split:
        """From one tensor of sample numbers per client."""
        size = torch.tensor([len(p) for p in parts], dtype=torch.int64)
        index = torch.cat([p.to(torch.int64) for p in parts]) if parts else torch.empty(0, dtype=torch.int64)
        return cls(index, size.cumsum(0) - size, size)

    @classmethod
    def common(cls, index: Tensor, n_clients: int) -> Split:
        """The same samples for everyone."""
        return cls(index, torch.zeros(n_clients, dtype=torch.int64), torch.full((n_clients,), len(index)))

    def of_client(self, client: int) -> Tensor:
        start = int(self.start[client])
        return self.index[start : start + int(self.size[client])]

    @cached_property
    def _sizes(self) -> Tensor:
        return self.size.cpu()

    def longest(self, ids: Tensor) -> int:
        """The most samples that one of these clients has; a GPU is not asked where `ids` came from here."""
        return int(self._sizes[near(ids)].max()) if len(ids) else 0

    def padded(self, ids: Tensor, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """Sample numbers [K, longest] of clients `ids`, and a mask of the real ones; padding repeats a real sample."""
        size, longest = self.size[ids], self.longest(ids) if longest is None else longest
        place = torch.arange(max(1, longest), device=ids.device)
        mask = place < size[:, None]
        at = self.start[ids][:, None] + torch.where(mask, place, torch.zeros_like(place))
        return (self.index[at.clamp(max=len(self.index) - 1)] if len(self.index) else torch.zeros_like(at)), mask

    def to(self, device: torch.device) -> Split:
        return Split(self.index.to(device), self.start.to(device), self.size.to(device))


@dataclass(frozen=True)
class Federation:
    """A dataset and who holds what. Train, validation and test splits of a client never overlap."""

    data: Dataset
    splits: Mapping[str, Split]
    partition: str = "given"
    """How it was split, in words, for the record."""
    root: Tensor | None = None
    """The numbers of the samples that the server itself holds, if it holds any (FLTrust)."""

    def __post_init__(self) -> None:
        if sorted(self.splits) != sorted(SPLITS):
            raise EquipoiseError(f"Federation: splits are {sorted(self.splits)}", f"give {', '.join(SPLITS)}")
        counts = {name: len(s.start) for name, s in self.splits.items()}
        if len(set(counts.values())) != 1:
            raise EquipoiseError(f"Federation: splits disagree about the number of clients: {counts}")

    @property
    def n_clients(self) -> int:
        return len(self.splits["train"].start)

    @property
    def sizes(self) -> Tensor:
        """[N]: how many training samples each client holds."""
        return self.splits["train"].size

    def class_counts(self, split: str = "train") -> Tensor:
        """[N, C]: how many samples of each class each client holds; of a soft label, the class of the largest share."""
        s = self.splits[split]
        if self.data.classes == 0:
            return torch.zeros((self.n_clients, 0), dtype=torch.int64)
        client = torch.repeat_interleave(torch.arange(self.n_clients), s.size)
        place = torch.arange(len(client)) - torch.repeat_interleave(s.size.cumsum(0) - s.size, s.size)
        labels = self.data.y[s.index[s.start[client] + place]]
        labels = labels.argmax(-1) if labels.is_floating_point() else labels
        flat = torch.bincount(client * self.data.classes + labels, minlength=self.n_clients * self.data.classes)
        return flat.view(self.n_clients, self.data.classes)

    def to(self, device: torch.device) -> Federation:
        return replace(self, data=self.data.to_device(device), splits={k: s.to(device) for k, s in self.splits.items()})
