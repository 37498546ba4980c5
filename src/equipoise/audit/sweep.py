"""Chooses hyper-parameters on validation data: a list in a run's config is a grid, and every combination is a run.

    [method]
    name = "ditto"
    lam = [0.1, 1.0, 2.0]
    [train]
    lr = [0.01, 0.05]
    [sweep]
    criterion = "mean-minus-deviation"      # or "worst-10", "gap-variance", { accuracy_mean = 1.0, worst_10 = 0.5 }
    seeds = [0, 1]

The runs of the grid never look at the test split. The best combination, by the mean of the criterion over the seeds, is
then run once more with all splits: those are the only test results there are, and the record says so.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import config as configs
from equipoise import files, metrics, registry
from equipoise.audit.engines import Engine, Job, Local
from equipoise.audit.plan import seeds_of
from equipoise.audit.runner import Step, alone, execute_all, require_same_data, run_cell
from equipoise.config.parts import Table as Params
from equipoise.config.parts import section, shown, write
from equipoise.core import Stop
from equipoise.errors import EquipoiseError, nearest
from equipoise.experiment import provide_data
from equipoise.provenance import same_files
from equipoise.results import Result, load_result

_STRICT = {"extra": "forbid", "strict": True}
CRITERIA = ("mean-minus-deviation", "worst-10", "gap-variance")
_MAY_VARY = ("method", "train", "participation", "attack")


@dataclass(frozen=True)
class Sweep:
    """What decides: the [sweep] section."""

    criterion: str | dict[str, float] = "mean-minus-deviation"
    """What is to be high on validation data: that, "worst-10", "gap-variance" (which is to be low), or a sum of
    measures, each with its weight."""
    seeds: list[int] | None = None
    """Every combination is run with each, and judged by the mean. Left out: the run's seed."""
    alone_epochs: int = 500
    """For "gap-variance": at most so many epochs for the model that each client trains alone."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        if isinstance(self.criterion, str) and self.criterion not in CRITERIA:
            raise EquipoiseError(f"sweep.criterion is {self.criterion!r}", nearest(self.criterion, CRITERIA))


@dataclass(frozen=True)
class Chosen:
    """What a sweep found."""

    settings: Mapping[str, Any]
    """The values of the best combination, by full key."""
    criterion: str
    scores: tuple[tuple[Mapping[str, Any], float], ...]
    """Every combination and its score on validation data, best first."""
    result: Result
    """The best combination's run, the only one that saw the test split."""


@dataclass(frozen=True)
class Grid:
    """The combinations of a config's lists."""

    axes: Mapping[str, list[Any]]
    base: Params
    sweep: Sweep

    def combinations(self) -> list[dict[str, Any]]:
        return [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())]

    def config(self, chosen: Mapping[str, Any], seed: int, splits: str) -> configs.Config:
        raw = {name: dict(table) if isinstance(table, dict) else table for name, table in self.base.items()}
        for key, value in chosen.items():
            home, _, name = key.partition(".")
            raw[home][name] = value
        raw["run"] = {**raw.get("run", {}), "seed": seed, "splits": splits}
        return configs.resolve(raw)


def load(source: Path | str, overrides: Sequence[str] = ()) -> Grid:
    """Read a config whose lists are a grid; every combination is checked here."""
    where = str(source) if isinstance(source, Path) else "sweep"
    try:
        raw = configs.parse(configs.read_text(source))
        for change in overrides:
            configs.override(raw, change)
        sweep: Sweep = section(Sweep, raw.pop("sweep", {}), "sweep")
        tables = {s: raw[s] for s in _MAY_VARY if isinstance(raw.get(s), dict)}  # method = "fedavg" has no parameters
        axes = {f"{s}.{k}": v for s, table in tables.items() for k, v in table.items() if _is_axis(raw, s, k, v)}
        if not axes:
            raise EquipoiseError("nothing to choose from: no parameter has a list", "such as lr = [0.01, 0.1]")
        grid = Grid(axes, raw, sweep)
        seeds_of(sweep.seeds, raw, "sweep")
        for chosen in grid.combinations():
            validation = grid.config(chosen, 0, "validation").data.validation
        if validation <= 0:
            raise EquipoiseError(f"data.validation is {validation}", "hyper-parameters are chosen on it: give a share")
        return grid
    except EquipoiseError as error:
        raise EquipoiseError(f"{where}: {error.message}", error.hint) from error


def _is_axis(raw: Params, home: str, key: str, value: Any) -> bool:
    """Whether a list is a grid, and not the value of a parameter that takes lists."""
    if not isinstance(value, list) or key == "filters":
        return False
    if not value:
        raise EquipoiseError(f"{home}.{key} is []", "a grid needs at least one value")
    if home not in ("method", "attack"):
        return True
    kind: registry.Kind = "methods" if home == "method" else "attacks"
    known = {p.name: p.type for p in registry.get(kind, str(raw[home].get("name"))).parameters}
    takes_list = any(typing.get_origin(t) in (list, tuple) for t in (known.get(key), *typing.get_args(known.get(key))))
    return not takes_list or isinstance(value[0], list)


def run(
    grid: Grid,
    out: Path,
    *,
    workers: int = 1,
    engine: Engine | None = None,
    report: Callable[[Step], None] = lambda step: None,
) -> Chosen:
    """Run the grid on validation data, choose, and run the best with all splits; `engine` as for audits."""
    engine = engine or Local(workers)
    if isinstance(engine, Local):  # elsewhere the data may be where the runs are, and not here
        provide_data(grid.config(grid.combinations()[0], 0, "validation").data)
    files.make_folder(out)
    with files.Lock(out):
        return _choose(grid, out, engine, report)


def _choose(grid: Grid, out: Path, engine: Engine, report: Callable[[Step], None]) -> Chosen:
    seeds, combinations = seeds_of(grid.sweep.seeds, grid.base, "sweep"), grid.combinations()
    paths = {(i, s): out / "grid" / f"{i:03d}--s{s}" for i in range(len(combinations)) for s in seeds}
    tried = {(i, s): grid.config(combinations[i], s, "validation") for i, s in paths}
    for k, path in paths.items():
        same_files(tried[k], path)
    for seed in seeds:
        require_same_data(tried[0, seed], [path for (_, s), path in paths.items() if s == seed])
    texts = {k: configs.dump(config) for k, config in tried.items()}
    jobs: dict[str, Job] = {paths[k].name: partial(run_cell, texts[k], paths[k], out) for k in paths}
    errors = execute_all(jobs, engine, report, out)
    scores = []
    for i, chosen in enumerate(combinations):
        values = [np.nan if paths[i, s].name in errors else _score(grid, texts[i, s], paths[i, s], out) for s in seeds]
        scores.append((chosen, float(np.mean(values))))
    scores.sort(key=lambda pair: -np.inf if np.isnan(pair[1]) else pair[1], reverse=True)
    if np.isnan(scores[0][1]):
        told = next(iter(errors.values()), "the validation split gave no number")
        raise EquipoiseError(f"no combination could be judged: {told}", "see the runs below " + str(out / "grid"))
    best = scores[0][0]
    final = [out / "best" / f"s{s}" for s in seeds]
    last = {
        p.name: partial(run_cell, configs.dump(grid.config(best, s, "all")), p, out)
        for s, p in zip(seeds, final, strict=True)
    }
    failed = execute_all(last, engine, report, out)
    if failed:
        raise EquipoiseError(f"the best combination failed with all splits: {next(iter(failed.values()))}")
    _record(grid, scores, out)
    return Chosen(best, _words(grid.sweep.criterion), tuple(scores), load_result(final[0]))


def _score(grid: Grid, text: str, path: Path, out: Path) -> float:
    """How good a run is, by the criterion, on the validation split of its honest clients; higher is better."""
    rows = load_result(path).clients.filter(split="validation")
    rows = rows.filter(round=int(rows["round"].max()))
    kind = "personal" if "personal" in set(rows["model"]) else "global"
    numbers = metrics.summarise({name: rows[name] for name in rows}, "validation", kind)
    criterion = grid.sweep.criterion
    if isinstance(criterion, dict):
        unknown = [name for name in criterion if name not in numbers]
        if unknown:
            raise EquipoiseError(f"sweep.criterion: no measure {unknown[0]!r}", nearest(unknown[0], numbers))
        return sum(weight * numbers[name] for name, weight in criterion.items())
    if criterion == "worst-10":
        return numbers["worst_10"]
    if criterion == "gap-variance":
        stop = Stop(window=min(50, grid.sweep.alone_epochs), cap=grid.sweep.alone_epochs)
        served, best = rows.filter(model=kind), alone(text, stop, out).loss["validation"]
        honest = served["loss"][: len(best)]
        return -float(metrics.gaps(honest, best, served["malicious"][: len(best)])["gap_variance"])
    return numbers["accuracy_mean"] - numbers["accuracy_std"]


def _words(criterion: str | dict[str, float]) -> str:
    return criterion if isinstance(criterion, str) else " + ".join(f"{w:g} x {n}" for n, w in criterion.items())


def _record(grid: Grid, scores: list[tuple[dict[str, Any], float]], out: Path) -> None:
    files.write_json(
        out / "sweep.json",
        {
            "criterion": _words(grid.sweep.criterion),
            "chosen": scores[0][0],
            "chosen_on": "the validation split; no run of the grid evaluated the test split",
            "scores": [{"settings": {k: shown(v) for k, v in c.items()}, "score": s} for c, s in scores],
            "grid": {k: write(v) for k, v in grid.axes.items()},
        },
    )
