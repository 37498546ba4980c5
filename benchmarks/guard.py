"""What clients that lie about their losses do to methods that listen to losses, with and without the guard.

    python benchmarks/guard.py [--seeds 0 1 2 3 4] [--methods afl fedlf ...]

The embedded digits, 20 clients with unlike shares of the classes (Dirichlet 0.3), a linear model, 30 rounds of 5 local
steps. In every run the same 4 clients of a seed train honestly but report a loss (and EAGLE's gap) of 1e30, of 10 times
the truth, or of 0. Numbers are percent of test samples over the 16 others, means over the last 5 rounds and over seeds:
accuracy, its standard deviation between clients, and that of the worst 10% of clients in runs where nobody lies; then
what the lies cost compared with the same guard and nobody lying, with the worst seed in brackets; last, without a
guard, what it costs if the 4 clients stay away.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from functools import cache

import numpy as np
import torch
from torch import Tensor

from equipoise.at import Stop
from equipoise.attacks.lie_loss import LieLoss
from equipoise.core import Method
from equipoise.data.datasets import load
from equipoise.data.federation import Federation
from equipoise.data.partition import partition
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Admission, Run, Train
from equipoise.methods.afl import afl
from equipoise.methods.eagle import eagle
from equipoise.methods.fedlf import fedlf
from equipoise.methods.fedmdfg import fedmdfg
from equipoise.methods.qffl import qffl
from equipoise.methods.term import term
from equipoise.models import build
from equipoise.streams import Stream

N, BAD, ROUNDS, LAST = 20, 4, 30, 5
METHODS = {
    **{"qffl": qffl(), "qffl-5": qffl(5.0), "afl": afl(), "term": term(), "term-5": term(5.0), "fedlf": fedlf()},
    # With lam = 1 clients' weights turn negative here, and nothing is learned even if nobody lies.
    **{"eagle-0.1": eagle(0.1, scale="sqrt_k"), "eagle-0.2": eagle(0.2, scale="sqrt_k"), "fedmdfg": fedmdfg()},
}
CLAIMS = ("huge", 10.0, "zero")
Claim = str | float | None


@cache
def federation(seed: int) -> Federation:
    return partition(
        load("digits"), "dirichlet", alpha=0.3, clients=N, test=0.3, validation=0.15, min_size=20, seed=seed
    )


def liars(seed: int) -> tuple[int, ...]:
    return tuple(sorted(Stream(seed).child("liars").bits(torch.arange(N)).argsort()[:BAD].tolist()))


_REACHED: dict[tuple[int, Stop], Tensor] = {}


def run(method: Method, seed: int, guard: str, claim: Claim, absent: bool = False) -> tuple[float, float, float]:
    """Accuracy of the honest: mean, standard deviation, worst 10%, in percent."""
    bad = liars(seed)
    attack = None if claim is None else LieLoss(clients=bad, claim=claim)  # type: ignore[arg-type]
    model = build("linear", (1, 8, 8), 10, Stream(seed).child("init"))
    train, admission = Train(rounds=ROUNDS, steps=5, batch=20, lr=0.5), Admission(guard=guard)  # type: ignore[arg-type]
    scenario = Scenario(federation(seed), model, train, admission=admission, attack=attack)
    sim = Simulation(scenario, method, Run(seed=seed, device="cpu"))
    sim.server.excluded[list(bad)] = absent

    def reached(stop: Stop) -> Tensor:  # what clients reach alone is the same in all runs of a seed
        if (seed, stop) not in _REACHED:
            _REACHED[seed, stop] = sim.simulator._fit_alone(torch.arange(N), stop)
        return _REACHED[seed, stop]

    sim.simulator.reached = reached
    last = []
    for r in range(ROUNDS):
        sim.step()
        if r >= ROUNDS - LAST:
            last.append(np.delete(sim.evaluate("test")["global"].accuracy, bad))
    found = 100 * np.mean(last, axis=0)
    return float(found.mean()), float(found.std()), float(np.sort(found)[: round(0.1 * len(found))].mean())


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--guards", nargs="+", default=["off", "winsorise", "rank", "redescend"])
    args = parser.parse_args()
    told = "".join(f"{c if isinstance(c, str) else f'{c:g} x':>15}" for c in CLAIMS)
    print(f"{'method':11}{'guard':11}{'accuracy':>9}{'std':>6}{'worst':>7}{told}{'absent':>15}", flush=True)
    for name in args.methods:
        for guard in args.guards:
            clean = np.array([run(METHODS[name], s, guard, None) for s in args.seeds])
            columns = [[run(METHODS[name], s, guard, c)[0] for s in args.seeds] for c in CLAIMS]
            if guard == "off":
                columns.append([run(METHODS[name], s, guard, None, absent=True)[0] for s in args.seeds])
            apart = [np.array(c) - clean[:, 0] for c in columns]
            mean, std, worst = clean.mean(0)
            costs = "".join(f"{a.mean():+7.1f} ({a.min():+5.1f})" for a in apart)
            print(f"{name:11}{guard:11}{mean:9.1f}{std:6.1f}{worst:7.1f}{costs}", flush=True)


if __name__ == "__main__":
    main()
