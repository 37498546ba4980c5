"""Where a run's time went: watched while it runs, told behind its results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from equipoise.cli.terminal import Report, put, put_table, say

if TYPE_CHECKING:
    from equipoise.experiment import Experiment, Progress


class Profile:
    """Seconds by phase of the rounds that were run, and what share of its time the device was busy."""

    def __init__(self) -> None:
        self.rounds, self.total = 0, 0.0
        self.seconds: dict[str, float] = {}
        self.busy: float | None = None

    @contextmanager
    def watching(self, report: Report | None) -> Iterator[Report]:
        """Watches what is done within, and counts rounds on their way to `report`."""
        from equipoise.engine.phases import PHASES, watch

        def counted(at: Progress) -> None:
            self.rounds += 1
            if report is not None:
                report(at)

        began = time.perf_counter()
        with watch() as seconds:
            yield counted
        self.total = time.perf_counter() - began
        self.seconds = {name: seconds.get(name, 0.0) for name in PHASES}
        self.seconds["other"] = max(0.0, self.total - sum(self.seconds.values()))

    def measure_device(self, made: Experiment) -> None:
        """A few rounds once more, where there is a GPU: phases wait for it, so watched rounds cannot tell."""
        from equipoise.engine.phases import device_share
        from equipoise.engine.run import Simulation

        try:
            self.busy = device_share(Simulation(made.scenario, made.method, made.run))
        except RuntimeError as error:  # the run is done and saved: a profiler that does not work must not lose it
            say(f"how busy the device is could not be measured: {str(error).splitlines()[0]}")

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"rounds": self.rounds, "total": self.total, "seconds": self.seconds, "device_busy": self.busy}

    def put(self) -> None:
        """To stdout, as a table."""
        rows = [self._row(name, seconds) for name, seconds in {**self.seconds, "all": self.total}.items()]
        put("")
        put_table(("phase", "seconds", "share", "ms a round"), rows)
        if self.busy is not None:
            put(f"the device is busy {self.busy:.0%} of the time, in rounds that nobody watches")

    def _row(self, name: str, seconds: float) -> tuple[str, ...]:
        each = f"{1000 * seconds / self.rounds:.2f}" if self.rounds else "-"
        return name, f"{seconds:.3f}", f"{seconds / max(self.total, 1e-9):.1%}", each
