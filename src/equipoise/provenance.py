"""What a run's folder says about where its numbers come from: the config, or what stands for one, and the machine."""

from __future__ import annotations

import hashlib
import platform
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise import __version__, files, registry
from equipoise import config as configs
from equipoise.data.federation import SPLITS, Federation
from equipoise.engine.run import Simulation
from equipoise.errors import EquipoiseError
from equipoise.results import IN_PYTHON, RunFolder

if TYPE_CHECKING:
    from equipoise.experiment import Experiment

_CHUNK = 1 << 24  # bytes of data that are brought to host memory at a time


def params(experiment: Experiment) -> dict[str, Any]:
    """What a tracker is told of a run: its config or, without one, its labels and settings."""
    if experiment.config:
        return tomllib.loads(experiment.config)
    s = experiment.scenario
    settings: tuple[Any, ...] = (s.train, s.participation, s.admission, experiment.run)
    return {**(experiment.labels or {}), **{type(part).__name__.lower(): asdict(part) for part in settings}}


def recorded(experiment: Experiment, out: Path | None = None) -> bytes:
    """What tells this run from others.

    The config that is in the folder stands if it says the same: it may be older than a setting, whose default it means,
    or have another of those on which no result depends.
    """
    if not experiment.config:
        return _described(experiment).encode()
    with suppress(EquipoiseError):  # no run there, or not one that can be read: whoever opens the folder says so
        held = RunFolder.open(out).config if out else b""
        if _essence(held.decode(errors="replace")) == _essence(experiment.config):
            return held
    return experiment.config.encode()


def essence(experiment: Experiment) -> str:
    """A checksum of all that a run's results depend on."""
    text = _essence(experiment.config) if experiment.config else _described(experiment)
    return hashlib.sha256(text.encode()).hexdigest()


def _essence(config: str) -> str:
    """A config without what changes no result."""
    return configs.dump(configs.load(config, ['run.personal="auto"', "run.workers=1"]))


def _described(experiment: Experiment) -> str:
    """A record of a run that was put together in Python: enough to tell it from another, not to rebuild it."""
    s = experiment.scenario
    weights = b"".join(p.detach().cpu().contiguous().numpy().tobytes() for p in s.model.parameters())
    parts = {
        "method": experiment.method,
        "model": f"{type(s.model).__name__}, initial weights {hashlib.sha256(weights).hexdigest()[:16]}",
        "federation": f"{s.federation.data.name}, {s.federation.n_clients} clients, {s.federation.partition}",
        "train": s.train,
        "participation": s.participation,
        "admission": s.admission,
        "attack": s.attack,
        "run": replace(experiment.run, workers=1),
    }
    return IN_PYTHON + "\n" + "".join(f"# {name}: {value}\n" for name, value in parts.items())


def own_files(config: configs.Config) -> dict[str, str]:
    """The user's own parts that a config names, and when clients are there, each with the sha256 of its file."""
    attack, trace = config.attack and config.attack.table(), config.participation.trace
    found = registry.own_files({"method": config.method.table(), "attack": attack, "model": config.model.name})
    with suppress(EquipoiseError):  # whoever reads it says what is wrong with it
        found |= {"participation.trace": files.sha256(Path(trace))} if trace else {}
    return found


def same_files(config: configs.Config, path: Path) -> None:
    """An error if `path` holds a run of this config that was made with other files of the user's own."""
    if (path / "config.toml").is_file():
        RunFolder.open(path).same_files(own_files(config))


def own_data(experiment: Experiment) -> str:
    """The fingerprint of the user's own data; "" for what Equipoise finds or draws, which the config names in full."""
    own = not experiment.config or is_own(tomllib.loads(experiment.config)["data"]["dataset"])
    return fingerprint(experiment.scenario.federation) if own else ""


def is_own(dataset: str) -> bool:
    """Whether what a config calls its dataset may hold something else tomorrow."""
    return dataset.startswith("folder:")


def same_data(dataset: str, federation: Callable[[], Federation], paths: Iterable[Path]) -> None:
    """An error if one of `paths` holds a run that was made with other data than this federation has.

    It is made only where that has to be known: for data of the user's own, and runs that noted theirs.
    """
    runs = [RunFolder.open(path) for path in paths if (path / "config.toml").is_file()] if is_own(dataset) else []
    if noted := [run for run in runs if run.data]:
        now = fingerprint(federation())
        for run in noted:
            run.same_data(now)


def fingerprint(federation: Federation) -> str:
    """A sha256 of all samples and of who holds which, wherever they lie."""
    data, splits = federation.data, [federation.splits[name] for name in SPLITS]
    found = hashlib.sha256(f"{data.classes} classes, scale {data.scale!r}".encode())
    root = [] if federation.root is None else [federation.root]
    for t in (data.x, data.y, *(t for s in splits for t in (s.index, s.start, s.size)), *root):
        found.update(f"{t.dtype}{list(t.shape)}".encode())
        for rows in torch.split(t.detach(), _rows_at_once(t)):
            found.update(rows.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _rows_at_once(t: Tensor) -> int:
    return max(1, _CHUNK * len(t) // max(1, t.numel() * t.element_size()))


def environment(simulation: Simulation, own: Mapping[str, str] | None = None, data: str = "") -> dict[str, Any]:
    """What the numbers may depend on besides the config; `data` is the fingerprint of the user's own."""
    packages = ("torch", "numpy", "pyarrow", "safetensors")
    device = simulation.server.w.device
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {"equipoise": __version__, **{name: version(name) for name in packages}},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "executor": "vmap" if simulation.vectorised else "loop",
        "executor_reason": simulation.executor_reason,
        "precision": simulation.settings.precision,
        "threads": torch.get_num_threads(),
        **({"own": dict(own)} if own else {}),
        **({"data": data} if data else {}),
    }
