"""Carries the cells of tables out, side by side, the grids first; a cell that was measured is not run again.

Every run leaves its entry in a file of its own, which the record takes in: a kill at any point loses only the runs that
were going on.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise import config as configs
from equipoise import experiment, files
from equipoise.audit import going
from equipoise.audit.engines import Engine, Job, Local
from equipoise.audit.runner import Step, built, execute_all
from equipoise.config.parts import Table as Params
from equipoise.config.parts import section
from equipoise.core import Stop
from equipoise.engine.run import pick_device
from equipoise.engine.settings import Run
from equipoise.errors import EquipoiseError, require
from equipoise.provenance import own_data
from equipoise.reproduce.measures import (
    Finished,
    measure,
    needs_optima,
    needs_standalone,
    optima_of,
    standalone_of,
    validated,
)
from equipoise.reproduce.record import Entry, Record, digest, final, leave, trial, unfinished
from equipoise.reproduce.shared import Shared
from equipoise.reproduce.tables import Cell, Table, with_rounds
from equipoise.reproduce.together import Head, longest, together
from equipoise.results import Result
from equipoise.standalone import ExtraEpoch

LATE = "not started, the time is up"
_PLACES = ("device", "executor", "replay", "workers", "personal", "own_models", "precision", "dtype")
_HOW = tuple(f"run.{name}" for name in _PLACES)


@dataclass(frozen=True)
class Wanted:
    """Which cells to run, and how."""

    scale: float = 1.0
    """The share of the rounds."""
    seeds: Sequence[int] | None = None
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    sets: Sequence[str] = ()
    """Where and how every run is carried out, such as run.device=cuda; more would make it another table's."""
    also: Sequence[float] = ()
    """Smaller shares of the rounds to measure after on the way, where nothing has to be chosen: claims compare runs of
    equal length."""

    def __post_init__(self) -> None:
        raw: Params = {}
        for change in self.sets:
            configs.override(raw, change)  # which says what is wrong with its form
            if change.split("=")[0].strip() not in _HOW:
                hint = f"only {', '.join(_HOW)} may be set; for all else change a copy of the table"
                raise EquipoiseError(f"--set {change} would make another table of it", hint)
        section(Run, raw.get("run", {}), "--set run")
        for share in self.also:
            below = f"below --scale, {self.scale:g}: it is measured on the way there"
            require(share < self.scale, "--also", share, below)

    def cells(self, table: Table) -> Iterable[Cell]:
        """The table's cells that are wanted; with seeds of one's own, every row has these."""
        seen = set()
        for cell in table.cells:
            if (self.rows and cell.row not in self.rows) or (self.columns and cell.column not in self.columns):
                continue
            for seed in (cell.seed,) if self.seeds is None else self.seeds:
                if (cell.row, cell.column, seed) not in seen:
                    seen.add((cell.row, cell.column, seed))
                    yield replace(cell, seed=seed)


def run(
    tables: Sequence[Table],
    out: Path,
    wanted: Wanted = Wanted(),
    *,
    workers: int = 1,
    engine: Engine | None = None,
    minutes: float | None = None,
    report: Callable[[Step], None] | None = None,
) -> dict[str, str]:
    """Measure what is not measured yet; what went wrong, by the name of the run. No run starts after `minutes`.

    `workers` processes on this machine do it, or the `engine`, if one is given.
    """
    deadline = time.time() + 60 * minutes if minutes is not None else float("inf")
    files.make_folder(out)
    with files.Lock(out):
        records = {table.name: Record(table, out) for table in tables}
        cells = {table.name: list(wanted.cells(table)) for table in tables}
        shared = Shared(out, (wanted.scale, *wanted.also), {table.name: table for table in tables}, cells)
        errors: dict[str, str] = {}
        shared.take_over(records)
        shared.go_on(records)
        try:
            for make in (_trials, _references, partial(_finals, shared)):
                jobs: dict[str, Job] = {}
                home: dict[str, Record] = {}
                for table in tables:
                    record = records[table.name]
                    for name, job in make(table, wanted, record, out):
                        jobs[name], home[name] = partial(_before, deadline, job), record
                errors |= execute_all(jobs, engine or Local(workers), partial(_ended, home, report), out)
        finally:
            shared.take_over(records)
        return errors


def _ended(home: Mapping[str, Record], report: Callable[[Step], None] | None, step: Step) -> None:
    home[step.what].take_in()
    if report:
        report(step)


Named = tuple[str, Job]


def _trials(table: Table, wanted: Wanted, record: Record, out: Path) -> Iterable[Named]:
    """Columns that differ in nothing but what `choose` sets, such as the number of rounds, share their trials."""
    choose, seen = table.head.choose, set()
    same: dict[tuple[str, bool, str], tuple[str, Wants, list[Entry]]] = {}
    for cell in wanted.cells(table):
        if len(cell.grid) == 1 or (cell.row, cell.column) in seen:
            continue
        seen.add((cell.row, cell.column))
        for i, tried in enumerate(cell.grid):
            head = trial(cell, tried, wanted.scale)
            if record.has(head):
                continue
            sets = [f"data.validation={choose.validation}", "run.splits=validation", "run.eval_every=0"]
            config = replace(cell, seed=choose.seed).config(tried, wanted.scale, [*sets, *wanted.sets])
            if choose.rounds is not None:
                config = with_rounds(config, choose.rounds * wanted.scale)
            name = f"{table.name} {cell.row} {cell.column} choice {i + 1} of {len(cell.grid)}"
            wants = Wants((choose.by,), cell, out / "alone", unfinished(out, table.name, cell, None))
            same.setdefault((configs.dump(config), cell.extra_epoch, cell.model), (name, wants, []))[2].append(head)
    for (run, _, _), (name, wants, heads) in same.items():
        yield name, partial(_try, run, wants, heads, record.inbox)


def _references(table: Table, wanted: Wanted, record: Record, out: Path) -> Iterable[Named]:
    """What clients reach alone, once for all cells that share it: side by side they would all train the same models."""
    wanted_of = (needs_optima(table.head.measures), needs_standalone(table.head.measures))
    if not any(wanted_of):
        return
    seen = set()
    for cell in wanted.cells(table):
        chosen = record.chosen(cell, wanted.scale)
        if record.has(final(cell, wanted.scale)) or chosen is None:
            continue
        config = cell.config(chosen, wanted.scale, wanted.sets)
        train = config.train
        decides = train if wanted_of[1] else (train.loss, train.lr, train.batch)
        basis = repr((config.data, config.model, decides, config.run))
        if basis not in seen:
            seen.add(basis)
            name = f"{table.name} {cell.row} {cell.column} seed {cell.seed} each client alone"
            yield name, partial(_refer, configs.dump(config), wanted_of, out / "alone")


def _finals(shared: Shared, table: Table, wanted: Wanted, record: Record, out: Path) -> Iterable[Named]:
    """Runs that differ in nothing but the number of rounds are one run, measured on the way too."""
    same: dict[tuple[object, ...], list[Head]] = {}
    for cell in wanted.cells(table):
        head, chosen = final(cell, wanted.scale), record.chosen(cell, wanted.scale)
        if record.has(head) or chosen is None or not shared.claims(table, cell):
            continue
        config = cell.config(chosen, wanted.scale, wanted.sets)
        ends = cell.extra_epoch or config.make_method().client.finish() is not None  # which does not go on after that
        alike = configs.dump(replace(config, train=replace(config.train, rounds=0)))
        runs = same.setdefault((alike, cell.model, (cell.row, cell.column) if ends else None), [])
        smaller = wanted.also if len(cell.grid) == 1 and not ends else ()
        how = {"set": [*wanted.sets]} if wanted.sets else {}
        for share in (wanted.scale, *smaller):
            entry = {**final(cell, share), "chosen": chosen, **how}
            if share != wanted.scale and record.holds(entry):
                continue
            runs.append(Head(cell, cell.config(chosen, share, wanted.sets), entry, cell.model))
    for heads in together(list(same.values()), table.head.measures):
        cell, text = longest(heads).cell, configs.dump(longest(heads).config)
        wants = Wants(tuple(table.head.measures), cell, out / "alone", unfinished(out, table.name, cell, cell.seed))
        job = partial(_measure, text, wants, [(h.rounds, h.model, h.entry) for h in heads], record.inbox)
        yield f"{table.name} {cell.row} {cell.column} seed {cell.seed}", job


# ------------------------------------------------------------------------------------------------ in the processes


@dataclass(frozen=True)
class Wants:
    """What a run is asked for: measures of a cell; models that clients reach alone are kept in `cache`."""

    measures: Sequence[str]
    cell: Cell
    cache: Path
    unfinished: Path
    """Where a run of this cell leaves points to go on from, each way of running it in a folder of its own."""

    def kept(self, made: experiment.Experiment) -> experiment.Kept:
        told = [made.config, self.cell.key, self.cell.model, self.cell.extra_epoch, own_data(made)]
        return experiment.Kept(self.unfinished / digest(repr(told)), [commit] if (commit := _commit()) else [])


def _before(deadline: float, job: Job) -> None:
    if time.time() >= deadline:
        raise EquipoiseError(LATE, "give the command again to go on")
    job()


def _made(text: str, extra_epoch: bool) -> experiment.Experiment:
    made = built(text)
    if extra_epoch:
        made = replace(made, method=replace(made.method, client=ExtraEpoch(made.method.client)))
    return made


def _try(text: str, wants: Wants, heads: Sequence[Entry], inbox: Path) -> None:
    made = _made(text, wants.cell.extra_epoch)
    kept = wants.kept(made)
    result = experiment.execute(made, None, going.progress, models=False, kept=kept)
    score = validated(result, wants.measures[0], wants.cell.model)
    for head in heads:
        leave(inbox, {**head, "score": score})
    kept.done()
    with suppress(OSError):  # others are at work there
        wants.unfinished.rmdir()


def _refer(text: str, wanted: tuple[bool, bool], kept: Path) -> None:
    made = built(text)
    if wanted[0]:
        optima_of(made, Stop(), kept)
    if wanted[1]:
        standalone_of(made, made.scenario.train.rounds, kept)


def _measure(text: str, wants: Wants, heads: Sequence[tuple[int, str, Entry]], inbox: Path) -> None:
    """Leave the entries of a run, each with the number of rounds after which it is measured, and of which model."""
    began, made = time.monotonic(), _made(text, wants.cell.extra_epoch)
    kept = wants.kept(made)

    @cache
    def reached(stop: Stop) -> Tensor:
        return optima_of(made, stop, wants.cache).models

    def tell(some: Sequence[tuple[str, Entry]], result: Result) -> None:
        seconds, summary = kept.seconds + time.monotonic() - began, result.summary()
        models = {model for model, _ in some}
        numbers = {m: measure(Finished(made, result, wants.cache, m), wants.measures) for m in models}
        ran = {"rounds": summary["rounds"], "stopped": summary["stopped"], "seconds": round(seconds, 1)}
        with_what = {"commit": "+".join(kept.by) or None, **_with(pick_device(made.run.device))}
        for model, head in some:
            leave(inbox, {**head, **ran, "numbers": numbers[model], **with_what})

    after: dict[int, list[tuple[str, Entry]]] = {}
    for rounds, model, head in heads:
        after.setdefault(rounds, []).append((model, head))
    early = {rounds: partial(tell, some) for rounds, some in after.items() if rounds < max(after)}
    result = experiment.execute(made, None, going.progress, reached=reached, models=False, on_the_way=early, kept=kept)
    done = result.summary()["rounds"]  # fewer than asked for, if it stopped by itself
    tell([(model, head) for rounds, model, head in heads if rounds >= done], result)
    kept.done()
    with suppress(EquipoiseError):
        files.remove_folder(wants.unfinished)  # with what was stopped when it was run another way


def _with(device: torch.device) -> dict[str, Any]:
    """With what it was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "day": f"{datetime.date.today()}"}


@cache
def _commit() -> str | None:
    """Of the repository that the package lies in, or as the environment says where it lies in none.

    When this process began: whoever commits while it runs changes nothing in it.
    """
    if "EQUIPOISE_COMMIT" in os.environ:
        return os.environ["EQUIPOISE_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
