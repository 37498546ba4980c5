"""A client on its own: its data, its state, and an answer to whatever the server asks.

A node holds the samples of one client and nobody else's. What it does with them is what the simulator does with a row,
by the same code, so that a deployed run ends with the simulator's numbers. What lasts between rounds is written to disk
before the answer leaves, all of it or nothing, under the name of the run. The state from before the last round is kept
beside the one after it: a server that was killed and asks for a round again gets the same answer again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from equipoise import files
from equipoise.core import ClientRule, Method, State
from equipoise.data.federation import SPLITS, Dataset, Federation, Split
from equipoise.engine.clients import Done, steady
from equipoise.engine.exchange import Plan
from equipoise.engine.messages import Answer, Ask, Parcel, read_ask
from equipoise.engine.net import Net
from equipoise.engine.participation import Participants
from equipoise.engine.precision import check as check_precision
from equipoise.engine.risk import answers
from equipoise.engine.settings import Participation, Run, Train
from equipoise.engine.simulator import How, Simulator
from equipoise.errors import EquipoiseError
from equipoise.losses import correct
from equipoise.streams import Stream

_log = logging.getLogger(__name__)
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def own_part(federation: Federation, client: int) -> Federation:
    """A federation in which this client has its own samples, and nobody else has any."""
    return placed(federation.data, {n: s.of_client(client) for n, s in federation.splits.items()}, client)


def placed(data: Dataset, held: Mapping[str, Tensor], client: int) -> Federation:
    """The samples `held`, by split, of a dataset as those of one client; the rest of the dataset is left behind."""
    numbers = torch.cat([held[name] for name in SPLITS])
    kept = numbers if len(numbers) else torch.zeros(min(1, len(data)), dtype=torch.int64)  # models need to see a shape
    own = replace(data, x=data.x[kept].clone(), y=data.y[kept].clone(), attributes={})
    splits, at = {}, 0
    for name in SPLITS:
        size = torch.zeros(client + 1, dtype=torch.int64)
        size[client] = len(held[name])
        splits[name] = Split(torch.arange(at, at + len(held[name])), torch.zeros_like(size), size)
        at += len(held[name])
    return Federation(own, splits)


def workplace(federation: Federation, method: Method, model: nn.Module, train: Train, run: Run) -> Simulator:
    """The simulator of one client's rounds, one row at a time, on a CPU."""
    stream, device = Stream(run.seed), torch.device("cpu")
    check_precision(run.precision, device)
    dtype = torch.float64 if run.dtype == "float64" else torch.float32
    net = Net(model, federation.data.classes, train.loss, device, dtype)
    participants = Participants(Participation(), federation.sizes, stream)
    how = How(device, vectorised=False, precision=run.precision)
    return Simulator(method, net, federation, train, participants, None, stream, how)


@dataclass(frozen=True)
class Kept:
    """What lasts of a client between rounds."""

    run: str = ""
    round: int = -1
    """The last round it trained in."""
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    end: Tensor | None = None
    """Where that round's training ended, until the server's delta for it has come."""


class Node:
    """One client; `folder` is where it keeps its state."""

    def __init__(
        self,
        client: int,
        federation: Federation,
        method: Method,
        model: nn.Module,
        train: Train,
        run: Run,
        folder: Path | None = None,
    ) -> None:
        self.client, self.method, self.folder = client, method, folder
        self.here = workplace(federation, method, model, train, run)
        self.ids = torch.tensor([client])
        self.kept = Kept()

    def __call__(self, parcel: Parcel) -> Parcel:
        """The answer to what the server sent; a failure is an answer too."""
        layout = self.here.net.layout
        try:
            ask = read_ask(parcel, layout, self.here.w0.dtype)
        except (EquipoiseError, KeyError, TypeError, ValueError) as error:
            _log.warning("client %d was sent what it cannot read: %s", self.client, error)
            return Answer(error=str(error)).parcel(Ask("train", "", -1, self.client, 0.0), layout)
        try:
            with steady():
                return self._answer(ask).parcel(ask, layout)
        except Exception as error:  # the server must hear of it, whatever it is, and the next round may go well
            _log.warning("client %d failed in round %d: %r", self.client, ask.round, error)
            return Answer(error=f"{type(error).__name__}: {error}").parcel(ask, layout)

    def _answer(self, ask: Ask) -> Answer:
        if ask.client != self.client:
            raise EquipoiseError(f"this is client {self.client}, not {ask.client}")
        self._open(ask.run)
        if ask.kind == "probe":
            assert ask.probe is not None
            return Answer(probe=self.here.probe(_plan(ask), self.ids, ask.probe)[:, 0])
        self._receive(ask)
        if ask.kind == "train":
            found = self._evaluate(ask)
            return replace(self._train(ask), evaluations=found)
        if ask.kind == "finish" and (rule := self.here.rule.finish()) is not None:
            self._work(ask, rule)
        return Answer(evaluations=self._evaluate(ask))

    # ------------------------------------------------------------------------------------------------------- a round

    def _train(self, ask: Ask) -> Answer:
        done = self._work(ask)
        size = int(self.here.claimed[self.client])
        loss = None if done.losses is None else done.losses[0]
        return Answer(done.updates[0], size, loss, {n: t[0] for n, t in done.signals.items()})

    def _work(self, ask: Ask, rule: ClientRule | None = None) -> Done:
        """Train, and keep what lasts; a round asked for again starts from where it started."""
        if ask.round < self.kept.round:
            raise EquipoiseError(f"round {self.kept.round} is done, and {ask.round} was asked for")
        state = self.kept.before if ask.round == self.kept.round else self.kept.after
        self.here.store.put(self.ids, state)
        before = self.here.states(self.ids)
        messages = {n: t[None] for n, t in ask.messages.items()}
        done = self.here.train(_plan(ask), self.ids, messages, rule)
        if before:
            self._keep(Kept(ask.run, ask.round, before, done.state, done.end))
        return done

    def _receive(self, ask: Ask) -> None:
        """Take in the delta that the server made after the last round, once."""
        kept = self.kept
        if ask.download is not None and kept.end is not None and ask.received == kept.round:
            after = self.here.rule.receive(kept.end, kept.after, ask.download[None])
            self._keep(replace(kept, after=after, end=None))

    def _evaluate(self, ask: Ask) -> dict[str, State]:
        """How the received model and the client's own serve it: as they are before a training, after the last one."""
        assert ask.w is not None
        again = ask.kind == "train" and ask.round == self.kept.round
        # Put there what is kept: a round that failed, or is asked for again, may have left something else.
        self.here.store.put(self.ids, self.kept.before if again else self.kept.after)
        models = {"global": ask.w[None]}
        if self.method.client.personalised:
            models["personal"] = self.here.personal(self.ids, ask.w)
        return {
            f"{split}/{who}": measured(self.here, self.ids, rows, split)
            for split in ask.evaluate
            for who, rows in models.items()
        }

    # ------------------------------------------------------------------------------------------------ what is kept

    def _keep(self, kept: Kept) -> None:
        if self.folder is not None:
            parts = {"before": kept.before, "after": kept.after, "end": {} if kept.end is None else {"": kept.end}}
            tensors = {f"{part}/{n}": t for part, state in parts.items() for n, t in state.items()}
            facts = {"run": kept.run, "round": kept.round, "client": self.client}
            files.write_tensors(self._path(kept.run), tensors, facts)
        self.kept = kept
        self.here.store.put(self.ids, kept.after)

    def _open(self, run: str) -> None:
        """Be in this run: from memory, from the disk, or from the start."""
        if run == self.kept.run:
            return
        kept = Kept(run)
        if self.folder is not None and self._path(run).exists():
            kept = self._read(run)
        self.kept, self.here.store = kept, type(self.here.store)(self.client + 1)
        self.here.store.put(self.ids, kept.after)

    def _read(self, run: str) -> Kept:
        tensors, facts = files.read_tensors(self._path(run))
        if facts.get("client") != self.client:
            raise EquipoiseError(f"{self._path(run)} is of client {facts.get('client')}", "each client needs a folder")

        def below(prefix: str) -> State:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        return Kept(run, int(facts["round"]), below("before/"), below("after/"), tensors.get("end/"))

    def _path(self, run: str) -> Path:
        if not _RUN.fullmatch(run):  # it comes from outside, and becomes the name of a file
            raise EquipoiseError(f"{run!r} is not the name of a run")
        assert self.folder is not None
        return files.make_folder(self.folder) / f"{run}.safetensors"


def _plan(ask: Ask) -> Plan:
    w = torch.empty(0) if ask.w is None else ask.w
    return Plan(ask.round, torch.tensor([ask.client]), w, ask.lr, {}, ask.needs)


def measured(here: Simulator, ids: Tensor, rows: Tensor, split: str) -> State:
    """How well the model `rows` [1, d] serves one client, as the columns of an `Evaluation`."""
    n, classes = here.federation.splits[split].size[ids], here.federation.data.classes
    total, right = torch.zeros(1, dtype=torch.float64), torch.zeros_like(n)
    counts, hits = torch.zeros(classes, dtype=torch.int64), torch.zeros(classes, dtype=torch.int64)
    for out, losses, y, mask in answers(here.executor().world, ids, rows, split):
        good = correct(out, y) & mask
        right += good.sum()
        total += torch.where(mask, losses, torch.zeros_like(losses)).sum(1, dtype=torch.float64)
        if classes:
            label = y if not y.is_floating_point() else y.argmax(-1)
            counts += torch.bincount(label[mask], minlength=classes)
            hits += torch.bincount(label[good], minlength=classes)
    mean = torch.where(n > 0, total / n.clamp(min=1), torch.nan)
    return {"n": n[0], "correct": right[0], "loss": mean[0], "class_n": counts, "class_correct": hits}
