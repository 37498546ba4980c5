"""What rules share that weigh clients by the losses they report.

Every one of them believes what it is told: whoever claims a large loss gains weight. What keeps liars in bounds is the
guard of admission, which looks at reported losses before a rule does and is on unless a run turns it off.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from equipoise import history
from equipoise.core import SGD, ClientRule, Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.methods.fedsgd import FedSGD

Variant = Literal["fedavg", "fedsgd"]

HUGE = 1e300
"""Nothing counts as larger: sums and products of what clients claim must not overflow."""
EVERYONE = 1 << 62
"""The cap of a memory that forgets nobody."""


class Reweighting(ServerRule):
    """sum_k weights_k u_k, with weights that depend on the losses of this round alone: write `weigh` only."""

    @abstractmethod
    def weigh(self, losses: Tensor, cohort: Cohort) -> tuple[Tensor, str]:
        """[m] float64 losses, m >= 1 -> the weights [m], and a word on what is special about them, if anything is."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses"})

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        losses = reported(cohort, type(self).__name__.lower())
        weights, reason = self.weigh(losses, cohort) if len(cohort) else (losses, "nobody is there")
        return weighed(cohort, weights, state, reason)


def reported(cohort: Cohort, who: str) -> Tensor:
    """[m] float64: what clients say their losses are. A mean loss is never negative: such a claim counts as 0."""
    if cohort.losses is None:
        raise EquipoiseError(f"{who}: the cohort has no losses", "clients must report them: the rule needs them")
    return cohort.losses.to(torch.float64).clamp(0.0, HUGE)


def counted(losses: Tensor, shares: Tensor) -> Tensor:
    """The losses, those of clients without a share moved into the range of the others, where they do no harm."""
    with_share = losses[shares > 0]
    return losses.clamp(with_share.min(), with_share.max())


def weighed(cohort: Cohort, weights: Tensor, state: State, reason: str = "") -> Outcome:
    """The step that these weights make, and the log of it."""
    info = {"weights": weights, "reason": reason} if reason else {"weights": weights}
    return Outcome(weights.to(cohort.updates.dtype) @ cohort.updates, state, info=info)


def equal(cohort: Cohort) -> Tensor:
    return torch.full((len(cohort),), 1.0 / max(1, len(cohort)), dtype=torch.float64, device=cohort.updates.device)


def recalled(memory: State, name: str, ids: Tensor, otherwise: float) -> Tensor:
    """[m]: what the memory holds of these clients; `otherwise` for those it does not know."""
    at, known = history.recall(memory, ids)
    out = memory[name].new_full((len(ids),), otherwise)
    out[known] = memory[name][at[known]]
    return out


def client(who: str, variant: str) -> ClientRule:
    """Local epochs as in FedAvg, or one full-batch step as in FedSGD."""
    if variant not in ("fedavg", "fedsgd"):
        raise EquipoiseError(f"{who}: variant is {variant!r}", 'use "fedavg" (local training) or "fedsgd" (one step)')
    return SGD() if variant == "fedavg" else FedSGD()


def check_share(who: str, name: str, value: float, hint: str, below: bool = False) -> None:
    """Whether it lies from 0 to 1; with `below`, 1 itself is not allowed."""
    if not (0 <= value <= 1) or (below and value == 1):
        raise EquipoiseError(f"{who}: {name} is {value}", hint)
