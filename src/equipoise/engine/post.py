"""The exchange of a real federation: a message to each client, and what came back, checked, as the rows of a round.

Who carries the messages is a `Post`: `InMemory` here, a framework elsewhere. A client is known by the line its answer
came in on, never by what the answer says. A delta for a client alone waits here until that client is written to again,
and so does a wish for evaluations, so that a round is one message to each client and one back.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from equipoise.core import Method, State
from equipoise.data.federation import SPLITS, Dataset, Federation, Split
from equipoise.engine.clients import steady
from equipoise.engine.exchange import Plan, Replies
from equipoise.engine.messages import COLUMNS, Answer, Ask, Expected, Parcel, pack, read_answer, unpack
from equipoise.engine.node import placed, workplace
from equipoise.engine.settings import Run, Train
from equipoise.metrics import Evaluation

_log = logging.getLogger(__name__)


class Post(Protocol):
    """Carries messages to clients and brings answers back; who is missing from what it returns did not answer."""

    def __call__(self, letters: Mapping[int, Parcel]) -> Mapping[int, Parcel | str]:
        """{client: message} -> {client: answer, or the reason why there is none}."""


@dataclass(frozen=True)
class InMemory:
    """Nodes in this process, one after the other; all that passes between them and the server is bytes."""

    nodes: Mapping[int, Callable[[bytes], object]]
    cap: int

    def __call__(self, letters: Mapping[int, Parcel]) -> dict[int, Parcel | str]:
        back = {client: self.nodes[client](pack(letter)) for client, letter in letters.items()}
        return {client: unpack(data, self.cap) for client, data in back.items() if data is not None}


def in_bytes(node: Callable[[Parcel], Parcel]) -> Callable[[bytes], bytes]:
    """A node that takes and gives bytes."""

    def answer(data: bytes) -> bytes:
        parcel = unpack(data, 1 << 60)
        return pack(node(parcel if isinstance(parcel, Parcel) else Parcel()))

    return answer


class MessageExchange:
    """Carries rounds out by post; implements `Exchange`."""

    def __init__(
        self, post: Post, expected: Expected, run: str, root: Callable[[Plan], Tensor | None] | None = None
    ) -> None:
        self.post, self.expected, self.run, self._root = post, expected, run, root
        self.splits: tuple[str, ...] = ()
        """Splits that the next training message asks to have evaluated, with the model it carries."""
        self.evaluations: dict[int, Mapping[str, State]] = {}
        """What clients answered when they were last asked to evaluate, by client."""
        self.refused: dict[int, str] = {}
        """Who gave no answer that can be used to the last messages, and why."""
        self._waiting: dict[int, tuple[int, Tensor]] = {}

    def __call__(self, plan: Plan) -> Replies:
        splits, self.splits = self.splits, ()
        self.evaluations = {} if splits else self.evaluations
        answers = self._ask("train", plan, plan.ids, evaluate=splits)
        sent = {k: a.update for k, a in answers.items() if a.update is not None}
        ids = torch.tensor(sorted(sent), dtype=torch.int64)
        if not sent:
            return Replies(ids, plan.w.new_zeros((0, len(plan.w))), ids, refused=self.refused)
        rows = [answers[k] for k in ids.tolist()]
        losses = [a.loss for a in rows if a.loss is not None]
        return Replies(
            ids=ids,
            updates=torch.stack([sent[k] for k in ids.tolist()]),
            sizes=torch.tensor([a.size for a in rows]),
            losses=torch.stack(losses) if losses else None,
            signals={n: torch.stack([a.signals[n] for a in rows]) for n in self.expected.signals},
            refused=self.refused,
        )

    def probe(self, plan: Plan, ids: Tensor, models: Tensor) -> Tensor:
        """Losses [T, K]; not a number where a client gave none."""
        answers = self._ask("probe", plan, ids, probe=models)
        nothing = models.new_full((len(models),), torch.nan)
        told = [answers[k].probe if k in answers else None for k in ids.tolist()]
        return torch.stack([nothing if t is None else t for t in told], 1)

    def root(self, plan: Plan) -> Tensor | None:
        return None if self._root is None else self._root(plan)

    def foresee(self, round: int, ids: Tensor) -> None:
        pass

    def anticipate(self, plan: Plan) -> None:
        pass

    def deliver(self, plan: Plan, ids: Tensor, downloads: Tensor) -> None:
        self._waiting |= {k: (plan.round, row) for k, row in zip(ids.tolist(), downloads, strict=True)}

    def evaluate(self, plan: Plan, splits: tuple[str, ...], finish: bool = False) -> None:
        """Ask the plan's clients how its model and their own serve them; after their last training, if `finish`."""
        self.evaluations = {}
        self._ask("finish" if finish else "evaluate", plan, plan.ids, evaluate=splits)

    def evaluation(self, what: str, n_clients: int) -> Evaluation:
        """ "test/personal" of everyone, as last told; clients that told nothing count as without samples."""
        found = {k: e[what] for k, e in self.evaluations.items() if what in e}
        columns = {}
        for name, kind in COLUMNS.items():
            shape = (n_clients, self.expected.classes) if name.startswith("class") else (n_clients,)
            empty = torch.nan if name == "loss" else 0
            columns[name] = torch.full(shape, empty, dtype=getattr(torch, kind))
            for k, told in found.items():
                columns[name][k] = told[name]
        return Evaluation(**{name: t.numpy() for name, t in columns.items()})

    # -------------------------------------------------------------------------------------------------------- by post

    def _ask(
        self, kind: str, plan: Plan, ids: Tensor, evaluate: tuple[str, ...] = (), probe: Tensor | None = None
    ) -> dict[int, Answer]:
        """Write to these clients and read what they answer; who does not pass is in `refused`."""
        asks = {}
        for k in ids.tolist():
            at = int(torch.searchsorted(plan.ids, k))
            messages = {n: t[at] for n, t in plan.messages.items()} if kind == "train" else {}
            model = None if kind == "probe" else plan.w
            asks[k] = Ask(kind, self.run, plan.round, k, plan.lr, model, messages, plan.needs, evaluate, probe)
            asks[k] = replace(asks[k], token=secrets.token_hex(16))
            if kind != "probe" and k in self._waiting:
                asks[k] = replace(asks[k], received=self._waiting[k][0], download=self._waiting[k][1])
        back = self.post({k: ask.parcel(self.expected.layout) for k, ask in asks.items()})
        answers, self.refused = {}, {}
        for k, ask in asks.items():
            parcel = back.get(k, "late")
            told = parcel if isinstance(parcel, str) else read_answer(parcel, ask, self.expected)
            if isinstance(told, str):
                self.refused[k] = told
                said = parcel.facts.get("error", "") if isinstance(parcel, Parcel) else ""
                _log.warning("round %d, client %d: %s: %.500r", plan.round, k, told, said)
                continue
            answers[k] = told
            self.evaluations |= {k: told.evaluations} if told.evaluations else {}
            if ask.download is not None:
                del self._waiting[k]
        return answers

    # ------------------------------------------------------------------------------------------- to and from a file

    def dump(self) -> State:
        """What the server must not forget besides its own state."""
        if not self._waiting:
            return {}
        ids = sorted(self._waiting)
        rounds, rows = [self._waiting[k][0] for k in ids], [self._waiting[k][1] for k in ids]
        return {"ids": torch.tensor(ids), "rounds": torch.tensor(rounds), "rows": torch.stack(rows)}

    def load(self, dumped: State) -> None:
        self._waiting = {}
        if dumped:
            told = zip(dumped["ids"].tolist(), dumped["rounds"].tolist(), dumped["rows"].clone(), strict=True)
            self._waiting = {k: (round, row) for k, round, row in told}


@dataclass(frozen=True)
class ServerSide:
    """What the server knows without any client's data."""

    w: Tensor
    """The initial model."""
    expected: Expected
    root: Callable[[Plan], Tensor | None]
    """What its own samples say."""


def server_side(data: Dataset, method: Method, model: nn.Module, train: Train, run: Run) -> ServerSide:
    """The server's half of a federation; `data` are its own samples, or none (x [0, ...]): then their shape counts.

    What clients report is found out by being one for a round, on a sample of zeros.
    """
    blank = replace(data, x=data.x.new_zeros((1, *data.x.shape[1:])), y=data.y.new_zeros((1, *data.y.shape[1:])))
    alone = placed(blank, dict.fromkeys(SPLITS, torch.zeros(1, dtype=torch.int64)), 0)
    here = workplace(alone, method, model, train, run)
    here.reached = lambda stop: here.w0[None]
    ids = torch.tensor([0])
    messages = method.server.plan(ids, method.server.init(here.w0))
    with steady():
        done = here.train(Plan(0, ids, here.w0, train.lr, messages, method.server.needs), ids, messages)
    signals = {n: (str(t.dtype).removeprefix("torch."), tuple(t.shape[1:])) for n, t in done.signals.items()}
    expected = Expected(here.net.layout, here.w0.dtype, signals, data.classes, method.client.personalised)
    if len(data) == 0:
        return ServerSide(here.w0, expected, lambda plan: None)
    nobody = {name: Split(torch.arange(0), torch.zeros(1).long(), torch.zeros(1).long()) for name in SPLITS}
    own = workplace(Federation(data, nobody, root=torch.arange(len(data))), method, model, train, run)
    return ServerSide(here.w0, expected, own.root)
