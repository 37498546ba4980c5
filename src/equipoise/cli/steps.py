"""How far many runs are: what audits, sweeps and published tables show while they last."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.cli.terminal import say

if TYPE_CHECKING:
    from equipoise.audit.going import Going
    from equipoise.audit.runner import Step

_LONG = 60.0  # seconds from which on a run is told of while it lasts


@contextmanager
def steps(quiet: bool, out: Path) -> Iterator[Callable[[Step], None]]:
    """What many runs below `out` report to: bars on a terminal, one line per run elsewhere, nothing with -q.

    On a terminal every run that is going on has a bar too; elsewhere a long one has a line per tenth of its rounds.
    """
    if quiet:
        yield lambda step: None
        return
    from equipoise.audit.going import watched  # which takes a second to import

    if not sys.stderr.isatty():
        with watched(out, _Tenths()):
            yield lambda step: say(f"{step.done}/{step.total}  {step.what}  {step.error}".rstrip())
        return
    from rich import progress as rich
    from rich.console import Console

    what = rich.TextColumn("{task.fields[what]}", markup=False)
    columns = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn(), what)
    with rich.Progress(*columns, console=Console(stderr=True)) as screen:
        bars = _Bars(screen)
        with watched(out, bars.going):
            yield bars.step


class _Bars:
    """One for all jobs, and below it one for each that is going on."""

    def __init__(self, screen: Any) -> None:
        self.screen, self.one = screen, dict[str, Any]()
        self.all = screen.add_task("", total=None, what="")

    def step(self, step: Step) -> None:
        self.screen.update(self.all, total=step.total, completed=step.done, what=step.error or step.what)

    def going(self, jobs: Sequence[Going]) -> None:
        for name in self.one.keys() - {job.name for job in jobs}:
            self.screen.remove_task(self.one.pop(name))
        for job in jobs:
            if job.name not in self.one:
                self.one[job.name] = self.screen.add_task("", total=None, what=job.name)
            what = f"{job.name}  {job.stage}".rstrip()
            self.screen.update(self.one[job.name], total=job.rounds or None, completed=job.round, what=what)


class _Tenths:
    """A line about every job that takes long, and another for every tenth of its rounds but the last."""

    def __init__(self) -> None:
        self.told: dict[tuple[str, bool], int] = {}
        """By job, and whether it was at its rounds or at something else."""

    def __call__(self, jobs: Sequence[Going]) -> None:
        for job in jobs:
            tenth, seconds = 10 * job.round // max(1, job.rounds), time.time() - job.began
            at = (job.name, bool(job.stage))
            if self.told.get(at, -1) < tenth < 10 and seconds >= _LONG:
                self.told[at] = tenth
                where = job.stage or (f"round {job.round}/{job.rounds}" if job.rounds else "")
                where += ", " if where else ""
                say(f"going on: {job.name}, {where}{seconds / 60:.0f} min so far")
