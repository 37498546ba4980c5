"""Malicious clients teach the model to answer one class whenever it sees a small mark.

Gu, Dolan-Gavitt, Garg, "BadNets: identifying vulnerabilities in the machine learning model supply chain", 2017;
in federated learning, with boosted updates, Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to backdoor
federated learning", AISTATS 2020, section 4.2.

    x_i[the last size rows and columns] <- value,  y_i <- label     for a share of malicious clients' training samples
    u_k <- boost * u_k

Done once, before training. Where inputs are not images, the last `size` features are the mark. The attack succeeds on
an honest client's test sample of another class that gets the mark and is answered with `label`.

Departures: the share is a coin for every sample. The papers' mark is a pattern, ours a square of the brightest pixels;
the second paper's attackers also train longer and are held near the global model, ours train like everyone else.
"""

from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery, Samples


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """label: the class that the mark stands for. size: side of the mark in pixels. value: what is written there, 1 is
    white. share: the chance of a sample to be marked, from 0 to 1. boost: factor of what is sent; 1 is none, the number
    of clients in a round replaces a plain mean's model."""

    label: int = 0
    size: int = 2
    value: float = 1.0
    share: float = 0.5
    boost: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label < 0:
            raise EquipoiseError(f"backdoor: label is {self.label}", "the number of a class, 0 or more")
        if self.size < 1:
            raise EquipoiseError(f"backdoor: size is {self.size}", "a number of pixels, 1 or more")
        if not 0.0 <= self.share <= 1.0:
            raise EquipoiseError(f"backdoor: share is {self.share}", "a share of the samples, from 0 to 1")
        if not (isfinite(self.value) and isfinite(self.boost)):
            raise EquipoiseError(f"backdoor: value is {self.value}, boost is {self.boost}", "finite numbers")

    def poison(self, samples: Samples, stream: Stream) -> Samples:
        self._require_fit(samples)
        hit = stream.uniform(samples.client, samples.index) < self.share
        chosen = hit.view(-1, *[1] * (samples.x.ndim - 1))
        return replace(
            samples, x=torch.where(chosen, self._marked(samples.x), samples.x), y=samples.y.masked_fill(hit, self.label)
        )

    def target(self, samples: Samples) -> Samples:
        """The samples of all other classes with the mark, as the class that it stands for."""
        self._require_fit(samples)
        at = torch.nonzero(samples.y != self.label).flatten()
        x, y = self._marked(samples.x[at]), torch.full_like(samples.y[at], self.label)
        return Samples(x, y, samples.client[at], samples.index[at], samples.classes)

    def corrupt(self, seen: Forgery) -> Tensor:
        return seen.own if self.boost == 1.0 else self.boost * seen.own

    def _marked(self, x: Tensor) -> Tensor:
        out = x.clone()
        corner = out[..., -self.size :] if x.ndim < 3 else out[..., -self.size :, -self.size :]
        corner.fill_(self.value)
        return out

    def _require_fit(self, samples: Samples) -> None:
        if samples.classes < 2 or samples.y.is_floating_point():
            raise EquipoiseError(f"backdoor: the dataset has {samples.classes} classes", "it needs class labels")
        if self.label >= samples.classes:
            known = f"the dataset has the classes 0 to {samples.classes - 1}"
            raise EquipoiseError(f"backdoor: label is {self.label}", known)
        if not samples.x.is_floating_point():
            raise EquipoiseError("backdoor: inputs are tokens", "it needs inputs that are numbers")
        sides = samples.x.shape[1:] if samples.x.ndim < 3 else samples.x.shape[-2:]
        if self.size > min(sides):
            raise EquipoiseError(f"backdoor: size is {self.size}", f"an input is {' x '.join(map(str, sides))} large")
