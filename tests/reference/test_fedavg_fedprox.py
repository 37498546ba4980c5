"""FedAvg and FedProx against a slow, literal transcription in numpy: linear regression, written out by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.at import Schedule
from equipoise.core import Method, WeightedMean
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedprox import fedprox
from equipoise.methods.local import local
from equipoise.streams import Stream

SIZES = (9, 4, 13)
ROUNDS, EPOCHS, BATCH, LR, DECAY = 3, 2, 4, 0.05, 0.9


def problem() -> Federation:
    g = Stream(4).torch()
    x = torch.randn((sum(SIZES), 3), generator=g, dtype=torch.float64)
    y = torch.randn((sum(SIZES), 1), generator=g, dtype=torch.float64)
    parts = list(torch.split(torch.arange(sum(SIZES)), list(SIZES)))
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * len(SIZES))
    return Federation(Dataset("r", x, y, 0), {"train": Split.of(parts), "validation": nobody, "test": Split.of(parts)})


def simulate(method: Method, fed: Federation) -> Simulation:
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64))
    train = Train(rounds=ROUNDS, epochs=EPOCHS, batch=BATCH, lr=LR, lr_decay=DECAY)
    sim = Simulation(Scenario(fed, model, train), method, Run(dtype="float64"))
    for _ in range(ROUNDS):
        sim.step()
    return sim


def literal(fed: Federation, mu: float, uniform: bool) -> np.ndarray:
    """McMahan et al. Algorithm 1 with Li et al.'s proximal term, one sample, one batch, one client at a time."""
    x, y = fed.data.x.numpy(), fed.data.y.numpy()[:, 0]
    w = np.array([0.3, -0.2, 0.1])
    for t in range(ROUNDS):
        batches = plan_batches(
            fed.splits["train"], torch.arange(3), Schedule(EPOCHS, None, BATCH), Stream(0).child("batch", t)
        )
        ends = []
        for k in range(3):
            wk = w.copy()
            for s in range(batches.steps[k]):
                samples = batches.index[s, 0, k][batches.mask[s, 0, k]].tolist()
                gradient = np.zeros(3)
                for i in samples:
                    gradient += (x[i] @ wk - y[i]) * x[i] / len(samples)
                wk = wk - LR * DECAY**t * (gradient + mu * (wk - w))
            ends.append(wk)
        n = np.ones(3) if uniform else np.array(SIZES, dtype=float)
        w = sum(n[k] * ends[k] for k in range(3)) / n.sum()
    return w


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0])
def test_fedavg_and_fedprox_are_their_equations(mu: float, uniform: bool) -> None:
    fed, server = problem(), WeightedMean("uniform" if uniform else "size")
    method = fedprox(mu, server=server) if mu else fedavg(server=server)
    assert simulate(method, fed).server.w.numpy() == pytest.approx(literal(fed, mu, uniform), rel=1e-9)


def test_mu_zero_is_fedavg_to_the_bit() -> None:
    assert torch.equal(simulate(fedprox(0.0), problem()).server.w, simulate(fedavg(), problem()).server.w)


def test_one_client_alone_is_fedavg_of_that_client() -> None:
    fed = problem()
    lonely = Federation(fed.data, {n: Split(s.index, s.start[:1], s.size[:1]) for n, s in fed.splits.items()})
    alone, average = simulate(local(), lonely), simulate(fedavg(), lonely)
    assert alone.personal() is not None
    assert torch.allclose(alone.personal()[1][0], average.server.w, rtol=1e-12)  # type: ignore[index]
    assert torch.equal(alone.server.w, alone.simulator.w0)
