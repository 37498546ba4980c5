"""Malicious clients train on labels that mean nothing.

Attack A1 of Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021,
section 4.1.

    y_i ~ Uniform{0, ..., C-1}  for every training sample i of a malicious client; with two classes y_i <- 1 - y_i

Drawn once, before training. Test labels stay clean.

Departures: none.
"""

from dataclasses import dataclass, replace

from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Samples


@dataclass(frozen=True, kw_only=True)
class LabelNoise(Attack):
    def poison(self, samples: Samples, stream: Stream) -> Samples:
        if samples.classes < 2 or samples.y.is_floating_point():
            raise EquipoiseError(f"label-noise: the dataset has {samples.classes} classes", "it needs class labels")
        if samples.classes == 2:
            return replace(samples, y=1 - samples.y)
        return replace(samples, y=stream.integers(samples.classes, samples.client, samples.index))
