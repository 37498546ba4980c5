"""The server's side of a run whose clients are elsewhere: what `Simulation` is to simulated ones, with the same face.

The server holds no client's data and no client's model. A run has a name of its own, drawn when it starts, under which
clients keep their state; it is part of what is saved, so that a run that goes on after a crash is still the same run.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.core import Method, State
from equipoise.engine.clients import steady
from equipoise.engine.exchange import Plan
from equipoise.engine.participation import Participants
from equipoise.engine.post import MessageExchange, Post, server_side
from equipoise.engine.run import Scenario
from equipoise.engine.server import RoundRecord, Server
from equipoise.engine.settings import Run
from equipoise.errors import EquipoiseError
from equipoise.metrics import Evaluation
from equipoise.streams import Stream


class Deployment:
    """A method in a scenario with a seed, on clients that a `Post` reaches."""

    vectorised, executor_reason = False, "clients are elsewhere"

    def __init__(self, scenario: Scenario, method: Method, run: Run, post: Post) -> None:
        if scenario.attack is not None or scenario.participation.dropout > 0:
            hint = "leave out [attack] and participation.dropout: only a simulation has these"
            raise EquipoiseError("a deployed federation has no simulated attackers and no simulated drop-outs", hint)
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
        self._measured = -1

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.server.round

    @property
    def n_clients(self) -> int:
        return len(self.malicious)

    def step(self) -> RoundRecord:
        with steady():
            return self.server.step(self.exchange)

    def finish(self) -> None:
        """After the last round: what the method's clients still do by themselves, and how everyone is served."""
        self._measure(finish=True)

    def _measure(self, finish: bool) -> None:
        train, splits = (
            self.scenario.train,
            ("validation", "test") if self.settings.splits == "all" else ("validation",),
        )
        lr = train.lr * train.lr_decay**self.round
        plan = Plan(self.round, torch.arange(self.n_clients), self.server.w, lr, {}, frozenset())
        self.exchange.evaluate(plan, splits, finish)
        self._measured = self.round

    def evaluate(self, split: str) -> dict[str, Evaluation]:
        """As clients say; all splits are asked for in one message."""
        if self._measured != self.round:
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
        return {**server, **waiting, "run": torch.tensor(list(self.exchange.run.encode()), dtype=torch.uint8)}

    def load(self, dumped: State) -> None:
        def below(prefix: str) -> State:
            return {n.removeprefix(prefix): t for n, t in dumped.items() if n.startswith(prefix)}

        self.server.load(below("server/"))
        self.exchange.load(below("exchange/"))
        self.exchange.run = bytes(dumped["run"].tolist()).decode()
        self._measured = -1
