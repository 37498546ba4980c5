"""A round's CPU time in one process: Equipoise against a bare PyTorch loop and against hand-batched products.

    python benchmarks/cpu_step.py [--model mlp|cnn] [--rounds 20] [--repeats 7] [--profile]

The setting is that of `against_others.py`: 100 clients x 60 samples of MNIST's size, 10 clients a round, batch 10, one
epoch, plain SGD; "mlp" is 784-200-200-10, "cnn" two 5x5 convolutions (32, 64), each with a pool, and 512-10. All start
from the same weights, take the same batches and must arrive at the same model before any time is printed: in float64,
because in float32 rounding may tip a sample over the edge of a ReLU, and two models drift visibly apart. A repeat
runs everyone once, in turn, so a neighbour that slows the machine down slows all of them down; ratios are taken
within a repeat. `--profile` says where the CPU time of our own rounds goes.
"""

from __future__ import annotations

import argparse
import cProfile
import math
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "_others"))

import bare
import bmm
import lowrank
import ours
from against_others import Setting, apart, export
from common import Problem

_LARGE = 1024  # rows and columns of a product that does nothing but multiply

Ends = dict[str, np.ndarray]
Runner = Callable[[Problem], Ends]


class Own:
    """Our own simulation, kept between repeats: recordings are made once in a run, and taken back to the start."""

    def __init__(self, executor: str, workers: int = 1) -> None:
        self.executor, self.workers, self.made = executor, workers, None

    def __call__(self, given: Problem) -> Ends:
        if self.made is None:
            self.made = ours.simulation(given, self.executor, self.workers)
            self.start = self.made.dump()
        self.made.load(self.start)
        for _ in range(given.rounds):
            self.made.step()
        end = self.made.server.layout.tensors(self.made.server.w)
        return {n: end[n].numpy() for n in given.weights}


def runners(model: str) -> dict[str, Runner]:
    found: dict[str, Runner] = {"bare loop": bare.rounds}
    if model == "mlp":
        found |= {"hand-batched bmm": bmm.rounds, "without models": lowrank.rounds, "ours, vmap": Own("vmap")}
    found["ours, loop"] = Own("loop")
    if model == "cnn":
        found["ours, loop, 2 workers"] = Own("loop", 2)
    return found


def steps_alone(given: Problem) -> float:
    """CPU seconds of hand-batched steps, without batches gathered, models copied and averaged: the floor."""
    spent: list[float] = []
    bmm.rounds(given, steps=spent)
    return sum(spent)


def arithmetic_alone(given: Problem) -> float:
    """CPU seconds of as many multiplications in large square products: what no way to take these steps can beat."""
    forward = [w.size for n, w in given.weights.items() if w.ndim == 2]
    backward = 2 * sum(forward) - forward[0]  # by weights, and by inputs but for the first layer's
    samples = given.index.size
    large = torch.ones(_LARGE, _LARGE) / 3
    times, began = samples * (sum(forward) + backward) / _LARGE**3, time.process_time()
    for _ in range(math.ceil(times)):
        large @ large
    return (time.process_time() - began) * times / math.ceil(times)


def first_round(given: Problem) -> Problem:
    """The same run in float64, and no more than a round of it."""
    weights = {n: w.astype(np.float64) for n, w in given.weights.items()}
    return replace(given, x=given.x.astype(np.float64), weights=weights, drawn=given.drawn[:1], index=given.index[:1])


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):6.2f} ({min(values):.2f} to {max(values):.2f})"


def profile(given: Problem, model: str) -> None:
    own = Own("vmap" if model == "mlp" else "loop")
    own(given)
    clock = cProfile.Profile(time.process_time)
    clock.runcall(own, given)
    for key in ("cumulative", "tottime"):
        pstats.Stats(clock).sort_stats(key).print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    given = export(Setting(model=asked.model, rounds=asked.rounds, warm=0))
    if asked.profile:
        return profile(given, asked.model)
    start = first_round(given)
    jobs: dict[str, Callable[[Problem], Ends | float]] = {**runners(asked.model)}
    ends = {name: job(start) for name, job in runners(asked.model).items()}
    for name, job in jobs.items():
        away = apart(start, ends[name], ends["bare loop"])
        print(f"{name:22} distance from the bare loop's model, relative to the way it went: {away:.1e}")
        assert away < 1e-9, name
        job(given)  # and everyone is warm
    if "hand-batched bmm" in jobs:
        jobs |= {"its steps alone": steps_alone, "its arithmetic": arithmetic_alone}
    cpu: dict[str, list[float]] = {name: [] for name in jobs}
    wall: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(asked.repeats):
        for name, job in jobs.items():
            began = time.process_time(), time.perf_counter()
            spent = job(given)
            whole = time.process_time() - began[0] if isinstance(spent, dict) else spent
            cpu[name].append(whole / asked.rounds)
            wall[name].append((time.perf_counter() - began[1]) / asked.rounds)
    print(f"\n{asked.model}, {asked.rounds} rounds, {asked.repeats} repeats: median (least to most)")
    for name in jobs:
        line = f"{name:22}{spread([1000 * t for t in cpu[name]]):>26} CPU ms a round"
        for other in ("bare loop", "hand-batched bmm"):
            if other in jobs and other != name:
                ratios = [a / b for a, b in zip(cpu[name], cpu[other], strict=True)]
                line += f"   {spread(ratios)} x {other}"
        faster = [b / a for a, b in zip(wall[name], wall["bare loop"], strict=True)]
        print(line if name.startswith("its ") else f"{line}   wall {spread(faster)} x as fast")
    return None


if __name__ == "__main__":
    main()
