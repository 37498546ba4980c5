"""What personalised methods share: a last training after the last round, whose result a client keeps and uses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equipoise.core import At, ClientRule, Mean, Method, Objective, Schedule, ServerRule, State, Stream
from equipoise.errors import not_negative, require

_OWN, _DONE = "adapted.own", "adapted.done"  # no base rule has such names


@dataclass(frozen=True)
class Adapted(ClientRule):
    """`base` in every round; after the last one all clients train the final model with `last`, and use the result.

    Until then they use the global model. What `base` would do after the last round is left out.
    """

    base: ClientRule
    last: ClientRule
    personalised = True

    def __post_init__(self) -> None:
        base = self.base
        self.__dict__.update(
            objective=base.objective, batches=base.batches, features=base.features, needs=base.needs | self.last.needs
        )

    def init(self, w: Tensor) -> State:
        done = torch.zeros(len(w), dtype=torch.bool, device=w.device)
        return {**self.base.init(w), _OWN: w.clone(), _DONE: done}

    def prepare(self, state: State, at: At) -> State:
        return {**state, **self.base.prepare(state, at)}

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return self.base.schedule(given, round, stream)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return self.base.begin(received, state, at)

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, new = self.base.step(w, state, at)
        return w, {**state, **new}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, new = self.base.end(w, state, at)
        return w, {**state, **new}

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        return self.base.report(state, at)

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        return {**state, **self.base.receive(end, state, download)}

    def finish(self) -> ClientRule | None:
        return _Last(self.last, self.base.objective)

    def outward(self) -> ClientRule:
        return self.base

    def personal(self, w: Tensor, state: State) -> Tensor:
        return torch.where(state[_DONE][:, None], state[_OWN], w)


@dataclass(frozen=True)
class _Last(ClientRule):
    """A rule's steps from the final model; where they end is the client's own model."""

    rule: ClientRule
    objective: Objective = Mean()
    personalised = True

    def __post_init__(self) -> None:
        self.__dict__.update(batches=self.rule.batches, features=self.rule.features)

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return self.rule.schedule(given, round, stream)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        start, extra = self.rule.begin(received, state, at)
        return start, {**extra, _DONE: torch.ones_like(state[_DONE])}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, new = self.rule.step(w, state, at)
        return w, {**state, **new}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, new = self.rule.end(w, state, at)
        return w, {**state, **new, _OWN: w}


@dataclass(frozen=True)
class Tuning(ClientRule):
    """Plain SGD for `epochs` local epochs, whatever the rounds had; 0 leaves the model as it is."""

    epochs: int = 50

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return replace(given, epochs=self.epochs, steps=None)

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.grad(w)), state


def adapted(name: str, last: ClientRule, base: Method | None, server: ServerRule | None) -> Method:
    """`base` (FedAvg unless given) with `last` after its last round; `server` overrides the base's server rule."""
    under = base or Method()
    client = Adapted(under.client, last)
    return Method(f"{name}+{base.name}" if base else name, client, under.server if server is None else server)


def require_strength(who: str, lam: float, at_zero: str) -> None:
    """lam is the strength of a pull: finite, 0 or more."""
    require(not_negative(lam), f"{who}: lam", lam, f"0 or more; 0 is {at_zero}")
