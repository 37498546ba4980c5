"""Where a round's time goes: phases are timed while somebody watches, and cost next to nothing otherwise.

    with watch() as seconds:
        simulation.step()
    seconds == {"draw": ..., "gather": ..., "train": ..., "attack": ..., "admission": ..., "server rule": ...}

A phase inside another counts for itself alone. On a GPU every phase waits for the device to finish, so that its work is
counted where it was asked for: a watched run is a little slower than an unwatched one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from equipoise.engine.run import Simulation

PHASES = ("draw", "gather", "train", "attack", "admission", "server rule", "evaluate", "write")

_watched: dict[str, float] | None = None
_inside: list[float] = []
"""For every phase that is open, the seconds that phases within it took."""


@contextmanager
def watch() -> Iterator[dict[str, float]]:
    """Collects seconds by phase until it is left; a watch inside another takes over."""
    global _watched
    before, _watched = _watched, {}
    try:
        yield _watched
    finally:
        _watched = before


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Times what is done within, if anybody watches."""
    seconds = _watched
    if seconds is None:
        yield
        return
    _settle()
    began = time.perf_counter()
    _inside.append(0.0)
    try:
        yield
    finally:
        _settle()
        took = time.perf_counter() - began
        seconds[name] = seconds.get(name, 0.0) + took - _inside.pop()
        if _inside:
            _inside[-1] += took


def _settle() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def device_share(simulation: Simulation, warm: int = 5, rounds: int = 10) -> float | None:
    """The share of the next rounds' time in which a GPU had something to do; None without one."""
    if simulation.server.w.device.type != "cuda":
        return None
    for _ in range(warm):
        simulation.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        _settle()
        began = time.perf_counter()
        for _ in range(rounds):
            simulation.step()
        _settle()
        wall = time.perf_counter() - began
    spans = sorted((e.time_range.start, e.time_range.end) for e in found.events() or ())
    busy, until = 0.0, float("-inf")
    for start, end in spans:
        busy, until = busy + max(0.0, end - max(start, until)), max(until, end)
    return min(1.0, busy / 1e6 / wall)
