"""What a table may ask of a finished run: any number of its summary, and some that take more than the run itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import metrics
from equipoise.core import Stop
from equipoise.errors import EquipoiseError, nearest
from equipoise.experiment import Experiment
from equipoise.results import Result
from equipoise.standalone import local_optima, standalone

_LAYERS = 12  # conflicts_1 .. conflicts_12


@dataclass(frozen=True)
class Finished:
    """A run with what it was made from; what is derived from it is worked out once, when it is asked for."""

    made: Experiment
    result: Result
    cache: Path | None = None
    """Where models that clients reach alone are kept."""

    @cached_property
    def last(self) -> dict[str, Any]:
        """The final test rows of the models that clients use."""
        test = self.result.clients.filter(split="test")
        rows = test.filter(round=int(test["round"].max()))
        rows = rows.filter(model="personal" if "personal" in set(rows["model"]) else "global")
        return {name: rows[name] for name in ("client", "accuracy", "balanced_accuracy", "loss", "malicious")}

    @cached_property
    def infos(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.result.rounds["info"]]

    @cached_property
    def collaborative(self) -> dict[str, float]:
        alone = standalone(self._clean, self.made.run, len(self.infos))
        got, bad = self.last["accuracy"], self.last["malicious"]
        full = np.concatenate([alone, np.full(len(got) - len(alone), np.nan)])
        best = {"standalone_max": float(np.nanmax(alone)), "standalone_mean": float(np.nanmean(alone))}
        return {**metrics.collaborative(full, got, bad), **best}

    @cached_property
    def gaps(self) -> dict[str, float]:
        optima = local_optima(self._clean, self.made.run, Stop(), self.cache)
        loss = self.last["loss"]
        alone = np.concatenate([optima.loss["test"], np.full(len(loss) - len(optima.models), np.nan)])
        return metrics.gaps(loss, alone, self.last["malicious"])

    @cached_property
    def conflicts(self) -> dict[str, float]:
        """The mean number of online clients per round whose update opposes the step: "model", then layer by layer."""
        counts = [info["conflicts"] for info in self.infos if info["conflicts"]]
        return {name: float(np.mean([c[name] for c in counts])) for name in counts[0]} if counts else {}

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
    def _clean(self) -> Any:
        return replace(self.made.scenario, attack=None)

    @property
    def balanced(self) -> float:
        good = ~np.asarray(self.last["malicious"], bool)
        return float(np.nanmean(np.asarray(self.last["balanced_accuracy"])[good]))


def _conflict(layer: int) -> Callable[[Finished], float]:
    return lambda run: list(run.conflicts.values())[layer] if len(run.conflicts) > layer else float("nan")


def _out_of(group: str, name: str) -> Callable[[Finished], float]:
    return lambda run: float(getattr(run, group)[name])


_GROUPS = {
    "collaborative": ("pearson", "spearman", "standalone_max", "standalone_mean"),
    "gaps": ("gap_max", "gap_min", "gap_variance", "gap_mean"),
    "removals": ("attackers_removed", "removal_round", "honest_removed"),
}
MEASURES: dict[str, Callable[[Finished], float]] = {
    "balanced_accuracy": lambda run: run.balanced,
    **{name: _out_of(group, name) for group, names in _GROUPS.items() for name in names},
    "conflicts": _conflict(0),
    **{f"conflicts_{layer}": _conflict(layer) for layer in range(1, _LAYERS + 1)},
}


def measure(run: Finished, names: Sequence[str]) -> dict[str, float | None]:
    """The numbers asked for; None where one is not defined."""
    summary = run.result.summary()
    out: dict[str, float | None] = {}
    for name in names:
        if name not in MEASURES and name not in summary:
            raise EquipoiseError(f"a run has no measure {name!r}", nearest(name, {*MEASURES, *summary}))
        value = MEASURES[name](run) if name in MEASURES else summary[name]
        out[name] = None if value is None or value != value else float(value)
    return out


def validated(result: Result, name: str) -> float | None:
    """A number of the summary on validation data, of the models that clients use."""
    summary = result.summary()
    found = summary.get(f"validation_personal_{name}", summary.get(f"validation_global_{name}"))
    return None if found is None or found != found else float(found)
