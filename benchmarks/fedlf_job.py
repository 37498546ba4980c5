"""FedLF's Table 1 job on Fashion-MNIST, Pat-2: 100 clients, 10 online, batch 50, MLP, one seed; how long it takes.

    EQUIPOISE_DATA=... python benchmarks/fedlf_job.py [--rounds 3000] [--device cuda] [--method fedlf]

Prints seconds, milliseconds per round, and the accuracy and angle that it ends with.
"""

from __future__ import annotations

import argparse
import time

import equipoise as eq
from equipoise import metrics, registry
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.models import build
from equipoise.streams import Stream


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=3000)
    options.add_argument("--device", default="auto")
    options.add_argument("--method", default="fedlf")
    given = options.parse_args()
    fed = eq.partition(eq.load("fashion-mnist"), "pathological", clients=100, classes=2, test=1 / 7)
    model = build("mlp", (1, 28, 28), 10, Stream(0).child("model"), hidden=(200, 200))
    train = Train(rounds=given.rounds, batch=50, lr=0.1, lr_decay=0.999)
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


if __name__ == "__main__":
    main()
