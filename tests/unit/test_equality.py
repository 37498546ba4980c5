"""Clients as rows, one client after the other, and a bare PyTorch loop: the same numbers."""

import pytest
import torch
from torch import nn

from equipoise.at import Schedule
from equipoise.core import Method
from equipoise.engine.batches import plan_batches
from equipoise.engine.settings import Participation, Run, Train
from equipoise.methods.fedprox import fedprox
from equipoise.methods.local import local
from equipoise.streams import Stream
from tests.small import federation, relative, simulation

IMAGE = {"shape": (1, 8, 8)}
MODELS = {
    "linear": ("linear", {}, {}),
    "mlp": ("mlp", {"hidden": (8, 8)}, {}),
    "cnn": ("cnn", {"channels": (3, 4), "kernel": 3, "hidden": (8,), "dropout": (0.3,)}, IMAGE),
}
COHORTS = {"unequal": (7, 25, 1, 12), "one client": (13,), "equal": (10, 10), "an empty one": (0, 9, 3)}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sizes", COHORTS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "train", [Train(epochs=3, batch=4, lr=0.1), Train(steps=20, batch=5, lr=0.1), Train(batch=0, lr=0.1)]
)
def test_vectorised_equals_loop(dtype: str, sizes: str, model: str, train: Train) -> None:
    kind, params, data = MODELS[model]
    made = []
    for executor in ("vmap", "loop"):
        run = Run(executor=executor, dtype=dtype)  # type: ignore[arg-type]
        sim = simulation(fedprox(0.1), federation(COHORTS[sizes], **data), model=kind, train=train, run=run, **params)
        plan = sim.server.plan()
        made.append(sim.simulator.train(plan, plan.ids, {}).updates)
    rows = made[1].norm(dim=1) > 0
    assert rows.tolist() == [n > 0 for n in COHORTS[sizes]]
    for a, b in zip(made[0][rows], made[1][rows], strict=True):
        assert relative(a, b) < (1e-10 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn"])
def test_the_loop_equals_bare_pytorch_to_the_bit(model: str) -> None:
    kind, params, data = MODELS[model]
    fed = federation((9, 25), **data)
    params = {**params, "dropout": ()} if model == "cnn" else params
    sim = simulation(fed=fed, model=kind, train=Train(epochs=2, batch=4, lr=0.1), run=Run(executor="loop"), **params)
    plan = sim.server.plan()
    got = sim.simulator.train(plan, plan.ids, {}).end
    batches = plan_batches(fed.splits["train"], torch.arange(2), Schedule(2, None, 4), Stream(0).child("batch", 0))
    for k in range(2):
        module = sim.scenario.model
        weights = {n: p.detach().clone() for n, p in module.named_parameters()}
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        for s in range(batches.steps[k]):
            at = batches.index[s, 0, k][batches.mask[s, 0, k]]
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(fed.data.x[at]), fed.data.y[at]).backward()
            optimiser.step()
        flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        assert relative(got[k], flat) < 1e-6
        with torch.no_grad():
            for n, p in module.named_parameters():
                p.copy_(weights[n])


@pytest.mark.parametrize("method", [Method(), fedprox(0.5), local()])
def test_workers_change_no_bit(method: Method) -> None:
    ends = []
    for workers in (1, 2, 3):
        run = Run(executor="loop", workers=workers)
        sim = simulation(method, run=run, participation=Participation(per_round=3), model="mlp", hidden=(8,))
        for _ in range(4):
            sim.step()
        ends.append(sim.dump())
    for other in ends[1:]:
        assert all(torch.equal(t, other[n]) for n, t in ends[0].items())


def test_dropout_is_on_in_training_and_off_in_evaluation() -> None:
    fed = federation((9,), shape=(1, 8, 8))
    kinds = {"channels": (3,), "kernel": 3, "hidden": (8,), "dropout": (0.5,)}
    sim = simulation(fed=fed, model="cnn", **kinds)
    same = simulation(fed=fed, model="cnn", **{**kinds, "dropout": ()})
    assert (sim.evaluate("test")["global"].loss == same.evaluate("test")["global"].loss).all()
    sim.step()
    same.step()
    assert relative(sim.server.w, same.server.w) > 1e-6
