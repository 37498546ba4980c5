"""Equipoise: `Simulation.step`, with everything that a round does: draw, plan, train, admit, aggregate, record."""

from __future__ import annotations

import argparse

import torch
from common import Problem, begin

from equipoise.core import Method
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.models import build
from equipoise.modules import weights
from equipoise.streams import Stream


def federation(x: torch.Tensor, y: torch.Tensor, clients: int) -> Federation:
    """Everyone has as many samples, in the order in which they lie."""
    train = Split.of(list(torch.arange(len(x)).chunk(clients)))
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * clients)
    return Federation(Dataset("random", x, y, 10), {"train": train, "validation": nobody, "test": nobody})


def scenario(fed: Federation, model: str, rounds: int, per_round: int, batch: int, lr: float) -> Scenario:
    net = build(model, (1, 28, 28), 10, Stream(1))  # the defaults are the two networks of the comparison
    return Scenario(fed, net, Train(rounds=rounds, batch=batch, lr=lr), Participation(per_round=per_round))


def simulation(given: Problem, executor: str, workers: int) -> Simulation:
    fed = federation(torch.from_numpy(given.x), torch.from_numpy(given.y), len(given.sizes))
    _, k, _, batch = given.index.shape
    world = scenario(fed, given.model, given.rounds, k, batch, given.lr)
    for p, w in zip(weights(world.model).values(), given.weights.values(), strict=True):
        p.data.copy_(torch.from_numpy(w))
    dtype = str(given.x.dtype)
    run = Run(executor=executor, workers=workers, replay="on", device="cpu", dtype=dtype)  # type: ignore[arg-type]
    return Simulation(world, Method(), run)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--executor", default="vmap")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    given, course = begin()
    sim = simulation(given, asked.executor, asked.workers)
    for t in range(given.rounds):
        record = sim.step()
        assert list(record.drawn) == given.drawn[t].tolist(), "the problem was exported from another draw"
        course.ended(t + 1)
    replay = sim.simulator.replay
    assert replay is not None and not replay.reasons, replay and replay.reasons
    end = sim.server.layout.tensors(sim.server.w[None])
    course.finish({n: end[n][0].numpy() for n in given.weights}, torch=torch.__version__)


if __name__ == "__main__":
    main()
