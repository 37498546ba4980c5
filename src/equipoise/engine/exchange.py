"""The seam between the server and whatever the clients run on: a round is plan -> exchange -> absorb.

The simulator's exchange trains the cohort as rows; a deployed one sends a message to each client. Both take a `Plan`
and give `Replies`, and everything after that (admission, the server rule, bookkeeping) is the same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from equipoise.core import State


@dataclass(frozen=True)
class Plan:
    """What the server asks for in a round."""

    round: int
    ids: Tensor
    """The clients asked, ascending."""
    w: Tensor
    lr: float
    messages: Mapping[str, Tensor]
    """[K] each: the scalars that go to each client with the model."""
    needs: frozenset[str]


@dataclass(frozen=True)
class Replies:
    """What came back, a row per client that sent something of the right form; `refused` names those that did not."""

    ids: Tensor
    updates: Tensor
    sizes: Tensor
    losses: Tensor | None = None
    signals: State = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)


class Exchange(Protocol):
    """Carries a round out."""

    def __call__(self, plan: Plan) -> Replies: ...

    def probe(self, plan: Plan, ids: Tensor, models: Tensor) -> Tensor:
        """models [T, d] -> training losses [T, K] of the clients `ids`."""

    def root(self, plan: Plan) -> Tensor | None:
        """[d]: the update that the server's own samples give; None if it has none."""

    def foresee(self, round: int, ids: Tensor) -> None:
        """These clients will be asked next, if nothing comes in between; for whoever can use the time."""

    def anticipate(self, plan: Plan) -> None:
        """This will be the next plan, if nothing comes in between; for whoever has nothing better to do than begin."""

    def deliver(self, plan: Plan, ids: Tensor, downloads: Tensor) -> None:
        """Hand each client the delta that the server made for it."""
