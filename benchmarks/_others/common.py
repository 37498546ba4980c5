"""What every compared system shares: the problem as arrays, and how its time and its answer are written down.

Only the standard library and numpy, because each system runs in an environment of its own. The driver,
`against_others.py`, starts `python _others/NAME.py FOLDER` with `EQUIPOISE_BENCHMARK` set to a word that no other
process has: whoever carries that word belongs to the system that is measured, children or not (Ray's workers detach).
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

WORD = "EQUIPOISE_BENCHMARK"
FOLDER = "EQUIPOISE_BENCHMARK_FOLDER"


@dataclass(frozen=True)
class Problem:
    """One federated run, with nothing left to draw."""

    x: np.ndarray
    """[n, 1, 28, 28] float32."""
    y: np.ndarray
    """[n] int64."""
    drawn: np.ndarray
    """[R, K]: the clients of every round."""
    index: np.ndarray
    """[R, K, S, B]: the samples of every local step."""
    sizes: np.ndarray
    """[N]: what clients count for in the mean."""
    weights: dict[str, np.ndarray]
    """The initial model: torch's names, in torch's order."""
    model: str
    lr: float
    warm: int
    """Rounds that count as start-up."""

    @property
    def rounds(self) -> int:
        return len(self.drawn)

    def steps(self, round: int, client: int) -> np.ndarray:
        """[S, B]: a client's samples in a round."""
        return self.index[round, int(np.flatnonzero(self.drawn[round] == client)[0])]


@lru_cache(1)
def problem(folder: str | None = None) -> Problem:
    """Read once per process: Ray's workers find the folder in their environment."""
    path = Path(folder or os.environ[FOLDER]) / "problem.npz"
    with np.load(path) as file:
        held = {n: file[n] for n in file.files}
    weights = {n.removeprefix("w:"): held.pop(n) for n in list(held) if n.startswith("w:")}
    told = json.loads(str(held.pop("told")))
    return Problem(**held, weights=weights, **told)


# ------------------------------------------------------------------------------------------- time and memory


def members(word: str) -> list[int]:
    """The processes that carry the word, and all that descend from them: some overwrite what their environment was."""
    wanted, found, parents = f"{WORD}={word}".encode(), set(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:
                continue  # gone already, or not ours
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found)


def cpu_seconds(word: str) -> float:
    """CPU time of all members so far, children that they have waited for included."""
    total, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for pid in members(word):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += time.clock_gettime((~pid << 3) | 2)  # the clock of another process: /proc has 10 ms steps only
            total += (int(stat[13]) + int(stat[14])) / tick
        except OSError:
            continue
    return total


def memory(word: str) -> int:
    """Bytes that all members hold; what they share is counted once."""
    total = 0
    for pid in members(word):
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                total += 1024 * int(line.split()[1]) if line.startswith("Pss:") else 0
        except OSError:
            continue
    return total


class Course:
    """Tells the driver when rounds end, and what came out."""

    def __init__(self, folder: str, problem: Problem) -> None:
        self.folder, self.problem, self.word = Path(folder), problem, os.environ[WORD]
        self.marks: dict[str, tuple[float, float]] = {}
        self.note: dict[str, str] = {}

    def ended(self, rounds: int) -> None:
        """To be called when `rounds` rounds are done; only two of them are looked at."""
        if rounds in (self.problem.warm, self.problem.rounds):
            name = "ready" if rounds == self.problem.warm else "done"
            self.marks[name] = (cpu_seconds(self.word), time.time())

    def finish(self, weights: dict[str, np.ndarray], **versions: str) -> None:
        np.savez(self.folder / "end.npz", **{n: np.asarray(w) for n, w in weights.items()})
        told = {"marks": self.marks, "versions": versions}
        (self.folder / "told.json").write_text(json.dumps(told))


def begin() -> tuple[Problem, Course]:
    os.environ[FOLDER] = folder = sys.argv[1]
    given = problem(folder)
    return given, Course(folder, given)
