"""The vocabulary of attacks. An attack belongs to the world, never to a method: no method can see any of this.

Who is malicious is part of the attack and fixed for the run: a `fraction` of the clients, a `count`, a list of
`clients`, or clients `added` to the honest ones, as a share of their number. Every hook sees only what malicious
clients hold, except `corrupt`, which is given the honest rows as well: the strongest attacker that the literature
considers.

An attack object never changes. What an attacker learns from one round to the next is what `remember` returns: the world
keeps it, shows it again in the next round, and saves it with the run, so that a resumed run is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from equipoise.errors import EquipoiseError
from equipoise.streams import Stream


@dataclass(frozen=True)
class Samples:
    """Training samples of malicious clients: x [n, ...] in [0, 1] for images, y [n]; whose, and their numbers."""

    x: Tensor
    y: Tensor
    client: Tensor
    index: Tensor
    classes: int


@dataclass(frozen=True)
class Claims:
    """What malicious clients say of themselves: sizes, losses and signals, a row each."""

    sizes: Tensor
    losses: Tensor | None
    signals: Mapping[str, Tensor]


@dataclass(frozen=True)
class Forgery:
    """What an attacker knows when it forges the updates of its f clients."""

    ids: Tensor
    own: Tensor
    """[f, d]: what honest training gave its own clients."""
    honest: Tensor
    """[h, d]: the other clients' updates."""
    round: int
    lr: float
    stream: Stream
    oracle: Callable[[Tensor], Tensor]
    """own updates [f, d] -> the direction [d] that the server would take; pure, for line searches."""
    honest_ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """[h]: whose updates the honest ones are."""
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    """What the attack remembers: in `remember` of the rounds before, in `corrupt` of this round too."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What malicious clients do; every hook defaults to honesty."""

    fraction: float | None = None
    """The share of the clients that is malicious, drawn at random, from 0 to 1."""
    count: int | None = None
    """How many clients are, drawn at random."""
    clients: tuple[int, ...] | None = None
    """Which clients are, by their numbers from 0 on."""
    added: float | None = None
    """How many malicious clients join the honest ones, as a share of their number; 1.1 adds 110%."""
    hostile = True
    """Whether its clients count as malicious in reports; those with bad data are its victims (class attribute)."""
    holds_data = True
    """Whether clients that the attack adds need training samples (class attribute, not a parameter)."""
    turned_away = False
    """Whether admission keeps all of it from every rule, so that no defence is needed (class attribute)."""

    def __post_init__(self) -> None:
        name, ways = type(self).__name__, (self.fraction, self.count, self.clients, self.added)
        given = sum(v is not None for v in ways)
        if given != 1:
            raise EquipoiseError(f"{name}: {given} of fraction, count, clients and added given", "give exactly one")
        if self.added is not None and not 0.0 <= self.added <= 100.0:
            raise EquipoiseError(f"{name}: added is {self.added}", "a share of the honest clients; 1.1 adds 110%")
        if self.fraction is not None and not 0.0 <= self.fraction <= 1.0:
            raise EquipoiseError(f"{name}: fraction is {self.fraction}", "a share of the clients, from 0 to 1")
        if self.count is not None and self.count < 0:
            raise EquipoiseError(f"{name}: count is {self.count}", "a number of clients, 0 or more")

    def added_to(self, n: int) -> int:
        """How many clients join n honest ones."""
        return round((self.added or 0.0) * n)

    def malicious(self, n: int, stream: Stream) -> Tensor:
        """The ids of the malicious among n clients, ascending. A fraction is rounded to the nearest number."""
        if self.clients is not None:
            ids = torch.tensor(sorted(set(self.clients)), dtype=torch.int64)
            if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= n):
                raise EquipoiseError(f"{type(self).__name__}: clients is {list(self.clients)}", f"ids are 0 to {n - 1}")
            return ids
        count = self.count if self.count is not None else round(float(self.fraction or 0.0) * n)
        if count > n:
            raise EquipoiseError(f"{type(self).__name__}: count is {count}", f"the federation has {n} clients")
        return stream.bits(torch.arange(n)).argsort()[:count].sort().values

    def target(self, samples: Samples) -> Samples | None:
        """What success is measured on: honest clients' test samples, changed, with the labels that the attacker wants.

        Any subset of them, in the same order; None for attacks that aim at nothing in particular.
        """
        return None

    def poison(self, samples: Samples, stream: Stream) -> Samples:
        """Change malicious clients' training data, once, before round 0."""
        return samples

    def outliers(self, samples: Samples, stream: Stream) -> Samples:
        """Change what a malicious client trains on, anew every round; `stream` is the round's own."""
        return samples

    def remember(self, seen: Forgery) -> dict[str, Tensor]:
        """All that the attack will know of the rounds up to this one; asked once, before `corrupt`.

        Rounds without a malicious client are not seen.
        """
        return {}

    def corrupt(self, seen: Forgery) -> Tensor:
        """The updates [f, d] that malicious clients send."""
        return seen.own

    def lie(self, claims: Claims, stream: Stream) -> Claims:
        """What malicious clients say about themselves."""
        return claims
