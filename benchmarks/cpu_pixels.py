"""CPU time of rounds with CNNs that are shown images pixel by pixel (`engine/net.py`), and plane by plane.

    python benchmarks/cpu_pixels.py [--rounds 7]

Models of the papers on random images, two of ten clients in a round, with three batches each, on one core. The two
ways take turns, round for round, in one process; told are medians of CPU seconds a round, their ratio, and how far the
two models are apart after the first round, relative to their length.
"""

from __future__ import annotations

import argparse
import statistics
import time

from gpu_round import SHAPES, federation, model

from equipoise.core import Method
from equipoise.engine.memory import keep_memory
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train

CASES = {
    "cnn": 10,
    "cnn-ditto": 16,
    "cnn-femnist": 16,
    "cnn-rffl": 16,
    "cnn-fedlf": 50,
    "cnn-fedtilt": 50,
    "cnn-rffl-cifar": 16,
    "resnet": 50,
}


def simulation(name: str, batch: int, pixels: bool) -> Simulation:
    fed, train = federation(10, SHAPES.get(name, (1, 28, 28))), Train(batch=batch, steps=3, lr=0.01)
    scene = Scenario(fed, model(name), train, Participation(2))
    sim = Simulation(scene, Method(), Run(device="cpu", replay="on"))
    assert sim.simulator.net.pixels
    sim.simulator.net.pixels = pixels
    return sim


def compare(name: str, rounds: int) -> str:
    both = [simulation(name, CASES[name], pixels) for pixels in (False, True)]
    for sim in both:
        sim.step()
    planes, pixels = (sim.server.w for sim in both)
    apart = float((planes - pixels).norm() / planes.norm())
    spent: list[list[float]] = [[], []]
    for _ in range(rounds):
        for sim, mine in zip(both, spent, strict=True):
            began = time.process_time()
            sim.step()
            mine.append(time.process_time() - began)
    a, b = map(statistics.median, spent)
    return f"{name:14} {a:8.3f} {b:8.3f} {a / b:6.2f}   {apart:.0e}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    keep_memory()
    print("model            planes   pixels  ratio   apart")
    for each in CASES:
        print(compare(each, given.rounds), flush=True)
