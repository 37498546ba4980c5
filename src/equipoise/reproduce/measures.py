"""What a table may ask of a finished run: any number of its summary, and some that take more than the run itself."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import files, metrics
from equipoise.conflicts import conflict_names
from equipoise.core import Stop
from equipoise.course import LATE
from equipoise.errors import nearest, require
from equipoise.experiment import Experiment
from equipoise.layout import Layout
from equipoise.modules import adapt, weights
from equipoise.results import Result, Table
from equipoise.standalone import Optima, local_optima, standalone

_LAYERS = 12  # conflicts_1 .. conflicts_12
_CLIENTS = 5  # loss_of_0 .. loss_of_4: for figures with a curve or a bar for each client


def optima_of(made: Experiment, stop: Stop, cache: Path | None) -> Optima:
    """What every client reaches by itself, on clean data, kept in `cache`; Stop() is what gaps are measured by."""
    return local_optima(replace(made.scenario, attack=None), made.run, stop, cache)


def standalone_of(made: Experiment, rounds: int, cache: Path | None) -> metrics.Floats:
    """[N]: the test accuracy of every client that trains alone for so many rounds, kept in `cache`."""
    spec = {k: v for k, v in tomllib.loads(made.config).items() if k not in ("method", "attack", "participation")}
    name = hashlib.sha256(files.encode_json([spec, rounds])).hexdigest()[:32]
    path = None if cache is None else cache / f"accuracies-{name}.json"
    if path is not None and path.is_file():
        return np.array([np.nan if v is None else v for v in files.read_json(path)], np.float64)
    found = standalone(replace(made.scenario, attack=None), made.run, rounds)
    if path is not None:
        files.make_folder(path.parent)
        files.write_json(path, found.tolist())
    return found


@dataclass(frozen=True)
class Finished:
    """A run with what it was made from; what is derived from it is worked out once, when it is asked for."""

    made: Experiment
    result: Result
    cache: Path | None = None
    """Where models that clients reach alone are kept."""
    model: str = "personal"
    """Which model is measured, where there are both: "personal" or "global"."""

    @cached_property
    def last(self) -> Table:
        return self.result.served(self.model)

    @cached_property
    def infos(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.result.rounds["info"]]

    @cached_property
    def collaborative(self) -> dict[str, float]:
        alone = standalone_of(self.made, len(self.infos), self.cache)
        got, bad = self.last["accuracy"], self.last["malicious"]
        full = np.concatenate([alone, np.full(len(got) - len(alone), np.nan)])
        best = {"standalone_max": float(np.nanmax(alone)), "standalone_mean": float(np.nanmean(alone))}
        return {**metrics.collaborative(full, got, bad), **best}

    @cached_property
    def optimum(self) -> metrics.Floats:
        """[N]: the test loss of the model that each client reaches alone; NaN for clients that an attack added."""
        optima, n = optima_of(self.made, Stop(), self.cache), len(self.last["loss"])
        return np.concatenate([optima.loss["test"], np.full(n - len(optima.models), np.nan)])

    @cached_property
    def gaps(self) -> dict[str, float]:
        low, high = float(np.nanmin(self.optimum)), float(np.nanmax(self.optimum))
        span = {"optimum_min": low, "optimum_max": high, "optimum_range": high - low}
        return {**metrics.gaps(self.last["loss"], self.optimum, self.last["malicious"]), **span}

    @cached_property
    def conflicts(self) -> dict[str, float]:
        """The mean number of online clients per round whose update opposes the step: "model", then layer by layer."""
        counts = [info["conflicts"] for info in self.infos if info["conflicts"]]
        layers = Layout.of(weights(adapt(self.made.scenario.model))).layers()
        order = conflict_names(layers)  # a file has them sorted by name
        return {name: float(np.mean([c[name] for c in counts])) for name in order} if counts else {}

    @cached_property
    def drawn(self) -> dict[str, float]:
        """The summary over clients that were drawn at least once: a personal model of anyone else is an initial one."""
        clients = self.result.clients
        keep = np.isin(clients["client"], sorted({k for info in self.infos for k in info["drawn"]}))
        return metrics.summarise({name: clients[name][keep] for name in clients}, "test", self.last["model"][0])

    @cached_property
    def removals(self) -> dict[str, float]:
        """From the ledger of reputations: who was removed, and by when the last attacker was (rounds from 1)."""
        ledger = metrics.ledger((i + 1, info) for i, info in enumerate(self.infos))
        bad = set(np.asarray(self.last["client"])[np.asarray(self.last["malicious"], bool)].tolist())
        gone = {
            int(k): int(r)
            for k, r, out in zip(ledger["client"], ledger["round"], ledger["removed"], strict=True)
            if out
        }
        caught = [r for k, r in gone.items() if k in bad]
        return {
            "attackers_removed": len(caught) / len(bad) if bad else float("nan"),
            "removal_round": float(max(caught)) if caught and len(caught) == len(bad) else float("nan"),
            "honest_removed": float(len(gone.keys() - bad)),
        }

    @property
    def target_accuracy(self) -> float:
        """Of the most accurate benign client, on the test samples whose classes a label-flip attack renames."""
        pairs = getattr(self.made.scenario.attack, "pairs", ())
        classes = sorted({a for a, b in pairs if a != b}) if not isinstance(pairs, str) else []
        if not classes:
            return float("nan")
        good = np.where(self.last["malicious"], -1.0, np.nan_to_num(np.asarray(self.last["accuracy"])))
        best = int(good.argmax())
        right, held = (np.asarray(self.last[name][best])[classes].sum() for name in ("class_correct", "class_n"))
        return float(right / held) if held else float("nan")

    @property
    def balanced(self) -> float:
        good = ~np.asarray(self.last["malicious"], bool)
        return float(np.nanmean(np.asarray(self.last["balanced_accuracy"])[good]))


def _conflict(layer: int) -> Callable[[Finished], float]:
    return lambda run: list(run.conflicts.values())[layer] if len(run.conflicts) > layer else float("nan")


def _loss(client: int, less: bool) -> Callable[[Finished], float]:
    """An honest client's test loss, or what is left of it `less` the one that it reaches alone."""

    def one(run: Finished) -> float:
        losses = run.last["loss"] - run.optimum if less else run.last["loss"]
        return float(losses[client]) if len(losses) > client and not run.last["malicious"][client] else float("nan")

    return one


def _out_of(group: str, name: str) -> Callable[[Finished], float]:
    return lambda run: float(getattr(run, group)[name])


_GROUPS = {
    "collaborative": ("pearson", "spearman", "standalone_max", "standalone_mean"),
    "gaps": ("gap_max", "gap_min", "gap_variance", "gap_mean", "optimum_min", "optimum_max", "optimum_range"),
    "removals": ("attackers_removed", "removal_round", "honest_removed"),
}
_DRAWN = ("accuracy_mean", "accuracy_std", "class_std_mean", "class_std_std")
MEASURES: dict[str, Callable[[Finished], float]] = {
    "balanced_accuracy": lambda run: run.balanced,
    "target_accuracy": lambda run: run.target_accuracy,
    **{name: _out_of(group, name) for group, names in _GROUPS.items() for name in names},
    **{f"drawn_{name}": _out_of("drawn", name) for name in _DRAWN},
    **{f"loss_of_{client}": _loss(client, False) for client in range(_CLIENTS)},
    **{f"gap_of_{client}": _loss(client, True) for client in range(_CLIENTS)},
    "conflicts": _conflict(0),
    **{f"conflicts_{layer}": _conflict(layer) for layer in range(1, _LAYERS + 1)},
}


SUMMARY = tuple(metrics.summary([], []))
NAMES = frozenset(
    {*MEASURES, *SUMMARY, *(f"{name}_last_tenth" for name in LATE), "attack_success", "round", "rounds"}
    | {"_".join(parts) for parts in product(("validation", "test"), ("global", "personal"), SUMMARY)}
)
"""All that a table may ask for: `MEASURES`, and the numbers that a run's summary may have."""


def needs_optima(names: Sequence[str]) -> bool:
    """Whether any of these measures compares with what clients reach alone."""
    return any(name in _GROUPS["gaps"] or name.startswith("gap_of_") for name in names)


def needs_standalone(names: Sequence[str]) -> bool:
    """Whether any of these measures compares with clients that train alone for as many rounds."""
    return any(name in _GROUPS["collaborative"] for name in names)


def measure(run: Finished, names: Sequence[str]) -> dict[str, float | None]:
    """The numbers asked for; None where one is not defined."""
    summary = run.result.summary()
    if run.model == "global":
        summary |= {name.removeprefix("test_global_"): value for name, value in summary.items()}
    out: dict[str, float | None] = {}
    for name in names:
        require(name in NAMES, "a measure", name, nearest(name, NAMES))
        value = MEASURES[name](run) if name in MEASURES else summary.get(name)
        out[name] = None if value is None or value != value else float(value)
    return out


def validated(result: Result, name: str, model: str = "personal") -> float | None:
    """A number of the summary on validation data; of the global model where there is no other."""
    summary = result.summary()
    found = summary.get(f"validation_{model}_{name}", summary.get(f"validation_global_{name}"))
    return None if found is None or found != found else float(found)
