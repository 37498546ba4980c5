"""Where jobs are done: in processes on this machine, or on the machines of a Ray cluster.

A job is a call without arguments that leaves its result on the disk. An engine yields jobs in the order in which they
end, each with how to learn what became of it; nobody else needs to know where they ran.
"""

from __future__ import annotations

import gc
import importlib
import os
import platform
import signal
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch

from equipoise import registry
from equipoise.engine.memory import give_back, keep_memory
from equipoise.errors import EquipoiseError, require

Job = Callable[[], None]
Ended = Generator[tuple[str, Job], None, None]
"""Names, each with a call that raises what the job has raised. Closing it stops all jobs."""


class Engine(Protocol):
    def ended(self, jobs: Mapping[str, Job]) -> Ended:
        """Do all jobs."""


@dataclass(frozen=True)
class Local:
    """Processes on this machine that are reused; one worker is this process itself."""

    workers: int = 1
    own: tuple[Path, ...] = ()
    """Files with parts of the user's own, which every process loads before its first job."""

    def ended(self, jobs: Mapping[str, Job]) -> Ended:
        if self.workers == 1:
            yield from ((name, partial(_done, job)) for name, job in jobs.items())
            return
        # Spawned, not forked: a fork inherits the locks and threads of its parent in whatever state they are.
        pool = ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=_start, initargs=(self.own,))
        try:
            names: dict[Future[None], str] = {pool.submit(_done, job): name for name, job in jobs.items()}
            for future in as_completed(names):
                yield names[future], future.result
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster, one task per job. All its machines must have the same Equipoise, and share the current folder.

    The job of a machine or a process that is lost is given to another one, which goes on from the run's last
    checkpoint. Ray pickles what it carries. These are names of our functions and their settings, and they go from this
    process to workers that it has started: nothing that a client, a file or the network has sent is ever unpickled.
    """

    address: str | None = None
    """Where the cluster is; None: where RAY_ADDRESS says, else a Ray of our own on this machine."""
    workers: int | None = None
    """At most so many jobs at a time; None: as many as there are cores."""
    own: tuple[Path, ...] = ()
    """As `Local.own`."""

    def ended(self, jobs: Mapping[str, Job]) -> Ended:
        if not jobs:
            return
        with _connected(self) as ray:
            task = ray.remote(num_cpus=1, max_retries=3)(_task)
            waiting = iter(jobs.items())
            going: dict[Any, str] = {}
            try:
                while True:
                    room = None if self.workers is None else self.workers - len(going)
                    for name, job in islice(waiting, room):
                        going[task.remote(job, self.own, Path.cwd())] = name
                    if not going:
                        return
                    (found,), _ = ray.wait(list(going))
                    yield going.pop(found), partial(_result, ray, found)
            finally:
                _cancel(ray, list(going))


def _done(job: Job) -> None:
    """A job, after what jobs before it left is cleared away.

    A run's parts refer to each other, and Python looks for what nobody can reach when its own memory grows, not when a
    GPU's does.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()
        torch.cuda.empty_cache()
    give_back()
    job()


# ------------------------------------------------------------------------------------------------- this machine

_ON_A_GPU = 4  # runs at a time; more of them only wait for each other (docs/benchmarks.md)


def side_by_side() -> int:
    """How many runs at a time if nobody says: as many as there are cores, on a GPU as many as it has work for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _ON_A_GPU) if torch.cuda.is_available() else cores


def _start(own: tuple[Path, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # while a cell runs, its own handler finishes the round and saves
    _ready(own)


@cache
def _ready(own: tuple[Path, ...]) -> None:
    """Once in a process, before its first job."""
    torch.set_num_threads(1)
    keep_memory()
    for path in own:
        registry.load_file(path)


# ---------------------------------------------------------------------------------------------------------- Ray


_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # runs see the GPUs of their machine, as they do without Ray
}


@contextmanager
def _connected(engine: Ray) -> Iterator[Any]:
    """Ray, connected. A connection that was there before is used, and left as it is."""
    require(engine.workers is None or engine.workers > 0, "workers", engine.workers, "at least 1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise EquipoiseError("Ray is not installed", "pip install 'equipoise[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    address = engine.address or os.environ.get("RAY_ADDRESS") or "local"
    own = {"num_cpus": engine.workers, "include_dashboard": False} if address == "local" else {}
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        _knock(address)
        ray.init(address=address, runtime_env={"env_vars": _ENVIRONMENT}, **quiet, **own)
    except (OSError, RuntimeError, ValueError) as error:
        told = str(error).partition("\n")[0]
        raise EquipoiseError(f"no Ray at {address!r}: {told}", "check --ray-address, or RAY_ADDRESS") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """An error where nobody listens: Ray itself would try for many minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=10).close()


def _task(job: Job, own: tuple[Path, ...], here: Path) -> None:
    """One job, in a worker; paths mean there what they mean here."""
    try:
        os.chdir(here)
    except OSError as error:
        hint = "start from a folder on storage that all machines of the cluster share"
        raise EquipoiseError(f"{here} is not there on {platform.node()}", hint) from error
    _ready(own)
    _done(job)


def _result(ray: Any, found: Any) -> None:
    try:
        ray.get(found)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _cancel(ray: Any, going: list[Any]) -> None:
    """Stop jobs as Ctrl-C does: those that are running finish their round and save it."""
    for one in going:
        ray.cancel(one)
    if going:
        ray.wait(going, num_returns=len(going))
