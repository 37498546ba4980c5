"""CPU time of rounds where the process keeps the memory that it frees (`engine/memory.py`), and where it gives it back.

    python benchmarks/kept_memory.py [--rounds 4] [--repeats 3]

Models of the papers on random images, ten of 100 clients with 600 samples in a round, on one core. Every figure is of a
process of its own, which does a round to warm up and then so many; the two ways take turns. Told are CPU
seconds a round (median, least and most), their ratio within a turn, pages that the system had to fill in a round, and
the most memory that the process had. That both arrive at the same bits is checked.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import torch
from gpu_round import SHAPES, federation, model

from equipoise import registry
from equipoise.engine.memory import OF_THE_USER, keep_memory
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train

CASES: dict[str, tuple[str, str, Train]] = {
    "FedAvg, MLP, batch 10": ("fedavg", "mlp", Train(batch=10, lr=0.01)),
    "FedLF, MLP, batch 50": ("fedlf", "mlp", Train(batch=50, lr=0.01)),
    "FedAvg, its CNN here, batch 10": ("fedavg", "cnn", Train(batch=10, steps=6, lr=0.01)),
    "FedAvg, Ditto's CNN, two steps": ("fedavg", "cnn-ditto", Train(batch=16, steps=2, lr=0.01)),
    "Ditto, its CNN, two steps": ("ditto", "cnn-ditto", Train(batch=16, steps=2, lr=0.01)),
    "RFFL, its CNN, ten steps": ("rffl", "cnn-rffl", Train(batch=16, steps=10, lr=0.01)),
    "FedAvg, CNN, all samples at once": ("fedavg", "cnn", Train(batch=0, lr=0.01)),
}
PARTS = {"ditto": {"lam": 1.0}, "rffl": {"grace": 1 << 30}}


def one(case: str, rounds: int, keep: bool) -> dict[str, float | str]:
    """In a process of its own."""
    torch.set_num_threads(1)
    if keep and not keep_memory():
        sys.exit("there is no glibc here, or MALLOC_ variables are set: nothing to compare")
    method, name, train = CASES[case]
    scenario = Scenario(federation(shape=SHAPES.get(name, (1, 28, 28))), model(name), train, Participation(10))
    sim = Simulation(scenario, registry.get("methods", method).make(**PARTS.get(method, {})), Run(device="cpu"))
    sim.step()
    began, filled = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        sim.step()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    end = hashlib.sha256(sim.server.w.numpy().tobytes()).hexdigest()
    spent = {"seconds": time.process_time() - began, "pages": usage.ru_minflt - filled}
    return {**{what: much / rounds for what, much in spent.items()}, "mib": usage.ru_maxrss / 1024, "end": end}


def asked(case: str, rounds: int, keep: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--rounds", str(rounds), "--one", case, *(["--keep"] if keep else [])]
    env = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_USER)}
    found: dict[str, float] = json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout)
    return found


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    options.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        return print(json.dumps(one(given.one, given.rounds, given.keep)))
    for case in CASES:
        turns = [[asked(case, given.rounds, keep) for keep in (False, True)] for _ in range(given.repeats)]
        plain, kept = zip(*turns, strict=True)
        assert len({run["end"] for turn in turns for run in turn}) == 1, case
        ratios = [a["seconds"] / b["seconds"] for a, b in turns]
        print(f"{case}: {spread([r['seconds'] for r in plain])} s, kept {spread([r['seconds'] for r in kept])} s")
        print(f"  {spread(ratios)} x; pages {plain[0]['pages']:.0f}, {kept[0]['pages']:.0f}", end="; ")
        print(f"MiB {max(r['mib'] for r in plain):.0f}, {max(r['mib'] for r in kept):.0f}", flush=True)
    return None


if __name__ == "__main__":
    main()
