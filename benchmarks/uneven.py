"""Rounds with clients that hold unlike amounts of data: in legs, in one piece, and one client after the other.

    python benchmarks/uneven.py [--device cpu] [--model mlp] [--batch 50] [--rounds 15] [--method fedavg]

100 clients with 60,000 random images between them, in shares as Dirichlet(0.1) over ten classes gives them; ten in a
round, one local epoch. Three simulations of the same run take their rounds in turn:

- *legs*: when half of the clients have no step left, the others go on without them (`engine/legs.py`)
- *one piece*: all rows go through all steps, as many as the client with the most data takes
- *one by one*: the loop executor

Before any time: how many steps of clients each way takes, against those that are needed, and how far the models of all
three are from each other after a round, in float64.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from gpu_round import METHODS, SHAPES, federation, simulation, wait

from equipoise import registry
from equipoise.data.federation import Federation, Split
from equipoise.engine.legs import halves, stretches
from equipoise.engine.run import Simulation
from equipoise.streams import Stream

COHORT = 10


def uneven(shape: tuple[int, ...]) -> Federation:
    """The same images, in shares of unlike size."""
    fed, rng = federation(shape=shape), Stream(2).numpy()
    shares = rng.dirichlet([0.1] * fed.n_clients, 10).mean(0)  # of ten classes, each cut by itself
    sizes = (shares * len(fed.data)).astype(int).clip(1)
    sizes[sizes.argmax()] -= sizes.sum() - len(fed.data)
    train = Split.of(list(torch.split(torch.arange(len(fed.data)), sizes.tolist())))
    return Federation(fed.data, {**fed.splits, "train": train})


def ways(make: Callable[..., Simulation], dtype: str) -> dict[str, Simulation]:
    found = {name: make(executor, dtype) for name, executor in NAMES.items()}
    for name in ("legs", "one piece"):
        replay = found[name].simulator.replay
        assert replay is not None
        replay.relay = name == "legs"
    return found


NAMES = {"legs": "vmap", "one piece": "vmap", "one by one": "loop"}


def taken(sim: Simulation, batch: int, rounds: int) -> str:
    """Steps of clients that are computed, over those that are needed, in the first rounds."""
    needed = padded = legs = 0
    for r in range(rounds):
        ids = sim.server.participants.draw(r, sim.server.excluded)
        steps = [-(-int(n) // batch) for n in sim.simulator.host.size[ids]]
        needed, padded = needed + sum(steps), padded + COHORT * max(steps)
        legs += sum((b - a) * few for a, b, few in stretches(steps, COHORT, halves(COHORT)))
    more = f"legs {legs / needed:.2f} x, one piece {padded / needed:.2f} x"
    return f"steps of clients: {needed / rounds:.0f} needed in a round; {more}"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cpu")
    options.add_argument("--model", default="mlp")
    options.add_argument("--method", default="fedavg")
    options.add_argument("--batch", type=int, default=50)
    options.add_argument("--rounds", type=int, default=15)
    given = options.parse_args()
    fed = uneven(SHAPES.get(given.model, (1, 28, 28)))

    def make(executor: str, dtype: str) -> Simulation:
        method = registry.get("methods", given.method).make(**METHODS.get(given.method, {}))
        return simulation(fed, given.model, COHORT, given.batch, given.device, executor, "on", dtype, method)

    exact = ways(make, "float64")
    for sim in exact.values():
        sim.step()
    print(taken(exact["legs"], given.batch, 200))
    right = exact["one by one"].server.w
    for name, sim in exact.items():
        away = (sim.server.w - right).norm() / (right - sim.simulator.w0).norm()
        print(f"{name}: {float(away):.0e} from one by one")
    sims = ways(make, "float32")
    each: dict[str, list[float]] = {name: [] for name in sims}
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    for turn in range(given.rounds + 5):  # of which five, with recordings of all sizes, are not counted
        for name, sim in sims.items():
            wait(given.device)
            began = clock()
            sim.step()
            wait(given.device)
            if turn >= 5:
                each[name].append(1000 * (clock() - began))
    for name, ms in each.items():
        ratio = statistics.mean(ms) / statistics.mean(each["legs"])
        print(f"{name}: {statistics.mean(ms):.1f} ms a round on average, {ratio:.2f} x legs")


if __name__ == "__main__":
    main()
