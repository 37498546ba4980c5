"""From a config, or from objects, to a finished run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from equipoise import config as configs
from equipoise import models, registry, tracking
from equipoise.config.parts import arguments, section
from equipoise.core import Method, Stop
from equipoise.course import Course
from equipoise.course import Interrupted as Interrupted
from equipoise.course import Kept as Kept
from equipoise.course import Progress as Progress
from equipoise.data import load, partition
from equipoise.data.datasets import provide
from equipoise.data.federation import Federation
from equipoise.data.own import from_folder
from equipoise.data.synthetic import SYNTHETIC
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.errors import EquipoiseError, nearest, require
from equipoise.provenance import environment, own_data, own_files, params, recorded
from equipoise.results import MemoryRun, Result, RunFolder, load_result
from equipoise.streams import Stream
from equipoise.threat import Attack


@dataclass(frozen=True)
class Experiment:
    """One run, with nothing left to decide."""

    scenario: Scenario
    method: Method
    run: Run
    config: str = ""
    """The resolved config it was made from, if it was."""
    labels: Mapping[str, Any] | None = None
    """What to call it in tables: method, attack, dataset, seed."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Parts whose files are the user's own, with the sha256 of each file."""


# ------------------------------------------------------------------------------------------ putting together


def build(config: configs.Config, federation: Federation | None = None) -> Experiment:
    """Load the data (unless it is given), split it, make the model: what can fail before the first round fails here."""
    federation = federation or make_federation(config.data, config.run.seed)
    module = _model(config.model.name, config.model.params, federation, config.run.seed)
    method, attack = config.make_method(), config.make_attack()
    scenario = Scenario(federation, module, config.train, config.participation, config.admission, attack)
    labels = {
        "method": config.method.name,
        "attack": config.attack.name if config.attack else "none",
        "dataset": config.data.dataset,
        "seed": config.run.seed,
    }
    return Experiment(scenario, method, config.run, configs.dump(config), labels, own_files(config))


def _model(kind: str, params: Mapping[str, Any], federation: Federation, seed: int) -> nn.Module:
    """One of Equipoise's models, or one whose file was loaded before."""
    shape, classes = tuple(federation.data.x.shape[1:]), federation.data.classes
    stream = Stream(seed).child("init")
    own = {} if kind in models.MODELS else registry.entries("models")
    if kind not in own:
        return models.build(kind, shape, classes, stream, **params)
    _, given = arguments(own[kind].parameters, params, "model")
    with registry.blaming(f"model {kind}"):
        made = models.drawn(own[kind].make, shape, classes, stream, given)
    if not isinstance(made, nn.Module):
        raise EquipoiseError(f"model {kind} is a {type(made).__name__}", "its function must return an nn.Module")
    return made


def make_federation(data: configs.Data, seed: int) -> Federation:
    """The federation that a [data] section describes."""
    chosen = seed if data.seed is None else data.seed
    if data.dataset.startswith("folder:"):
        path = Path(data.dataset.removeprefix("folder:"))
        return from_folder(path, test=data.test, validation=data.validation, seed=chosen)
    if data.dataset in SYNTHETIC:
        return SYNTHETIC[data.dataset](seed=chosen, **data.options)
    kind = dict(data.partition)
    dataset = load(data.dataset, download=data.download, **data.options)
    return partition(
        dataset,
        kind.pop("kind"),
        clients=data.clients,
        test=data.test,
        validation=data.validation,
        test_set=data.test_set,
        root=data.root,
        seed=chosen,
        **kind,
    )


def provide_data(data: configs.Data) -> None:
    """An error if the files of a [data] section are not on this machine, before many runs come to the same end."""
    if not data.dataset.startswith("folder:") and data.dataset not in SYNTHETIC:
        provide(data.dataset, download=data.download, **data.options)


def run(
    federation: Federation,
    method: Method | None = None,
    *,
    model: str | Mapping[str, Any] | nn.Module = "mlp",
    attack: Attack | None = None,
    admission: Admission | None = None,
    out: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    track: tracking.Tracker | None = None,
    **settings: Any,
) -> Result:
    """Run a method on a federation. `settings` are those of [train], [participation] and [run], by name.

        result = run(federation, fedprox(mu=0.1), model="mlp", rounds=20, lr=0.1, per_round=5, seed=1)

    `model` is a kind ("mlp"), a kind with parameters ({"kind": "mlp", "hidden": [64]}) or any nn.Module, whose weights
    are then the initial model.
    """
    made = {kind: _take(kind, settings) for kind in (Train, Participation, Run)}
    if settings:
        name = next(iter(settings))
        known = [f for kind in made for f in kind.__dataclass_fields__]
        raise EquipoiseError(f"run: there is no setting {name!r}", nearest(name, known))
    method, chosen, own = method or Method(), made[Run], registry.own_files({"model": model})
    if not isinstance(model, nn.Module):
        model = _model(*_in_words(model), federation, chosen.seed)
    scenario = Scenario(federation, model, made[Train], made[Participation], admission or Admission(), attack)
    labels = {
        "method": method.name,
        "attack": "none" if attack is None else registry.name_of("attacks", attack) or type(attack).__name__,
        "dataset": federation.data.name,
        "seed": chosen.seed,
    }
    experiment = Experiment(scenario, method, chosen, labels=labels, own=own)
    return execute(experiment, Path(out) if out else None, progress, track=track)


def _in_words(model: Any) -> tuple[str, dict[str, Any]]:
    """The kind of a model that is no module, and its parameters."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        hint = f"give an nn.Module, not a class: {model.__name__}(...)"
        raise EquipoiseError(f"run: model is the class {model.__name__}", hint)
    spec = {"kind": model} if isinstance(model, str) else dict(model) if isinstance(model, Mapping) else {}
    kind = spec.pop("kind", None)
    if not isinstance(kind, str):
        found = repr(model) if isinstance(model, Mapping) else f"a {type(model).__name__}"
        hint = 'give a kind ("mlp"), one with parameters ({"kind": "mlp", "hidden": [64]}), or an nn.Module'
        raise EquipoiseError(f"run: model is {found}", hint)
    return kind, spec


def _take(kind: type[Any], settings: dict[str, Any]) -> Any:
    names = [n for n in settings if n in kind.__dataclass_fields__]
    return section(kind, {n: settings.pop(n) for n in names}, kind.__name__.lower())


# ------------------------------------------------------------------------------------------ running


def execute(
    experiment: Experiment,
    out: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    *,
    reached: Callable[[Stop], Tensor] | None = None,
    track: tracking.Tracker | None = None,
    models: bool = True,
    on_the_way: Mapping[int, Callable[[Result], None]] | None = None,
    kept: Kept | None = None,
) -> Result:
    """Run it to the end, from the last checkpoint in `out` if there is one; a finished run is only read.

    `reached` gives the models that clients reach alone, where somebody keeps them; else they are trained if need be.
    Without `models`, a run without a folder gives back only its tables: hundreds of personal models may fill a memory.
    `on_the_way` is told, after so many rounds, what a run without a folder would come to if it ended there; its clients
    must have nothing left to do after the last round. A run without a folder goes on from what is `kept` of it, unless
    that comes after a round of which somebody is told; whoever has kept it says when it is `done`.
    """
    require(kept is None or out is None, "kept", kept, "for runs in memory; one with a folder is kept there")
    early = out is not None or experiment.method.client.finish() is not None
    require(not (on_the_way and early), "on_the_way", sorted(on_the_way or ()), "for runs in memory, without a finish")
    simulation = Simulation(experiment.scenario, experiment.method, experiment.run)
    simulation.simulator.reached = reached
    record = recorded(experiment, out)
    if out:
        around = environment(simulation, experiment.own, own_data(experiment))
        folder: RunFolder | MemoryRun = RunFolder.create(out, record, around)
    else:
        folder = MemoryRun(record, models)
    try:
        if isinstance(folder, RunFolder) and folder.finished:
            return load_result(folder.path)
        with tracking.Tracked(track, "", params(experiment)) as tracked:
            result = Course(experiment, simulation, folder, progress, tracked, on_the_way, kept).finish()
            tracked.done(result.summary())
            return result
    finally:
        folder.close()


def resume(
    out: Path, progress: Callable[[Progress], None] | None = None, track: tracking.Tracker | None = None
) -> Result:
    """Go on with the run in a folder."""
    held = RunFolder.open(out)
    if held.in_python:
        raise EquipoiseError(f"{out} was made from Python, so its parts are not in a config", held.goes_on)
    return execute(build(configs.load(held.config.decode())), out, progress, track=track)
