"""On a CUDA device: the same numbers as on the CPU, for every executor, method and attack there is."""

import pytest
import torch

from equipoise import registry
from equipoise.attacks import LabelNoise, SignFlip
from equipoise.engine.settings import Participation, Run, Train
from equipoise.methods import fedavg, fedprox
from equipoise.streams import Stream
from equipoise.threat import Attack
from tests.small import federation, relative, simulation

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
MODELS = {
    "mlp": ("mlp", {"hidden": (8, 8)}, (6,)),
    "cnn": ("cnn", {"channels": (3, 4), "kernel": 3, "hidden": (8,), "dropout": (0.3,)}, (1, 8, 8)),
}


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("attack", [None, LabelNoise(fraction=0.25), SignFlip(fraction=0.25)])
@pytest.mark.parametrize("method", registry.methods())
def test_cuda_equals_cpu(method: str, attack: Attack | None, model: str, executor: str) -> None:
    kind, params, shape = MODELS[model]
    ends = []
    for device in ("cpu", "cuda"):
        sim = simulation(
            registry.methods()[method].make(),
            federation((7, 25, 1, 12), shape=shape),
            model=kind,
            attack=attack,
            train=Train(epochs=2, batch=4, lr=0.05),
            participation=Participation(per_round=3),
            run=Run(executor=executor, dtype="float64", device=device),  # type: ignore[arg-type]
            **params,
        )
        for _ in range(3):
            sim.step()
        found = sim.evaluate("test")
        ends.append((sim.dump(), {k: e.loss for k, e in found.items()}))
    for name, t in ends[0][0].items():
        assert relative(ends[1][0][name].cpu().double(), t.double()) < 1e-9, name
    for kind, loss in ends[0][1].items():
        assert loss == pytest.approx(ends[1][1][kind], rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", MODELS)
def test_rows_equal_loop(model: str, dtype: str) -> None:
    kind, params, shape = MODELS[model]
    made = []
    for executor in ("vmap", "loop"):
        run = Run(executor=executor, dtype=dtype, device="cuda")  # type: ignore[arg-type]
        train = Train(steps=20, batch=5, lr=0.1)
        sim = simulation(fedprox(0.1), federation(shape=shape), model=kind, train=train, run=run, **params)
        start = sim.server.w.clone()
        sim.step()
        made.append(start - sim.server.w)
    assert relative(*made) < (1e-5 if dtype == "float32" else 1e-10)


def test_streams_agree_to_the_bit() -> None:
    ids, place = torch.arange(100)[:, None], torch.arange(1000)
    assert torch.equal(Stream(3).bits(ids, place), Stream(3).bits(ids.cuda(), place.cuda()).cpu())


def test_the_same_run_twice_gives_the_same_bits() -> None:
    ends = []
    for _ in range(2):
        sim = simulation(fedavg(), model="mlp", hidden=(8, 8), run=Run(device="cuda"))
        for _ in range(5):
            sim.step()
        ends.append(sim.server.w)
    assert torch.equal(*ends)
