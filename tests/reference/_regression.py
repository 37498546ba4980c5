"""What the reference tests of personalised methods share: a linear regression, run by the engine and by hand."""

import numpy as np
import torch
from torch import nn

from equipoise.at import Schedule
from equipoise.core import Method
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.streams import Stream

Vector = np.ndarray
SIZES = (9, 4, 13, 6)
START = np.array([0.3, -0.2, 0.1])
ROUNDS, EPOCHS, BATCH, LR, DECAY = 3, 2, 4, 0.05, 0.9


def problem(seed: int, sizes: tuple[int, ...] = SIZES) -> Federation:
    g, n = Stream(seed).torch(), sum(sizes)
    x = torch.randn((n, 3), generator=g, dtype=torch.float64)
    y = torch.randn((n, 1), generator=g, dtype=torch.float64)
    parts = list(torch.split(torch.arange(n), list(sizes)))
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * len(sizes))
    return Federation(Dataset("r", x, y, 0), {"train": Split.of(parts), "validation": nobody, "test": Split.of(parts)})


def simulate(
    method: Method, fed: Federation, *, rounds: int = ROUNDS, batch: int = BATCH, lr: float = LR, decay: float = DECAY
) -> Simulation:
    """A whole run, the last training included."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(START)[None])
    train = Train(rounds=rounds, epochs=EPOCHS, batch=batch, lr=lr, lr_decay=decay)
    sim = Simulation(Scenario(fed, model, train), method, Run(dtype="float64", device="cpu"))
    for _ in range(rounds):
        sim.step()
    sim.finish()
    return sim


def models(sim: Simulation) -> tuple[Vector, Vector]:
    """The global model and the personal ones."""
    found = sim.personal()
    assert found is not None
    return sim.server.w.numpy(), found[1].numpy()


class ByHand:
    """The same data and the same batches, one client and one sample at a time."""

    def __init__(self, fed: Federation) -> None:
        self.fed, self.x, self.y = fed, fed.data.x.numpy(), fed.data.y.numpy()[:, 0]

    @property
    def clients(self) -> range:
        return range(self.fed.n_clients)

    def lr(self, round: int) -> float:
        return LR * DECAY**round

    def samples(self, k: int) -> list[int]:
        return self.fed.splits["train"].of_client(k).tolist()

    def sizes(self) -> Vector:
        return np.array([len(self.samples(k)) for k in self.clients], dtype=float)

    def steps(self, k: int, round: int, schedule: Schedule | None = None, batches: int = 1) -> list[list[list[int]]]:
        """The samples of each batch of each step of client k."""
        schedule = schedule or Schedule(EPOCHS, None, BATCH)
        everyone = torch.arange(self.fed.n_clients)
        plan = plan_batches(self.fed.splits["train"], everyone, schedule, Stream(0).child("batch", round), batches)
        return [
            [plan.index[s, j, k][plan.mask[s, j, k]].tolist() for j in range(batches)] for s in range(plan.steps[k])
        ]

    def gradient(self, v: Vector, samples: list[int]) -> Vector:
        total = np.zeros_like(v)
        for i in samples:
            total += (self.x[i] @ v - self.y[i]) * self.x[i]
        return total / len(samples)

    def loss(self, v: Vector, k: int) -> float:
        return float(np.mean([0.5 * (self.x[i] @ v - self.y[i]) ** 2 for i in self.samples(k)]))

    def normal(self) -> tuple[Vector, Vector]:
        """A and c of the normal equations A w = c of all clients' mean losses together, [n d, n d] and [n d]."""
        a, c = np.zeros((3 * len(self.clients),) * 2), np.zeros(3 * len(self.clients))
        for k in self.clients:
            x, y, at = self.x[self.samples(k)], self.y[self.samples(k)], slice(3 * k, 3 * k + 3)
            a[at, at], c[at] = x.T @ x / len(x), x.T @ y / len(x)
        return a, c

    def mean(self, rows: list[Vector], by_size: bool) -> Vector:
        p = self.sizes() if by_size else np.ones(len(rows))
        total = np.zeros_like(rows[0])
        for k, row in enumerate(rows):
            total = total + p[k] * row
        return np.asarray(total / p.sum())

    def fedavg(self) -> Vector:
        """What FedAvg, by size, makes of START."""
        w = START
        for t in range(ROUNDS):
            ends = []
            for k in self.clients:
                wk = w.copy()
                for (b,) in self.steps(k, t):
                    wk = wk - self.lr(t) * self.gradient(wk, b)
                ends.append(wk)
            w = self.mean(ends, by_size=True)
        return w
