"""Malicious clients train on some classes under the names of others.

Biggio, Nelson, Laskov, "Support vector machines under adversarial label noise", ACML 2011; as targeted poisoning with
the pair 1 -> 7 in Xu, Lyu, "Towards building a robust and fair federated learning system", 2020.

    y_i <- b     for every training sample i of a malicious client with y_i = a, for each pair (a, b)
    y_i <- C - 1 - y_i     with pairs = "all"

Done once, before training; all pairs at the same time, so (1, 7) and (7, 1) exchange two classes. Test labels stay
clean; the attack succeeds on a test sample of class a that is answered with b.

Departures: none.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Samples

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """pairs: (class, the name it gets) for each class that is flipped; "all" turns the order of the classes round."""

    pairs: Pairs | Literal["all"] = ((1, 7),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs == "all":
            return
        if isinstance(self.pairs, str) or not self.pairs or any(len(p) != 2 or min(p) < 0 for p in self.pairs):
            raise EquipoiseError(f"label-flip: pairs is {self.pairs!r}", 'pairs of classes such as [[1, 7]], or "all"')
        if len({a for a, _ in self.pairs}) < len(self.pairs):
            raise EquipoiseError(f"label-flip: pairs is {self.pairs!r}", "flip each class once")

    def poison(self, samples: Samples, stream: Stream) -> Samples:
        if samples.classes < 2 or samples.y.is_floating_point():
            raise EquipoiseError(f"label-flip: the dataset has {samples.classes} classes", "it needs class labels")
        return replace(samples, y=self._names(samples.classes).to(samples.y.device)[samples.y])

    def target(self, samples: Samples) -> Samples:
        """The samples of flipped classes, under the names that the attacker gives them."""
        names = self._names(samples.classes).to(samples.y.device)[samples.y]
        hit = names != samples.y
        return Samples(samples.x[hit], names[hit], samples.client[hit], samples.index[hit], samples.classes)

    def _names(self, classes: int) -> torch.Tensor:
        """[C]: what each class is called."""
        names = torch.arange(classes)
        if self.pairs == "all":
            return names.flip(0)
        for a, b in self.pairs:
            if max(int(a), int(b)) >= classes:
                raise EquipoiseError(f"label-flip: pair ({a}, {b})", f"the dataset has the classes 0 to {classes - 1}")
            names[int(a)] = int(b)
        return names
