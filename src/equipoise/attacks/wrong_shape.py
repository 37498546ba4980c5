"""Malicious clients send tensors that are not the model's.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant gradient descent",
NeurIPS 2017: a Byzantine client may send anything. No paper names this attack.

    u_k <- u_k without its last number ("short"), with one more ("long"), with one more axis ("axis"),
           or rounded to whole numbers, as such ("integers")

Whoever sends it is to be turned away before any rule computes with it, and the round to go on without.

Departures: there is nothing to depart from. In a simulation clients are rows, so that all malicious clients of a round
send the same form; single tensors of a message, with names, are a matter of deployed clients.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class WrongShape(Attack):
    """form: in which way it is wrong: "short" or "long" by one number, with an "axis" more, or of "integers"."""

    turned_away = True
    form: Literal["short", "long", "axis", "integers"] = "short"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in ("short", "long", "axis", "integers"):
            raise EquipoiseError(f"wrong-shape: form is {self.form!r}", 'use "short", "long", "axis" or "integers"')

    def corrupt(self, seen: Forgery) -> Tensor:
        own = seen.own
        if self.form == "short":
            return own[:, :-1]
        if self.form == "long":
            return torch.nn.functional.pad(own, (0, 1))
        return own[..., None] if self.form == "axis" else own.round().to(torch.int64)
