"""What clients have without the federation, and what they gain by joining it.

Two notions of "alone". `local_optima` trains every client until it stops improving: the reference of loss gaps (EAGLE).
`standalone` trains it for as many rounds as the federation runs: the reference of collaborative fairness (RFFL), which
`collaborative_fairness` measures in one call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise import __version__, files
from equipoise.at import At, Schedule, Stop
from equipoise.core import SGD, ClientRule, Mean, Method, Objective, State
from equipoise.data.federation import SPLITS
from equipoise.data.find import cache as user_cache
from equipoise.engine.clients import steady
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run
from equipoise.engine.waiting import tell
from equipoise.errors import EquipoiseError
from equipoise.methods.local import local
from equipoise.metrics import Evaluation, Floats, collaborative
from equipoise.streams import Stream

# -------------------------------------------------------------------------------------------------- local optima


@dataclass(frozen=True, eq=False)
class Optima:
    """The models that clients reach alone, and what these do on each split of their own client's data."""

    models: Tensor
    """[N, d], on the CPU."""
    evaluations: dict[str, Evaluation]
    """By split: "train", "validation", "test"."""

    @property
    def loss(self) -> dict[str, Floats]:
        """[N] by split; NaN for a client without samples there."""
        return {split: e.loss for split, e in self.evaluations.items()}

    @property
    def accuracy(self) -> dict[str, Floats]:
        return {split: e.accuracy for split, e in self.evaluations.items()}


def local_optima(scenario: Scenario, run: Run, stop: Stop = Stop(), cache: Path | str | None = None) -> Optima:
    """Every client's model after training alone until `stop`, the same as EAGLE's clients prepare with that `stop`.

    Trained once and kept in the folder `cache` (the user's own cache if none is named), under a name made of all that
    it depends on; the method is not among that. A damaged file is made again. Clients that an attack added come last.
    """
    simulation = Simulation(scenario, local(), run)
    with steady():
        basis = _basis(simulation, stop)
        models = _kept(basis, cache, lambda: _fitted(simulation, stop))
    everyone = torch.arange(simulation.n_clients)
    simulation.simulator.store.put(everyone, {"own": models.to(simulation.server.w.device)})
    return Optima(models, {split: simulation.evaluate(split)["personal"] for split in SPLITS})


def _fitted(simulation: Simulation, stop: Stop) -> Tensor:
    s = simulation.simulator
    everyone = torch.arange(simulation.n_clients, device=s.w0.device)
    return s.executor().fit_alone(everyone, s.w0, s.schedule, s.lr, stop, s.stream.child("alone")).cpu()


def _basis(simulation: Simulation, stop: Stop) -> dict[str, Any]:
    """All that the models depend on, in a form that can be compared and hashed.

    The losses of the initial model stand for the code of the model and of the loss function, which has no other name.
    """
    s, train = simulation.simulator, simulation.scenario.train
    everyone = torch.arange(simulation.n_clients, device=s.w0.device)
    data = s.federation.data
    return {
        "data": _digest(data.x, data.y) + f", scale {data.scale}, {data.classes} classes",
        "samples": _digest(s.host.index, s.host.start, s.host.size),
        "model": repr(s.net.module),
        "start": _digest(s.w0, s.executor().risk(everyone, s.w0.expand(len(everyone), -1))),
        "train": {"loss": train.loss, "lr": train.lr, "batch": train.batch},
        "stop": asdict(stop) | {"kept": "lowest", "ends": "flat"},
        "seed": simulation.settings.seed,
        "executor": f"{'vmap' if simulation.vectorised else 'loop'} on {s.w0.device.type}"
        + (", played back" if s.alone else ""),
        "version": __version__,
    }


def _digest(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for t in tensors:
        found.update(f"{t.dtype}{list(t.shape)}".encode())
        found.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _kept(basis: dict[str, Any], cache: Path | str | None, make: Callable[[], Tensor]) -> Tensor:
    """What the cache holds for this basis; else what `make` gives, which is then kept."""
    name = hashlib.sha256(files.encode_json(basis)).hexdigest()[:32]
    path = Path(cache or user_cache() / "alone") / f"{name}.safetensors"
    found = _read(path, basis)
    if found is None:
        found = make()
        # A folder that the user named must work; a cache that nobody asked for need not.
        with suppress(EquipoiseError) if cache is None else nullcontext():
            files.make_folder(path.parent)
            files.write_tensors(path, {"models": found}, {"basis": basis, "sha256": _digest(found)})
    return found


def _read(path: Path, basis: dict[str, Any]) -> Tensor | None:
    if not path.is_file():
        return None
    try:
        tensors, about = files.read_tensors(path)
    except EquipoiseError:
        return None
    models = tensors.get("models")
    if models is None or about != {"basis": basis, "sha256": _digest(models)}:
        return None
    return models


# ----------------------------------------------------------------------------------------- collaborative fairness


def standalone(scenario: Scenario, run: Run, rounds: int | None = None) -> Floats:
    """[N]: every client's test accuracy after training alone in each of `rounds` (None: as in the scenario)."""
    train = scenario.train if rounds is None else replace(scenario.train, rounds=rounds)
    everyone = replace(scenario, train=train, participation=Participation())
    return _received(_finished(everyone, local(), run, alone=True))


def collaborative_fairness(
    scenario: Scenario, run: Run, method: Method, *, extra_epoch: bool | None = None
) -> dict[str, Any]:
    """Whether those who bring more get more: accuracies alone and with the method, and how they correlate.

    Returns "pearson" and "spearman" over benign clients, and the accuracies [N] "standalone" and "received". With
    `extra_epoch` every client trains one more epoch by itself before it is compared, as RFFL's authors do for methods
    that give the same model to all; None does so for exactly these.
    """
    extra = not method.client.personalised if extra_epoch is None else extra_epoch
    if extra:
        method = replace(method, client=ExtraEpoch(method.client))
    simulation = _finished(scenario, method, run)
    alone, received = standalone(scenario, run, simulation.round), _received(simulation)
    correlation = collaborative(alone, received, simulation.malicious.numpy())
    return {**correlation, "standalone": alone, "received": received}


def _finished(scenario: Scenario, method: Method, run: Run, *, alone: bool = False) -> Simulation:
    simulation = Simulation(scenario, method, run)
    everyone = torch.arange(simulation.n_clients)
    for done in range(scenario.train.rounds):
        if simulation.step().stop is not None:
            break
        if alone:
            tell(done + 1, scenario.train.rounds, everyone, unit="round")
    simulation.finish()
    return simulation


def _received(simulation: Simulation) -> Floats:
    found = simulation.evaluate("test")
    return found.get("personal", found["global"]).accuracy


_OWN, _DONE = "extra_epoch.own", "extra_epoch.done"


@dataclass(frozen=True)
class ExtraEpoch(ClientRule):
    """Any client rule, and after the last round one epoch of plain SGD from the model that the client has by then."""

    base: ClientRule
    personalised = True

    def __post_init__(self) -> None:
        if self.base.finish() is not None:
            told = f"extra epoch: clients of {type(self.base).__name__} train after the last round already"
            raise EquipoiseError(told, "compare them as they are, with extra_epoch=False")
        self.__dict__.update({name: getattr(self.base, name) for name in ("objective", "batches", "features")})

    def init(self, w: Tensor) -> State:
        return {**self.base.init(w), _OWN: w.clone(), _DONE: w.new_zeros(len(w))}

    def prepare(self, state: State, at: At) -> State:
        return {**state, **self.base.prepare(_of_base(state), at)}

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return self.base.schedule(given, round, stream)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return self.base.begin(received, _of_base(state), at)

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, new = self.base.step(w, _of_base(state), at)
        return w, {**state, **new}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, new = self.base.end(w, _of_base(state), at)
        return w, {**state, **new}

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        return self.base.report(_of_base(state), at)

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        return {**state, **self.base.receive(end, _of_base(state), download)}

    def finish(self) -> ClientRule:
        return _Epoch(self.objective, self)

    def personal(self, w: Tensor, state: State) -> Tensor:
        return torch.where(state[_DONE][:, None] > 0, state[_OWN], self.base.personal(w, _of_base(state)))


def _of_base(state: State) -> State:
    return {name: t for name, t in state.items() if name not in (_OWN, _DONE)}


@dataclass(frozen=True)
class _Epoch(SGD):
    """One epoch on the client's own model."""

    objective: Objective = Mean()
    of: ClientRule = SGD()

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return Schedule(epochs=1, batch=given.batch)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return self.of.personal(received, state), {}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, {**state, _OWN: w, _DONE: torch.ones_like(state[_DONE])}
