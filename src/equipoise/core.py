"""The vocabulary: everything a method, a defence or an attack is made of. Nothing in here trains anything.

A **method** is a client rule and a server rule. Parts are frozen dataclasses that hold hyper-parameters only; state is
explicit, dicts of tensors passed in and out. Conventions, fixed once:

- Rows are clients. N clients, K in the round's cohort, d parameters, B batch, C classes.
- An *update* is `start - end`; the server does `w <- w - direction`.
- Losses are the client's mean training loss at the model it received, over its full training split.
- Every client starts from `init(w0)`, w0 the run's initial model, also when it is first drawn in round 37.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.at import At as At
from equipoise.at import Forward as Forward
from equipoise.at import Schedule as Schedule
from equipoise.at import Stop as Stop
from equipoise.errors import EquipoiseError as EquipoiseError
from equipoise.layout import Layout as Layout
from equipoise.losses import Mean as Mean
from equipoise.losses import Objective as Objective
from equipoise.questions import Later, ascend, once
from equipoise.streams import Stream as Stream
from equipoise.weighting import Weights, check_weights, shares, spread
from equipoise.weighting import normalised as normalised

State = dict[str, Tensor]


# --------------------------------------------------------------------------------------------- the client's side


class ClientRule(ABC):
    """What a client does in a round. One local step is enough; every other hook has a default.

    `state` in a hook holds the keys that `init` returned, which last for the run, and those that `begin` added, which
    live for one round. A rule never loops over clients, batches or epochs: the engine does, for all rows at once.
    """

    objective: Objective = Mean()
    batches: int = 1
    """How many independent batches one step sees (Per-FedAvg: 3)."""
    needs: frozenset[str] = frozenset()
    """Splits of the clients' data, beyond "train", that it cannot do without ("validation")."""
    features: int = 0
    """How many of the model's first layers a custom loss looks at (FedCKA: 2)."""
    personalised: bool = False
    """Whether clients use a model of their own: then `personal` says which."""

    def init(self, w: Tensor) -> State:
        """The lasting state of new clients, given the run's initial model as rows [K, d]."""
        return {}

    def prepare(self, state: State, at: At) -> State:
        """Once per client, before its first round (EAGLE's local optima)."""
        return state

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        """How much to train this round; `stream` is shared by all clients (FedSGD's one step, L2SGD's coin)."""
        return given

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        """The model to start the round from, and what lives for this round only."""
        return received, {}

    @abstractmethod
    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        """One local step of the model `w` [K, d]; the state may change with it."""

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        """After the last local step: the model whose update is sent, and the state that is kept."""
        return w, state

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        """Scalars [K] that go back with the update; `at.received` is the model they are measured on."""
        return {}

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        """What to do with a delta that the server sent to this client alone, after the round."""
        return state

    def finish(self) -> ClientRule | None:
        """What every client does once more after the last round, with this rule's state (finetuning)."""
        return None

    def outward(self) -> ClientRule:
        """A rule that sends the same: for clients whose own models nobody will ask for (Ditto: its base)."""
        return self

    def personal(self, w: Tensor, state: State) -> Tensor:
        """The models that clients use, given the global one as rows."""
        return w


@dataclass(frozen=True)
class SGD(ClientRule):
    """w <- w - lr * grad: the client of FedAvg."""

    objective: Objective = Mean()

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.grad(w)), state


# --------------------------------------------------------------------------------------------- the server's side


@dataclass(frozen=True)
class Cohort:
    """What the server sees of one round: a row per admitted client, sorted by client id when it is made."""

    ids: Tensor
    start: Tensor
    updates: Tensor
    sizes: Tensor
    losses: Tensor | None = None
    signals: Mapping[str, Tensor] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    round: int = 0
    lr: float = 1.0
    n_clients: int = 0
    rng: Stream = field(default_factory=lambda: Stream(0))
    root: Tensor | None = None
    """The server's own update, where it has data of its own (FLTrust)."""
    probe: Callable[[Tensor], Tensor] | None = None
    """models [T, d] -> the cohort's losses [T, K] in one exchange (line searches); only for rules that need "probe"."""
    again: Callable[..., tuple[Tensor, ...]] = once  # see there: work that is the same in every round

    def __post_init__(self) -> None:
        if not ascend(self.ids):
            order = torch.argsort(self.ids, stable=True)
            rows = {n: t[order] for n in ("ids", "updates", "sizes", "losses") if (t := getattr(self, n)) is not None}
            self.__dict__.update(rows, signals={n: t[order] for n, t in self.signals.items()})

    def __len__(self) -> int:
        return self.ids.shape[0]

    def with_updates(self, updates: Tensor) -> Cohort:
        return replace(self, updates=updates)


@dataclass(frozen=True)
class Outcome:
    """What the server makes of a round."""

    direction: Tensor
    state: State = field(default_factory=dict)
    downloads: Tensor | None = None
    """A delta [K, d] for each client of the cohort, for its eyes only; see `ClientRule.receive`."""
    exclude: tuple[int, ...] = ()  # clients that are drawn no more
    stop: str | None = None  # ends the run after this round, for this reason
    info: Mapping[str, Any] = field(default_factory=dict)
    """What happened, for the log and the report: numbers, strings, or tensors with a row per client of the cohort."""


class ServerRule(ABC):
    """What the server does with a cohort. Pure: same cohort and state, same outcome; inputs are never changed."""

    robust: bool = False  # whether it tolerates a share of malicious updates
    per_client: bool = False  # whether it answers or remembers clients one by one, so that rows must be clients
    early: bool = False
    """Whether `ahead` may be shown what nobody has looked at yet, and again what is sound of it; not inherited."""

    @property
    def needs(self) -> frozenset[str]:
        """What it reads beyond updates and sizes: "losses", "probe", "root". Nobody pays for what no rule uses."""
        return frozenset()

    def init(self, w: Tensor) -> State:
        return {}

    def check(self, n: int) -> None:
        """Raise EquipoiseError if cohorts of n clients cannot work; called before the first round."""

    def plan(self, ids: Tensor, state: State) -> dict[str, Tensor]:
        """Scalars [K] to send to the clients just drawn, with the model (EAGLE's weights)."""
        return {}

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        """The outcome as far as it is known before a device has been asked; direction and downloads are complete."""
        return Later(self(cohort, state))

    @abstractmethod
    def __call__(self, cohort: Cohort, state: State) -> Outcome: ...


class Aggregator(ServerRule):
    """A server rule without memory: write `combine` only."""

    @abstractmethod
    def combine(self, cohort: Cohort) -> Tensor:
        """The direction [d]."""

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        return Outcome(self.combine(cohort), state)


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """sum_k n_k u_k / sum_k n_k, the server of FedAvg; `weights`: "size", "uniform" (the plain mean) or "capped"."""

    weights: Weights = "size"
    early = True

    def __post_init__(self) -> None:
        check_weights("WeightedMean", self.weights)

    def combine(self, cohort: Cohort) -> Tensor:
        return shares(cohort.sizes, self.weights).to(cohort.updates.dtype) @ cohort.updates


class Filter(ABC):
    """Changes a cohort before a server rule sees it (clipping, mixing, bucketing).

    What it tells for the log: `scale` [m], how much it left of each update, from 0 (dropped) to 1; and, if it drops or
    merges rows, `row_of` [m], the new row that each client went into, -1 for none.
    """

    keeps_rows: bool = True  # whether row k is still client k's afterwards
    needs: frozenset[str] = frozenset()

    def check(self, n: int) -> int:
        """How many rows it makes of n; raises EquipoiseError if n clients cannot work."""
        return n

    @abstractmethod
    def __call__(self, cohort: Cohort) -> tuple[Cohort, Mapping[str, Any]]:
        """The new cohort, and what was done to it, for the log."""


@dataclass(frozen=True)
class Chain(ServerRule):
    """Filters, then a rule; made by `chain(filters..., rule)`."""

    filters: tuple[Filter, ...]
    rule: ServerRule

    def __post_init__(self) -> None:
        mixing = [type(f).__name__ for f in self.filters if not f.keeps_rows]
        if mixing and self.rule.per_client:
            told = f"chain: {mixing[0]} mixes clients into new rows, but {type(self.rule).__name__} answers each client"
            raise EquipoiseError(told, "put a filter that keeps one row per client in front of it")
        self.__dict__.update(robust=self.rule.robust, per_client=self.rule.per_client)

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs.union(*(f.needs for f in self.filters))

    def init(self, w: Tensor) -> State:
        return self.rule.init(w)

    def check(self, n: int) -> None:
        rows = n
        try:
            for part in self.filters:
                rows = part.check(rows)
            self.rule.check(rows)
        except EquipoiseError as e:
            raise EquipoiseError(e.message + (f" ({rows} rows of {n} clients)" if rows != n else ""), e.hint) from e

    def plan(self, ids: Tensor, state: State) -> dict[str, Tensor]:
        return self.rule.plan(ids, state)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        info, rows = dict[str, Any](), torch.arange(len(cohort), device=cohort.updates.device)
        for part in self.filters:
            cohort, done = part(cohort)
            info.update({f"{type(part).__name__}.{k}": v for k, v in done.items()})
            if "row_of" in done:
                rows = torch.where(rows < 0, rows, done["row_of"][rows.clamp(min=0)])
        info.update((outcome := self.rule(cohort, state)).info)
        if "weights" in info and int(rows.max()) + 1 == len(cohort):
            info["weights"] = spread(info["weights"], rows)
        return replace(outcome, info=info)


def chain(*parts: Filter | ServerRule) -> ServerRule:
    """`chain(NNM(f=2), Krum(f=2))`: filters in order, the rule last."""
    rule, filters = parts[-1] if parts else None, tuple(f for f in parts[:-1] if isinstance(f, Filter))
    if not isinstance(rule, ServerRule) or len(filters) < len(parts) - 1:
        raise EquipoiseError(f"chain: got {[type(p).__name__ for p in parts]}", "filters first, one server rule last")
    return Chain(filters, rule) if filters else rule


@dataclass(frozen=True)
class Method:
    """A client rule and a server rule; `Method()` is FedAvg."""

    name: str = "fedavg"
    client: ClientRule = field(default_factory=SGD)
    server: ServerRule = field(default_factory=WeightedMean)
