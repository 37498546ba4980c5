"""Malicious clients send their update many times as large, so that the mean becomes their model.

Attack A3 of Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021,
Definition 1; after Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to backdoor federated learning", AISTATS 2020,
section 4.2.

    u_k <- factor * u_k       factor: by default m, the number of clients in the round

With m, one such client among others that hardly move replaces a plain mean's model by its own.

Departures: none. In the paper's released program the clients are label-poisoned as well: label_noise = true.
"""

from dataclasses import dataclass
from math import isfinite

from torch import Tensor

from equipoise.attacks.label_noise import LabelNoise
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery, Samples


@dataclass(frozen=True, kw_only=True)
class ModelReplacement(Attack):
    """factor: how many times as large; nothing given: the number of clients in the round, which the attacker knows."""

    factor: float | None = None
    label_noise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor is not None and not isfinite(self.factor):
            raise EquipoiseError(f"model-replacement: factor is {self.factor}", "a finite number")

    def poison(self, samples: Samples, stream: Stream) -> Samples:
        return LabelNoise(count=0).poison(samples, stream) if self.label_noise else samples

    def corrupt(self, seen: Forgery) -> Tensor:
        return seen.own * (len(seen.own) + len(seen.honest) if self.factor is None else self.factor)
