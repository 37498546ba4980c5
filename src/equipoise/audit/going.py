"""How far jobs are that are not done yet: each keeps a line in a file of its own, wherever it runs, for whoever waits.

Nothing rests on these files: they are two seconds late, a line that cannot be written is not, and all are removed when
the jobs have ended.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from equipoise import files
from equipoise.audit.engines import Job
from equipoise.course import Progress
from equipoise.engine.waiting import Alone, told
from equipoise.errors import EquipoiseError

_SELDOM = 2.0  # seconds between two lines of a job
_APART = 5.0  # seconds that the clocks of two machines may differ
_SUFFIX, _PARTIAL = ".json", ".partial"


@dataclass(frozen=True)
class Going:
    """A job that is not done yet."""

    name: str
    began: float
    """Seconds since 1970."""
    round: int = 0
    rounds: int = 0
    """0: it has none."""
    stage: str = ""
    """What goes on that is no round, in words; `round` and `rounds` are then its own, such as epochs."""


@dataclass
class _Line:
    """What this process keeps of the job that it is at."""

    path: Path
    last: Going
    due: float = 0.0

    def at(self, round: int, rounds: int, stage: str = "") -> None:
        if time.monotonic() >= self.due:
            self.write(replace(self.last, round=round, rounds=rounds, stage=stage))

    def alone(self, at: Alone) -> None:
        self.at(at.done, at.most, str(at))

    def write(self, now: Going) -> None:
        self.last, self.due = now, time.monotonic() + _SELDOM
        with suppress(OSError):
            partial = self.path.with_suffix(_PARTIAL)
            partial.write_text(json.dumps(asdict(now)), encoding="utf-8")
            partial.replace(self.path)


_line: ContextVar[_Line | None] = ContextVar("_line", default=None)


def during(folder: Path, name: str, job: Job) -> None:
    """A job that keeps its line in the folder while it lasts."""
    line = _Line(folder / (hashlib.sha256(name.encode()).hexdigest()[:16] + _SUFFIX), Going(name, time.time()))
    line.write(line.last)
    before = _line.set(line)
    try:
        with told(line.alone):
            job()
    finally:
        _line.reset(before)
        with suppress(OSError):
            line.path.unlink()


def progress(at: Progress) -> None:
    """What the runs of a job report to."""
    line = _line.get()
    if line is not None:
        if at.alone:
            line.alone(at.alone)
        else:
            line.at(at.round, at.rounds)


@contextmanager
def lines(out: Path) -> Iterator[Path]:
    """The folder for the lines of jobs that work below `out`, which holds none of earlier ones."""
    folder = _folder(out)
    _clear(folder)
    with suppress(EquipoiseError):
        files.make_folder(folder)
    try:
        yield folder
    finally:
        _clear(folder)


def _clear(folder: Path) -> None:
    with suppress(OSError):
        for path in (*folder.glob(f"*{_SUFFIX}"), *folder.glob(f"*{_PARTIAL}")):
            path.unlink(missing_ok=True)
        folder.rmdir()


def read(out: Path) -> list[Going]:
    """What is going on below `out`, in the order in which it began."""
    found = []
    with suppress(OSError):  # the folder is gone, or its disk is away
        for path in _folder(out).glob(f"*{_SUFFIX}"):
            with suppress(OSError, ValueError, TypeError):  # it has just ended, or is not ours
                found.append(Going(**json.loads(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda job: (job.began, job.name))


@contextmanager
def watched(out: Path, tell: Callable[[Sequence[Going]], None], every: float = 1.0) -> Iterator[None]:
    """Meanwhile, tell somebody every so many seconds what is going on below `out`, and once more in the end.

    What began before is not: a command that was killed has left it.
    """
    done, since = threading.Event(), time.time() - _APART

    def watch() -> None:
        while not done.is_set():
            done.wait(every)
            with suppress(OSError):  # nobody is there to be told
                tell([job for job in read(out) if job.began >= since])

    thread = threading.Thread(target=watch, name="going", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _folder(out: Path) -> Path:
    return out / ".going"
