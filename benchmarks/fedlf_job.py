"""FedLF's Table 1 job on Fashion-MNIST, Pat-2: 100 clients, 10 online, batch 50, MLP, one seed; how long it takes.

    EQUIPOISE_DATA=... python benchmarks/fedlf_job.py [--rounds 3000] [--device cuda] [--method fedlf] [--parts 50]

Prints seconds, milliseconds per round, and the accuracy and angle that it ends with. With --parts, of so many rounds
more: how long a round takes, its training, all work on the GPU, and the linear equations of its hulls, where these are
solved in host memory (LAPACK's own time; on a GPU they are a kernel). What is left is Python, and waiting for answers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from gpu_round import Clock, timed
from torch.profiler import ProfilerActivity, profile

import equipoise as eq
from equipoise import metrics, registry, solvers
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.models import build
from equipoise.streams import Stream


def parts(sim: Simulation, rounds: int) -> None:
    device = sim.server.w.device.type

    def some() -> None:
        for _ in range(rounds):
            sim.step()

    told, spent = {"a round": timed(some, device)}, [0.0]
    with Clock(device) as clock:
        some()
        told["its training"] = clock.seconds()
    with patch("equipoise.solvers._solved", _watched(solvers._solved, spent)):
        some()
    told["the hulls' equations"] = spent[0]
    if device == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            some()
            torch.cuda.synchronize()
        told["all kernels"] = sum(e.device_time for e in seen.events() if e.device_type.name == "CUDA") / 1e6
    print(", ".join(f"{what} {1000 * seconds / rounds:.2f} ms" for what, seconds in told.items()))


def _watched(solve: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def watched(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return solve(*args)
        finally:
            spent[0] += time.perf_counter() - began

    return watched


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=3000)
    options.add_argument("--device", default="auto")
    options.add_argument("--method", default="fedlf")
    options.add_argument("--parts", type=int, default=0)
    given = options.parse_args()
    fed = eq.partition(eq.load("fashion-mnist"), "pathological", clients=100, classes=2, test=1 / 7)
    model = build("mlp", (1, 28, 28), 10, Stream(0).child("model"), hidden=(200, 200))
    train = Train(rounds=given.rounds + 4 * given.parts, batch=50, lr=0.1, lr_decay=0.999)
    scenario = Scenario(fed, model, train, Participation(per_round=10), Admission(guard="off"))
    sim = Simulation(scenario, registry.get("methods", given.method).make(), Run(device=given.device))
    began = time.perf_counter()
    sim.step()
    first = time.perf_counter() - began
    for _ in range(given.rounds - 1):
        sim.step()
    found = sim.evaluate("test")
    seconds = time.perf_counter() - began
    kind = found.get("personal", found["global"])
    summary = metrics.summary(kind.accuracy, kind.n, kind.loss)
    print(
        f"{given.method}: {given.rounds} rounds in {seconds:.1f} s (first {first:.1f}), "
        f"{1000 * (seconds - first) / max(1, given.rounds - 1):.2f} ms per round, "
        f"accuracy {summary['accuracy_mean']:.3f}, angle {summary['angle']:.3f}"
    )
    if given.parts:
        parts(sim, given.parts)


if __name__ == "__main__":
    main()
