"""Personal models are evaluated some clients and some samples at a time: how many at once changes no result."""

import pytest
import torch

from equipoise import models
from equipoise.data import load, partition
from equipoise.engine import evaluate, risk
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.methods.ditto import ditto
from equipoise.metrics import Evaluation
from equipoise.streams import Stream


def evaluated(executor: str) -> Evaluation:
    """Ditto's personal CNNs of seven clients, five of them never drawn."""
    data = load("digits")
    federation = partition(data, "lognormal", clients=7, validation=0.1)
    model = models.build("cnn", (1, 8, 8), 10, Stream(0), channels=[3, 4], kernel=3, hidden=[8])
    train, drawn = Train(rounds=1, steps=2, batch=16), Participation(per_round=2)
    run = Run(executor=executor)  # type: ignore[arg-type]
    simulation = Simulation(Scenario(federation, model, train, drawn), ditto(), run)
    simulation.step()
    return simulation.evaluate("test")["personal"]


@pytest.fixture(scope="module")
def whole() -> Evaluation:
    return evaluated("loop")


@pytest.mark.parametrize(("executor", "numbers", "samples"), [("vmap", 1, 2048), ("vmap", 5000, 7), ("loop", 1, 7)])
def test_how_many_are_evaluated_at_once_changes_nothing(
    executor: str, numbers: int, samples: int, whole: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_NUMBERS", numbers)
    for module in (evaluate, risk):
        monkeypatch.setattr(module, "CHUNK", samples)
    found = evaluated(executor)
    assert (found.correct == whole.correct).all() and (found.class_correct == whole.class_correct).all()
    torch.testing.assert_close(torch.tensor(found.loss), torch.tensor(whole.loss), rtol=1e-5, atol=1e-6)
