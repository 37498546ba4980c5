"""Malicious clients do not train: they send noise or nothing, to receive what the others have learned.

Xu, Lyu, "Towards building a robust and fair federated learning system", 2020, section "Experimental Setup" ("noise");
Fraboni, Vidal, Lorenzi, "Free-rider attacks on model aggregation in federated learning", AISTATS 2021 (plain
free-riding: "unchanged"; and "disguised").

    u_k[j] ~ Uniform[-1, 1]          "noise", anew in every round
    u_k = 0                          "unchanged": the model that came is sent back
    u_k[j] ~ N(0, sigma_t^2)         "disguised", anew in every round; sigma_t = sigma t^-gamma in round t > 0
    u_k = 0                          "disguised" in round 0, from which it learns sigma:
    sigma = mean_j |w_1[j] - w_0[j]|     what the global model changed by in that round

Free riders that are added to a federation hold no data and say that they have as much as the median client.

Departures: the first paper does not say what size a free rider claims. In the second, sigma is how its released program
has it; gamma = 1 is one of its settings; three times that sigma is the paper's third setting, here `sigma = NUMBER`,
which is the number given, from round 0 on (with t = 1 there). The paper has everyone in every round: here round 0 is
the first one in which a free rider takes part. What the model changes by is what the server would do with the round's
messages, so a free rider need not wait for the next model to see it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError, not_negative, require
from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class FreeRider(Attack):
    """kind: what is sent: "noise" from -1 to 1, the received model "unchanged", or that "disguised" by noise. sigma,
    gamma (disguised): the noise of the first round and how fast it fades, 0 or more; no sigma: as large as the first
    change of the global model. sigma = 0 is "unchanged"."""

    kind: Literal["noise", "unchanged", "disguised"] = "noise"
    sigma: float | None = None
    gamma: float = 1.0
    holds_data = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in ("noise", "unchanged", "disguised"):
            raise EquipoiseError(f"free-rider: kind is {self.kind!r}", 'use "noise", "unchanged" or "disguised"')
        for name, value in {"sigma": self.sigma, "gamma": self.gamma}.items():
            ok = value is None or not_negative(value)
            require(ok, f"free-rider: {name}", value, "a finite number, 0 or more")

    def remember(self, seen: Forgery) -> dict[str, Tensor]:
        """sigma and the round in which it was learned, where it has to be."""
        if self.kind != "disguised" or self.sigma is not None or seen.memory:
            return dict(seen.memory)
        change = seen.oracle(torch.zeros_like(seen.own)).double().abs().mean()
        return {"sigma": change.nan_to_num(nan=0.0, posinf=0.0), "learned": torch.tensor(seen.round)}

    def corrupt(self, seen: Forgery) -> Tensor:
        who, place = seen.ids[:, None], torch.arange(seen.own.shape[1], device=seen.own.device)
        if self.kind == "unchanged":
            return torch.zeros_like(seen.own)
        if self.kind == "disguised":
            most = torch.finfo(seen.own.dtype).max
            return (self._level(seen) * seen.stream.normal(who, place)).clamp(-most, most).to(seen.own.dtype)
        return (2 * seen.stream.uniform(who, place) - 1).to(seen.own.dtype)

    def _level(self, seen: Forgery) -> float:
        if self.sigma is not None:
            return float(self.sigma * max(seen.round, 1) ** -self.gamma)
        t = seen.round - int(seen.memory["learned"])
        return float(seen.memory["sigma"]) * t**-self.gamma if t else 0.0
