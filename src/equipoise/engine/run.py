"""A whole simulated run, round by round: the server, the simulated clients, and how both are saved and restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from equipoise.core import Chain, Method, State
from equipoise.data.federation import Federation
from equipoise.engine.admission import admit
from equipoise.engine.adversary import targeted
from equipoise.engine.clients import steady
from equipoise.engine.evaluate import evaluate_global, evaluate_personal
from equipoise.engine.exchange import Plan, Replies
from equipoise.engine.net import Net
from equipoise.engine.participation import Participants
from equipoise.engine.precision import check as check_precision
from equipoise.engine.server import RoundRecord, Server
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.engine.simulator import How, Simulator
from equipoise.errors import EquipoiseError, require
from equipoise.large import Pieces, whole
from equipoise.metrics import Evaluation
from equipoise.modules import check_forward
from equipoise.streams import Stream
from equipoise.threat import Attack

_WORTH = 300  # local steps from which a recording pays for itself: 120 for FedAvg, more for Ditto
_TOGETHER = 64  # clients whose models are brought to host memory together


@dataclass(frozen=True)
class Scenario:
    """Everything about a run but the method and the seed."""

    federation: Federation
    model: nn.Module
    train: Train = Train()
    participation: Participation = Participation()
    admission: Admission = Admission()
    attack: Attack | None = None


class Simulation:
    """A method in a scenario with a seed."""

    def __init__(self, scenario: Scenario, method: Method, run: Run) -> None:
        stream, fed = Stream(run.seed), scenario.federation
        device, dtype = pick_device(run.device), torch.float64 if run.dtype == "float64" else torch.float32
        check_precision(run.precision, device)
        require(scenario.train.lr <= torch.finfo(dtype).max, "train.lr", scenario.train.lr, f"what {dtype} can hold")
        net = Net(scenario.model, fed.data.classes, scenario.train.loss, device, dtype)
        self.vectorised, self.executor_reason = choose_executor(run.executor, net, fed, device, dtype)
        added = scenario.attack.added_to(fed.n_clients) if scenario.attack else 0
        participants = Participants(scenario.participation, fed.sizes, stream, added)
        replay = run.replay == "on" or (run.replay == "auto" and local_steps(scenario.train, fed.sizes) >= _WORTH)
        backed = run.replay != "off"
        how = How(device, self.vectorised, run.workers, replay, backed, run.precision, run.personal, run.own_models)
        self.simulator = Simulator(method, net, fed, scenario.train, participants, scenario.attack, stream, how)
        self.server = Server(
            method, net.initial(), net.layout, participants, scenario.train, scenario.admission, stream
        )
        self.simulator.aggregate = self._direction
        self.method, self.scenario, self.settings = method, scenario, run
        for split in sorted(method.client.needs):
            if not bool(fed.splits[split].size.any()):
                told = f"{method.name} needs {split} data, and none of the {fed.n_clients} clients has any"
                raise EquipoiseError(told, f"set data.{split} above 0, such as 0.1")
        if "root" in method.server.needs and (fed.root is None or len(fed.root) == 0):
            rule = type(method.server.rule if isinstance(method.server, Chain) else method.server).__name__
            told = f"{method.name}: {rule} needs data of the server's own, and there is none"
            raise EquipoiseError(told, "set data.root above 0: 100 keeps 100 samples for the server")

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.server.round

    @property
    def n_clients(self) -> int:
        """All clients, those that an attack added included."""
        return self.simulator.federation.n_clients

    @property
    def malicious(self) -> Tensor:
        """[N] bool: who counts as malicious in what is reported."""
        hostile = self.scenario.attack is None or self.scenario.attack.hostile
        return self.simulator.malicious if hostile else torch.zeros_like(self.simulator.malicious)

    @property
    def remarks(self) -> list[str]:
        """What is not done as fast as it might be, and why; known after the first round."""
        replay, risks = self.simulator.replay, self.simulator.risks
        steps, losses = replay.reasons if replay else {}, risks.reasons if risks else {}
        plain, asked = dict(replay.plain) if replay else {}, self.simulator.net.asked.reason
        if asked:
            plain["convolutions of models that are asked"] = asked
        return [
            *(f"steps of {rule} are not played back as recorded: {why}" for rule, why in steps.items()),
            *(f"losses on {split} data are not one CUDA graph: {why}" for split, why in losses.items()),
            *(f"{what} have no kernels of their own: {why}" for what, why in plain.items()),
        ]

    def step(self) -> RoundRecord:
        with steady():
            return self.server.step(self.simulator)

    def finish(self) -> None:
        """After the last round: what the method's clients still do by themselves."""
        with steady():
            everyone = torch.arange(self.n_clients, device=self.server.w.device)
            lr = self.scenario.train.lr * self.scenario.train.lr_decay**self.round
            self.simulator.finish(Plan(self.round, everyone, self.server.w, lr, {}, frozenset()))

    def _direction(self, plan: Plan, replies: Replies) -> Tensor:
        """What the server would do with these replies: the oracle of attacks that look ahead."""
        kept = admit(replies, self.scenario.admission).replies
        if len(kept.ids) == 0:
            return torch.zeros_like(plan.w)
        cohort = self.server.cohort(plan, kept, self.simulator)
        try:
            return self.server.rule(cohort, self.server.state).direction
        except EquipoiseError:
            return torch.zeros_like(plan.w)

    def evaluate(self, split: str) -> dict[str, Evaluation]:
        """Per-client results of the "global" model and, where clients have their own, of the "personal" ones."""
        with steady():
            found = {"global": evaluate_global(self.simulator, self.server.w, split)}
            if self.method.client.personalised:
                found["personal"] = evaluate_personal(self.simulator, self.server.w, split)
            return found

    def success(self) -> float | None:
        """The share of the attacker's target samples on which honest clients' models say what it wants."""
        attack = self.scenario.attack
        aimed = None if attack is None else targeted(self.simulator.federation, attack, self.malicious)
        if aimed is None:
            return None
        with steady():
            if self.method.client.personalised:
                found = evaluate_personal(self.simulator, self.server.w, "test", aimed)
            else:
                found = evaluate_global(self.simulator, self.server.w, "test", aimed)
        return float(found.correct.sum() / max(1, found.n.sum()))

    def personal(self) -> tuple[Tensor, Tensor] | None:
        """Ids and models of the clients that have a model of their own; None where all use the global one."""
        ids, w = self.simulator.store.ids(), self.server.w
        if not self.method.client.personalised or len(ids) == 0:
            return None
        models = torch.empty((len(ids), len(w)), dtype=w.dtype)  # in host memory: a device may have no room for them
        for at in torch.split(torch.arange(len(ids)), _TOGETHER):
            models[at] = self.simulator.personal(ids[at].to(w.device), w).cpu()
        return ids, models

    def dump(self) -> State:
        """All that the run needs to go on."""
        return whole(self.point())

    def point(self) -> dict[str, Tensor | Pieces]:
        """The same for a checkpoint, the clients' state in pieces."""
        server = {f"server/{n}": t for n, t in self.server.dump().items()}
        clients = {f"clients/{n}": t for n, t in self.simulator.store.point().items()}
        return {**server, **clients, **{f"attack/{n}": t for n, t in self.simulator.memory.items()}}

    def load(self, dumped: State) -> None:
        def below(prefix: str) -> State:
            return {n.removeprefix(prefix): t for n, t in dumped.items() if n.startswith(prefix)}

        self.server.load(below("server/"))
        self.simulator.store.load(below("clients/"))
        self.simulator.memory = {n: t.to(self.server.w.device, copy=True) for n, t in below("attack/").items()}


def pick_device(name: str) -> torch.device:
    """ "auto" is a CUDA device where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise EquipoiseError(f"run.device is {name!r}: {reason}", 'use "auto", "cpu" or "cuda"') from None
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # streams and graphs are the current device's
    return device


def local_steps(train: Train, sizes: Tensor) -> int:
    """How many steps the largest client takes in the whole run if it is drawn in every round."""
    largest = int(sizes.max()) if len(sizes) else 0
    laps = -(-largest // (train.batch or max(1, largest)))
    return train.rounds * (train.steps or train.epochs * laps)


def choose_executor(
    wish: str, net: Net, federation: Federation, device: torch.device, dtype: torch.dtype
) -> tuple[bool, str]:
    """Whether to vectorise over clients, and why.

    The rule: what was asked for; else vmap, except for models with convolutions on a CPU, where grouped convolutions
    cost more than they save, and for modules that torch.func cannot map over.
    """
    data = federation.data.to_device(device)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    if data.x.dtype == torch.int64:  # the sample with the largest token: an embedding that has a row for it has all
        first = data.x.flatten(1).amax(1).argmax()[None]
    label = data.y[first]
    label = label.to(dtype) if label.is_floating_point() else label
    net.loss(check_forward(net.module, data.inputs(first, dtype)), label)
    if wish == "loop":
        return False, "asked for"
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in net.module.modules())
    if wish == "auto" and device.type == "cpu" and convolves:
        return False, "convolutions on a CPU: one client after the other is faster"
    rows = net.initial().repeat(2, 1)  # two models: one that is only shown twice is not mapped over
    x, y = data.inputs(first.expand(2, 1), dtype), data.y[first.expand(2, 1)]
    try:
        with _Places():
            net.forward(rows, x, y.to(dtype) if y.is_floating_point() else y, vectorised=True)
            key = torch.zeros(2, dtype=torch.int64, device=device)
            net.call(net.layout.tensors(rows), x, key, vectorised=True, train=True)  # what training alone does
    except (RuntimeError, ValueError) as error:  # of the first, what is not implemented is a kind
        reason = f"torch.func cannot map this model over clients: {str(error).splitlines()[0]}"
        if wish == "vmap":
            raise EquipoiseError(reason, 'executor = "loop" runs any model') from None
        return False, reason
    return True, "asked for" if wish == "vmap" else "clients as rows"


class _Places(TorchFunctionMode):
    """Refuses what looks at numbers by where they lie: beside those of other clients they lie elsewhere."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.as_strided, torch.as_strided_, Tensor.as_strided, Tensor.as_strided_):
            raise ValueError(f"{func.__name__} says where in memory numbers lie")
        return func(*args, **(kwargs or {}))
