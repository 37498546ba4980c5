"""What all commands share: flags, error messages and exit codes, tables, progress.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from equipoise.errors import EquipoiseError

_NAMED = 3  # jobs with the same error; others are counted
_SELDOM = 10.0  # seconds between two lines about what comes before the rounds
_LARGE = 1e6  # numbers from here on are told by their first digits

if TYPE_CHECKING:
    from equipoise.experiment import Progress

P = ParamSpec("P")
T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no warnings.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more; show where an error came from.")]

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def say(text: str) -> None:
    """To stderr."""
    typer.echo(text, err=True)


def put(text: str) -> None:
    """To stdout."""
    typer.echo(text)


def say_failed(errors: Mapping[str, str]) -> bool:
    """What went wrong with which jobs, by name; an error that several share is told once. Whether there was any."""
    for error in dict.fromkeys(errors.values()):
        names = [name for name in errors if errors[name] == error]
        rest = len(names) - _NAMED
        say(f"failed: {', '.join(names[:_NAMED])}{f' and {rest} more' if rest > 0 else ''}: {error}")
    return bool(errors)


def put_json(value: Any) -> None:
    put(json.dumps(value, indent=2, ensure_ascii=False))


def guarded(command: Callable[P, T]) -> Callable[P, T]:
    """Turns whatever a command raises into a message and an exit code; with -v the traceback comes first."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if kwargs.get("verbose"):
                say(traceback.format_exc())
            say(_told(error))
            raise typer.Exit(_code(error)) from None

    return wrapper


def _interrupted(error: Exception) -> bool:
    experiment = sys.modules.get("equipoise.experiment")
    return experiment is not None and isinstance(error, experiment.Interrupted)


def _told(error: Exception) -> str:
    if _interrupted(error):
        return str(error)
    if isinstance(error, EquipoiseError):
        return f"error: {error}"
    return f"failed: {type(error).__name__}: {error}\n  hint: -v shows where; please report it if it is our mistake"


def _code(error: Exception) -> int:
    if _interrupted(error):
        return INTERRUPTED
    return BAD_INPUT if isinstance(error, EquipoiseError) else FAILED


def put_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns: wrapped to the width of a terminal, one plain line per row elsewhere."""
    if sys.stdout.isatty():
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*headers, box=SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    for row in (headers, *rows):
        put("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def number(value: Any) -> str:
    """A value of a table as text."""
    if value is None or value != value:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.3g}"  # of a model that diverged, say


Report = Callable[["Progress"], None]


@contextmanager
def progress(quiet: bool, verbose: bool) -> Iterator[Report | None]:
    """What a run reports to: a bar on a terminal, a plain line per 5% elsewhere (-v: per round), nothing with -q."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield _lines(verbose)


@contextmanager
def _bar() -> Iterator[Report]:
    from rich import progress as rich
    from rich.console import Console

    note = rich.TextColumn("{task.fields[note]}", markup=False)
    columns = ("rounds", rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn(), note)
    bar = rich.Progress(*columns, console=Console(stderr=True))
    with bar:
        task = bar.add_task("rounds", total=None, note="")

        def report(at: Progress) -> None:
            bar.update(task, total=at.rounds, completed=at.round, note=_note(at))

        yield report


def _lines(verbose: bool) -> Report:
    told, due = -1, -math.inf

    def report(at: Progress) -> None:
        nonlocal told, due
        if at.alone:  # which may change many times a second
            if time.monotonic() >= due:
                due = time.monotonic() + _SELDOM
                say(f"{at.alone}  {at.seconds:.1f} s")
            return
        share = at.round if verbose else at.round * 20 // max(1, at.rounds)
        if share != told:
            told = share
            say(f"round {at.round}/{at.rounds}  {at.seconds:.1f} s  {_note(at)}".rstrip())

    return report


def _note(at: Progress) -> str:
    if at.alone:
        return str(at.alone)
    accuracy = "" if at.accuracy is None else f"accuracy {at.accuracy:.4f}  "
    return accuracy + at.note
