"""A FedAvg round against the same steps in a bare PyTorch loop: CPU time, as a ratio, in one run.

    python benchmarks/fedavg_round.py

10 clients × 600 samples of Fashion-MNIST's size, MLP 784-200-200-10, batch 50, one epoch, one thread. The two must
arrive at the same model before any time is printed. The loop does what a careful person would write: one model, one
optimiser, slices of a tensor.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from equipoise.at import Schedule
from equipoise.core import Method
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.models import build
from equipoise.streams import Stream

K, N, BATCH, LR, REPEATS = 10, 600, 50, 0.05, 15


def federation() -> Federation:
    g = Stream(0).torch()
    x = torch.rand((K * N, 1, 28, 28), generator=g)
    y = torch.randint(10, (K * N,), generator=g)
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * K)
    train = Split.of(list(torch.split(torch.arange(K * N), N)))
    return Federation(Dataset("random", x, y, 10), {"train": train, "validation": nobody, "test": nobody})


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def bare(fed: Federation, model: nn.Module) -> Callable[[], Tensor]:
    batches = plan_batches(fed.splits["train"], torch.arange(K), Schedule(1, None, BATCH), Stream(0).child("batch", 0))
    # The loop may slice: every client's samples are laid out in the order in which it will see them.
    order = batches.index[:, 0].transpose(0, 1).reshape(K, N)
    xs, ys = fed.data.x[order], fed.data.y[order]

    def round() -> Tensor:
        start = flat(model)
        total = torch.zeros_like(start)
        for k in range(K):
            mine = copy.deepcopy(model)
            optimiser = torch.optim.SGD(mine.parameters(), lr=LR)
            for s in range(0, N, BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(mine(xs[k, s : s + BATCH]), ys[k, s : s + BATCH]).backward()
                optimiser.step()
            total += (start - flat(mine)) / K
        return start - total

    return round


def ours(fed: Federation, model: nn.Module, executor: str) -> Callable[[], Tensor]:
    scenario = Scenario(fed, model, Train(rounds=1, batch=BATCH, lr=LR))
    simulation = Simulation(scenario, Method(), Run(executor=executor))  # type: ignore[arg-type]
    start = simulation.server.dump()

    def round() -> Tensor:
        simulation.server.load(start)
        simulation.step()
        return simulation.server.w

    return round


def main() -> None:
    torch.set_num_threads(1)
    fed = federation()
    model = build("mlp", (1, 28, 28), 10, Stream(1), hidden=(200, 200))
    jobs = {"bare loop": bare(fed, model), "vmap": ours(fed, model, "vmap"), "loop": ours(fed, model, "loop")}
    ends = {name: job() for name, job in jobs.items()}
    start = flat(model)
    for name, end in ends.items():
        away = float((end - ends["bare loop"]).norm() / (ends["bare loop"] - start).norm())
        print(f"{name:10} relative distance of the update from the bare loop's: {away:.1e}")
        assert away < 1e-5, name
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(REPEATS):
        for name, job in jobs.items():
            began = time.process_time()
            job()
            times[name].append(time.process_time() - began)
    for name in jobs:
        ratios = [a / b for a, b in zip(times[name], times["bare loop"], strict=True)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        spent = 1000 * statistics.median(times[name])
        print(f"{name:10} {spent:7.1f} CPU ms   {middle:.2f} x bare loop ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
