"""CPU time and memory of rounds where malicious clients do no more than they send, and where they do all there is.

    python benchmarks/own_models.py [--rounds 7]

Ditto with its CNN on random images: ten of 25 clients, with 48 samples and 12 for validation, take two steps on 16;
a share of them flips the sign of what it sends; one core. The two ways (`run.own_models`) take turns, round for round,
in one process. Told are medians of CPU seconds a round, their ratio, and the MiB of personal models that are kept; that
both arrive at the same bits is checked.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import torch
from gpu_round import federation, model

from equipoise.attacks import SignFlip
from equipoise.data.federation import Split
from equipoise.engine.memory import keep_memory
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.methods import ditto

CLIENTS, PART, N = 25, 48, 60


def simulation(share: float, own_models: Any) -> Simulation:
    fed = federation(CLIENTS)
    held = list(torch.split(torch.arange(CLIENTS * N), N))
    parts = {"train": Split.of([h[:PART] for h in held]), "validation": Split.of([h[PART:] for h in held])}
    fed = replace(fed, splits={**fed.splits, **parts})
    train, attack = Train(batch=16, steps=2, lr=0.01), SignFlip(fraction=share)
    scene = Scenario(fed, model("cnn-ditto"), train, Participation(10), attack=attack)
    return Simulation(scene, ditto(), Run(device="cpu", replay="on", own_models=own_models))


def kept(sim: Simulation) -> float:
    return sum(t.numel() * t.itemsize for t in sim.simulator.store.dump().values()) / 2**20


def compare(share: float, rounds: int) -> str:
    both = [simulation(share, who) for who in ("all", "honest")]
    spent: list[list[float]] = [[], []]
    for at in range(rounds + 2):  # two to warm up
        for sim, mine in zip(both, spent, strict=True):
            began = time.process_time()
            sim.step()
            mine += [time.process_time() - began] * (at > 1)
    assert torch.equal(both[0].server.w, both[1].server.w)
    (a, b), (x, y) = map(statistics.median, spent), map(kept, both)
    return f"{share:9.0%} {a:8.3f} {b:8.3f} {a / b:6.2f} {x:9.0f} {y:8.0f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    keep_memory()
    print("malicious      all   honest  ratio   MiB, all   honest")
    for each in (0.2, 0.5, 0.8):
        print(compare(each, given.rounds), flush=True)
