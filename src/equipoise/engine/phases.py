"""Where a round's time goes: phases are timed while somebody watches, and cost next to nothing otherwise.

    with watch() as seconds:
        simulation.step()
    seconds == {"draw": ..., "gather": ..., "train": ..., "attack": ..., "admission": ..., "server rule": ..., ...}

    draw         who takes part
    gather       which samples everyone sees; samples that are looked up within local steps count as training
    train        all that clients do in a round
    attack       what malicious clients do beyond that
    admission    what updates and reports must pass
    server rule  what the server makes of them; whatever a rule asks clients in the middle of it included
    evaluate     how every client is served, and who is in conflict with the direction taken
    write        tables, checkpoints, models

A phase inside another counts for itself alone. Threads that the watching one has started are not watched: what they do
counts where it is waited for. On a GPU every phase waits for the device to finish, so that its work is counted where it
was asked for: nothing runs beside anything else, and a watched run is slower than an unwatched one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from equipoise.engine.run import Simulation

PHASES = ("draw", "gather", "train", "attack", "admission", "server rule", "evaluate", "write")


class _Watch:
    """Seconds by phase and, for every phase that is open, the seconds that phases within it took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.inside: list[float] = []


_watched: ContextVar[_Watch | None] = ContextVar("_watched", default=None)


@contextmanager
def watch() -> Iterator[dict[str, float]]:
    """Collects seconds by phase until it is left; a watch inside another takes over."""
    now = _Watch()
    before = _watched.set(now)
    try:
        yield now.seconds
    finally:
        _watched.reset(before)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Times what is done within, if anybody watches; also as `@phase(name)` of a whole function."""
    now = _watched.get()
    if now is None:
        yield
        return
    _settle()
    began = time.perf_counter()
    now.inside.append(0.0)
    try:
        yield
        _settle()  # not after an error, which a device that failed would only hide behind another
    finally:
        took = time.perf_counter() - began
        now.seconds[name] = now.seconds.get(name, 0.0) + took - now.inside.pop()
        if now.inside:
            now.inside[-1] += took


def _settle() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def device_share(simulation: Simulation, warm: int = 5, rounds: int = 10) -> float | None:
    """The share of the next rounds' time in which a GPU had something to do; None if there is none, or none tells.

    These rounds run as they always do, no phase waits; only the profiler itself costs them a little.
    """
    if simulation.server.w.device.type != "cuda":
        return None
    for _ in range(warm):
        simulation.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as found:
        _settle()
        began = time.perf_counter()
        for _ in range(rounds):
            simulation.step()
        _settle()
        wall = time.perf_counter() - began
    # The profiler also tells of calls on the host side, such as launches: the device is not busy with these.
    times = [e.time_range for e in found.events() or () if e.device_type == DeviceType.CUDA]
    return min(1.0, covered([(t.start, t.end) for t in times]) / 1e6 / wall) if times else None


def covered(spans: list[tuple[float, float]]) -> float:
    """How much of a line these spans cover; where they overlap counts once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total, until = total + max(0.0, end - max(start, until)), max(until, end)
    return total
