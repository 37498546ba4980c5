"""What attacks share that turn some of a client's training samples into outliers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Samples


@dataclass(frozen=True, kw_only=True)
class Outliers(Attack, ABC):
    """share: the chance of a training sample to be an outlier, from 0 to 1. once: outliers are drawn a single time,
    before training, and stay; otherwise anew in every round (persistent)."""

    share: float = 0.3
    once: bool = False
    hostile = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_share("share", self.share)

    def require_share(self, name: str, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise EquipoiseError(f"{type(self).__name__}: {name} is {value}", "a share, from 0 to 1")

    @abstractmethod
    def disturbed(self, samples: Samples, stream: Stream) -> Tensor:
        """The inputs of samples that become outliers, a row each, random by client and sample alone."""

    def poison(self, samples: Samples, stream: Stream) -> Samples:
        return self._drawn(samples, stream) if self.once else samples

    def outliers(self, samples: Samples, stream: Stream) -> Samples:
        return samples if self.once else self._drawn(samples, stream)

    def _drawn(self, samples: Samples, stream: Stream) -> Samples:
        x = samples.x
        if not x.is_floating_point():
            raise EquipoiseError(f"{type(self).__name__}: inputs are tokens", "it needs inputs that are numbers")
        chosen = stream.child("which").uniform(samples.client, samples.index) < self.share
        at = torch.nonzero(chosen).flatten()
        few = replace(samples, x=x[at], y=samples.y[at], client=samples.client[at], index=samples.index[at])
        return replace(samples, x=x.index_copy(0, at, self.disturbed(few, stream).to(x.dtype)))
