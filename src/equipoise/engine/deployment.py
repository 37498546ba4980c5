"""The server's side of a run whose clients are elsewhere: what `Simulation` is to simulated ones, with the same face.

The server holds no client's data and no client's model. A round is one exchange: how clients are served after it is
asked for along with the next training, of whoever is in that, and of everyone after the last. A run has a name of its
own, drawn when it starts, under which clients keep their state; it is part of what is saved, so that a run that goes
on after a crash is still the same run.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.core import Method, State
from equipoise.engine.clients import steady
from equipoise.engine.exchange import Plan
from equipoise.engine.participation import Participants
from equipoise.engine.post import MessageExchange, Post, server_side
from equipoise.engine.precision import check as check_precision
from equipoise.engine.run import Scenario
from equipoise.engine.server import RoundRecord, Server
from equipoise.engine.settings import Participation, Run
from equipoise.errors import EquipoiseError
from equipoise.metrics import Evaluation
from equipoise.streams import Stream


def require_real(attack: object | None, participation: Participation) -> None:
    """An error for what only a simulation has."""
    if attack is not None or participation.dropout > 0:
        hint = "leave out [attack] and participation.dropout: only a simulation has these"
        raise EquipoiseError("a deployed federation has no simulated attackers and no simulated drop-outs", hint)


class Deployment:
    """A method in a scenario with a seed, on clients that a `Post` reaches."""

    vectorised, executor_reason = False, "clients are elsewhere"
    remarks: Sequence[str] = ()

    def __init__(self, scenario: Scenario, method: Method, run: Run, post: Post) -> None:
        require_real(scenario.attack, scenario.participation)
        check_precision(run.precision, torch.device("cpu"))
        fed, stream = scenario.federation, Stream(run.seed)
        own = torch.arange(0) if fed.root is None else fed.root
        data = replace(fed.data, x=fed.data.x[own], y=fed.data.y[own], attributes={})
        side = server_side(data, method, scenario.model, scenario.train, run)
        if "root" in method.server.needs and len(data) == 0:
            raise EquipoiseError(f"{method.name} needs data of the server's own, and there is none", "set data.root")
        self.exchange = MessageExchange(post, side.expected, secrets.token_hex(8), side.root)
        participants = Participants(scenario.participation, fed.sizes, stream)
        layout, train = side.expected.layout, scenario.train
        self.server = Server(method, side.w, layout, participants, train, scenario.admission, stream)
        self.method, self.scenario, self.settings = method, scenario, run
        self.malicious = torch.zeros(fed.n_clients, dtype=torch.bool)
        self.heard: Callable[[RoundRecord, int | None], None] = lambda record, evaluated: None
        """Told of every round, and of the earlier one whose evaluation came with it."""
        self.due: int | None = None
        """The round whose evaluation comes along with the next training."""
        self._measured, self._shown = -1, -1

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.server.round if self._shown < 0 else self._shown

    @property
    def splits(self) -> tuple[str, ...]:
        return ("validation", "test") if self.settings.splits == "all" else ("validation",)

    @property
    def measured(self) -> bool:
        """Whether clients have said how they are served after this round."""
        return self._measured == self.round

    @property
    def n_clients(self) -> int:
        return len(self.malicious)

    def step(self) -> RoundRecord:
        with steady():
            record = self.server.step(self.exchange)
        due, self.due = self.due, None
        self.heard(record, due)
        return record

    def finish(self) -> None:
        """After the last round: what the method's clients still do by themselves, and how everyone is served."""
        self._measure(finish=True)

    def evaluate_later(self) -> None:
        """Ask how clients are served after this round when they are next written to."""
        self.due, self.exchange.splits = self.round, self.splits

    @contextmanager
    def looking_back(self, round: int) -> Iterator[None]:
        """Be in an earlier round, for what has been measured in it."""
        self._shown = self._measured = round
        try:
            yield
        finally:
            self._shown = -1

    def _measure(self, finish: bool) -> None:
        train = self.scenario.train
        lr = train.lr * train.lr_decay**self.round
        plan = Plan(self.round, torch.arange(self.n_clients), self.server.w, lr, {}, frozenset())
        self.exchange.evaluate(plan, self.splits, finish)
        self._measured = self.round

    def evaluate(self, split: str) -> dict[str, Evaluation]:
        """As clients say; all splits are asked for in one message."""
        if not self.measured:
            self._measure(finish=False)
        whose = ("global", "personal") if self.method.client.personalised else ("global",)
        return {who: self.exchange.evaluation(f"{split}/{who}", self.n_clients) for who in whose}

    def success(self) -> None:
        """Nobody here knows of attackers."""

    def personal(self) -> tuple[Tensor, Tensor] | None:
        """Clients keep their models to themselves."""
        return None

    def dump(self) -> State:
        server = {f"server/{n}": t for n, t in self.server.dump().items()}
        waiting = {f"exchange/{n}": t for n, t in self.exchange.dump().items()}
        due = torch.tensor(-1 if self.due is None else self.due)
        run = torch.tensor(list(self.exchange.run.encode()), dtype=torch.uint8)
        return {**server, **waiting, "run": run, "due": due}

    point = dump

    def load(self, dumped: State) -> None:
        def below(prefix: str) -> State:
            return {n.removeprefix(prefix): t for n, t in dumped.items() if n.startswith(prefix)}

        self.server.load(below("server/"))
        self.exchange.load(below("exchange/"))
        self.exchange.run = bytes(dumped["run"].tolist()).decode()
        self._measured, due = -1, int(dumped["due"])
        self.due, self.exchange.splits = (None, ()) if due < 0 else (due, self.splits)
