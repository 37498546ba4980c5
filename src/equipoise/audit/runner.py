"""Carries an audit out: its cells side by side, on this machine or on many, each in a run folder of its own.

A cell that fails does not touch the others, and a cell that is finished is not run again, so an audit that was stopped
in any way goes on when it is started once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from torch import Tensor

from equipoise import config as configs
from equipoise import experiment, files
from equipoise.audit import going
from equipoise.audit.engines import Engine, Job, Local
from equipoise.audit.plan import Cell, Plan
from equipoise.core import Stop
from equipoise.data.federation import Federation
from equipoise.errors import EquipoiseError, first_line
from equipoise.provenance import is_own, same_data, same_files
from equipoise.standalone import Optima, local_optima


@dataclass(frozen=True)
class Step:
    """Where an audit is: `done` of `total` jobs, and what was just finished."""

    done: int
    total: int
    what: str
    error: str = ""


def run(
    plan: Plan,
    out: Path,
    *,
    workers: int = 1,
    engine: Engine | None = None,
    report: Callable[[Step], None] | None = None,
) -> dict[str, str]:
    """Run what is not finished yet; what went wrong, by the name of the cell.

    `workers` processes on this machine do it, or the `engine`, if one is given.
    """
    experiment.provide_data(plan.cells[0].config.data)
    files.make_folder(out)
    with files.Lock(out):
        _claim(plan, out)
        jobs: dict[str, Job] = {}
        for seed in plan.seeds:
            first = next(c for c in plan.cells if c.seed == seed)
            jobs[f"each client alone, seed {seed}"] = partial(_alone, configs.dump(first.config), plan.audit.stop, out)
        for cell in plan.cells:
            jobs[cell.name] = partial(run_cell, configs.dump(cell.config), folder(out, cell), out)
        return execute_all(jobs, engine or Local(workers), report or (lambda step: None), out)


def folder(out: Path, cell: Cell) -> Path:
    return out / "cells" / cell.name


def optima(plan: Plan, seed: int, out: Path) -> Optima:
    """What every client reaches alone: read from the audit's folder, or computed."""
    first = next(c for c in plan.cells if c.seed == seed)
    return alone(configs.dump(first.config), plan.audit.stop, out)


def federation(plan: Plan, seed: int) -> Federation:
    """The data of a seed's cells."""
    return built(configs.dump(next(c for c in plan.cells if c.seed == seed).config)).scenario.federation


def _claim(plan: Plan, out: Path) -> None:
    path = out / "audit.toml"
    if path.is_file() and path.read_text(encoding="utf-8") != plan.text:
        raise EquipoiseError(f"{out} holds another audit", "give another --out, or the file that it was made with")
    require_same_files(plan, out)
    files.write_atomic(path, plan.text.encode())


def require_same_files(plan: Plan, out: Path) -> None:
    """An error if a cell was run with other files or data of the user's own than these: it would pass for theirs."""
    for cell in plan.cells:
        same_files(cell.config, folder(out, cell))
    for seed in plan.seeds:
        cells = [cell for cell in plan.cells if cell.seed == seed]
        require_same_data(cells[0].config, [folder(out, cell) for cell in cells])


def require_same_data(config: configs.Config, paths: Iterable[Path]) -> None:
    """An error if a run in one of `paths`, all of this config's data, was made with others of the user's own."""
    if is_own(config.data.dataset):
        _shared.clear()  # an earlier audit of this process may have left what was there then
    same_data(config.data.dataset, partial(_data, config), paths)


# ------------------------------------------------------------------------------------------------ in the processes


_shared: dict[str, Federation] = {}


def built(text: str) -> experiment.Experiment:
    """As experiment.build, but jobs that follow each other with the same data share it."""
    config = configs.load(text)
    return experiment.build(config, _data(config))


def _data(config: configs.Config) -> Federation:
    key = repr(config.data)
    if key not in _shared:
        _shared.clear()
        _shared[key] = experiment.make_federation(config.data, config.run.seed)
    return _shared[key]


def run_cell(text: str, path: Path, out: Path) -> None:
    """One run, from its config. What clients reach alone on their own samples is kept below `out`.

    The first cell that asks for it computes all of it, so that no result depends on which cell that was.
    """
    made = built(text)

    @cache
    def reached(stop: Stop) -> Tensor:
        return _optima(made, stop, out).models

    experiment.execute(made, path, going.progress, reached=reached)


def _alone(text: str, stop: Stop, out: Path) -> None:
    alone(text, stop, out)


def alone(text: str, stop: Stop, out: Path) -> Optima:
    """What every client of a config reaches alone, kept below `out`."""
    return _optima(built(text), stop, out)


def _optima(made: experiment.Experiment, stop: Stop, out: Path) -> Optima:
    return local_optima(replace(made.scenario, attack=None), made.run, stop, out / "alone")


# -------------------------------------------------------------------------------------------------- in this process


def execute_all(jobs: Mapping[str, Job], engine: Engine, report: Callable[[Step], None], out: Path) -> dict[str, str]:
    """Have all jobs done by the engine; what went wrong, by name, in full. A report has the first line of it.

    How far they are that are not done yet can be read below `out` (`audit/going.py`).
    """
    errors: dict[str, str] = {}
    with (
        going.lines(out) as folder,
        closing(engine.ended({name: partial(going.during, folder, name, job) for name, job in jobs.items()})) as ended,
    ):
        for done, (name, result) in enumerate(ended, 1):
            try:
                result()
            except (experiment.Interrupted, KeyboardInterrupt):
                raise
            except Exception as error:
                errors[name] = str(error) if isinstance(error, EquipoiseError) else f"{type(error).__name__}: {error}"
            report(Step(done, len(jobs), name, first_line(errors.get(name, ""))))
    return errors
