"""Robust rules against those of ByzFL 0.0.11: CPU time, as a ratio, in one run.

    python benchmarks/robust_rules.py [DIRECTORY]

DIRECTORY is one with byzfl in it (`pip install --no-deps --target DIRECTORY byzfl==0.0.11`); without it pip is asked to
fill a temporary one. 100 updates of 80,000 float32 numbers, 20 of them malicious; one thread, one process, the same
torch and numpy for both; interleaved repeats; medians, and the spread of the ratio. ByzFL takes torch tensors and numpy
arrays and has other code for each, so both are measured. Nothing is timed before the results agree.

They do not do the same for the same settings: ByzFL's Krum has one neighbour more (its f is one larger here, which is
the same rule), and its geometric median takes three steps from 0 unless told otherwise (here as many as it needs to
agree with ours). Ours also say whose values were taken, and measure Krum's distances in float64; ByzFL does that with
numpy only.

Below the rules stand the floors: what no rule can do without, by itself. Any Krum needs all inner products of the rows;
numpy sees that the product of a matrix with itself is symmetric and computes half of it, which is the fastest way that
was found. Where the best two scores lie closer together than float32 can promise (see the line above the table), every
number has to be looked at again; in float64 that takes at least as long as to convert them. numpy's sort of values that
already lie in the order it wants is the fastest way there is to columns in order. Where a floor's ratio is below 5, so
is that of every rule built on it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor

from equipoise.aggregators import _rough
from equipoise.aggregators._distances import columns
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.geometric_median import GeometricMedian
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.trimmed_mean import TrimmedMean
from equipoise.core import Cohort, ServerRule
from equipoise.streams import Stream

M, D, F, REPEATS = 100, 80_000, 20, 9
Job = Callable[[], Any]


def byzfl(directory: str | None) -> Any:
    """ByzFL, with stand-ins for what it imports at the top but its rules never use."""
    if directory is None:
        directory = tempfile.mkdtemp(prefix="byzfl-")
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", directory, "byzfl==0.0.11"]
        subprocess.run(command, check=True)
    sys.path.append(directory)
    for name in ("torchvision", "seaborn", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = MagicMock()
            sys.modules[f"{name}.pyplot"] = MagicMock()
    return import_module("byzfl")


def cohort() -> Cohort:
    """Honest updates around a common one; the malicious send its opposite, five times as long."""
    g = Stream(0).torch()
    common = torch.randn(D, generator=g)
    updates = common + torch.randn((M, D), generator=g)
    updates[torch.randperm(M, generator=g)[:F]] = -5 * common + torch.randn((F, D), generator=g)
    return Cohort(torch.arange(M), torch.zeros(D), updates, torch.ones(M))


def steps_until_equal(theirs: Any, rows: Any, wanted: Tensor) -> int:
    """How many steps ByzFL's geometric median needs to come as close as float32 lets it."""
    for steps in (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128):
        if apart(theirs.GeometricMedian(nu=1e-6, T=steps)(rows), wanted) < 1e-5:
            return steps
    raise AssertionError("the geometric medians do not agree")


def apart(a: Any, b: Tensor) -> float:
    x, y = torch.as_tensor(a).double(), b.double()
    return float((x - y).norm() / y.norm())


def jobs(theirs: Any, seen: Cohort) -> dict[str, tuple[Job, dict[str, Job]]]:
    """For every rule: ours, and theirs on either kind of rows."""
    rows = {"torch": seen.updates, "numpy": seen.updates.numpy()}
    rules: dict[str, ServerRule] = {
        "median": CoordinateMedian(),
        "trimmed mean": TrimmedMean(F),
        "Krum": Krum(F),
        "geometric median": GeometricMedian(),
    }
    wanted = rules["geometric median"](seen, {}).direction
    steps = {kind: steps_until_equal(theirs, x, wanted) for kind, x in rows.items()}
    print(f"steps of ByzFL's geometric median that it takes to agree with ours: {steps}\n")
    peers: dict[str, Callable[[str], Any]] = {
        "median": lambda kind: theirs.Median(),
        "trimmed mean": lambda kind: theirs.TrMean(f=F),
        "Krum": lambda kind: theirs.Krum(f=F + 1),
        "geometric median": lambda kind: theirs.GeometricMedian(nu=1e-6, T=steps[kind]),
    }

    def job(name: str, kind: str) -> Job:
        rule = peers[name](kind)
        return lambda: rule(rows[kind])

    def own(rule: ServerRule) -> Job:
        return lambda: rule(seen, {}).direction

    return {name: (own(rule), {kind: job(name, kind) for kind in rows}) for name, rule in rules.items()}


def floors(seen: Cohort) -> dict[str, Job]:
    """The rules that they bound, and the work by itself."""
    rows, turned = seen.updates.numpy(), np.array(seen.updates.numpy().T, order="C")
    widest = next(columns(D, M))
    buffer = torch.empty((M, widest.stop), dtype=torch.float64)

    def twice() -> None:
        rows @ rows.T
        for piece in columns(D, M):
            buffer[:, : piece.stop - piece.start].copy_(seen.updates[:, piece])

    return {
        "Krum: a float32 Gram matrix alone, torch": lambda: seen.updates @ seen.updates.T,
        "Krum: half of one alone, numpy": lambda: rows @ rows.T,
        "Krum: that, and all numbers as float64": twice,
        "trimmed mean: sorting turned columns alone": lambda: np.sort(turned, axis=-1),
    }


def closeness(seen: Cohort) -> str:
    """How far apart Krum's two best scores are, and what float32 can promise of any."""
    best, second = Krum(F)(seen, {}).info["scores"].sort().values[:2].tolist()
    rough = _rough.inner_products(seen.updates)
    promise = rough.rounding * float(4 * rough.lengths.square().median()) * (M - F - 2) / best
    return f"Krum's two best scores are {(second - best) / best:.0e} of them apart; float32 promises {promise:.0e}\n"


def timed(job: Job) -> float:
    began = time.process_time()
    job()
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    theirs = byzfl(sys.argv[1] if len(sys.argv) > 1 else None)
    seen = cohort()
    all_jobs = jobs(theirs, seen)
    for name, (ours, peers) in all_jobs.items():
        for kind, peer in peers.items():
            assert apart(peer(), ours()) < 1e-5, f"{name}: ByzFL on {kind} rows gives something else"
    print(closeness(seen))
    print(f"{'':46}{'ours ms':>9}{'ByzFL torch':>24}{'ByzFL numpy':>24}")
    for name, (ours, peers) in all_jobs.items():
        print(compared(name, ours, peers))
    for name, floor in floors(seen).items():
        print(compared(name, floor, all_jobs[name.partition(":")[0]][1]))


def compared(name: str, ours: Job, peers: dict[str, Job]) -> str:
    """One line: the median times, and the ratios of times that were taken one after the other."""
    times: dict[str, list[float]] = {"ours": [], **{kind: [] for kind in peers}}
    for _ in range(REPEATS):
        for who, run in {"ours": ours, **peers}.items():
            times[who].append(timed(run))
    line = f"{name:46}{1000 * statistics.median(times['ours']):9.0f}"
    for kind in peers:
        ratios = [a / b for a, b in zip(times[kind], times["ours"], strict=True)]
        line += f"{1000 * statistics.median(times[kind]):7.0f}  {statistics.median(ratios):4.1f} x"
        line += f" ({min(ratios):.1f}-{max(ratios):.1f})"
    return line


if __name__ == "__main__":
    main()
