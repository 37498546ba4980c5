"""Table 1 of Ditto's paper in small, on the embedded digits: benign clients' accuracy, its mean minus its deviation.

As there: five classes on each device, 10 devices a round, two local iterations, batches of 16, the plain mean, lam
chosen by each device, from the smaller candidates when the attack is strong. Ours: a linear model, 20 clients, 100
rounds, 30% malicious. The step size is the best of 0.05, 0.1, 0.2 and 0.5 for FedAvg on clean validation data.
"""

from functools import cache

import pytest

from equipoise.aggregators.clip import Clip
from equipoise.attacks.label_noise import LabelNoise
from equipoise.attacks.model_replacement import ModelReplacement
from equipoise.attacks.random_update import RandomUpdate
from equipoise.core import Method, ServerRule, WeightedMean, chain
from equipoise.data.datasets import load
from equipoise.data.partition import partition
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.methods.ditto import ditto
from equipoise.methods.local import local
from equipoise.models import build
from equipoise.streams import Stream
from equipoise.threat import Attack

SEEDS = range(5)
A1, A2, A3 = LabelNoise(fraction=0.3), RandomUpdate(fraction=0.3), ModelReplacement(fraction=0.3)
POISONED_A3 = ModelReplacement(fraction=0.3, label_noise=True)


def scores(method: Method, attack: Attack, seed: int) -> dict[str, float]:
    """Mean minus deviation of the benign clients' test accuracy, for the "global" and the "personal" models."""
    fed = partition(load("digits"), "pathological", classes=5, clients=20, test=0.3, validation=0.2, seed=seed)
    model, train = build("linear", (64,), 10, Stream(seed).child("init")), Train(rounds=100, steps=2, batch=16, lr=0.5)
    scenario = Scenario(fed, model, train, Participation(per_round=10), attack=attack)
    sim = Simulation(scenario, method, Run(seed=seed, device="cpu"))
    for _ in range(train.rounds):
        sim.step()
    benign = {name: e.accuracy[~sim.malicious.numpy()] for name, e in sim.evaluate("test").items()}
    return {name: float(a.mean() - a.std()) for name, a in benign.items()}


@cache
def alone() -> float:
    """Benign clients alone do the same under every attack, and one fraction makes the same clients malicious."""
    return sum(scores(local(), A1, seed)["personal"] for seed in SEEDS) / len(SEEDS)


@cache
def together(attack: Attack, server: ServerRule | None = None) -> tuple[float, float]:
    """Of the personal models, and of the global one, which is FedAvg's to the bit (tests/unit/test_ditto.py)."""
    method = ditto(choose="validation", strong=isinstance(attack, ModelReplacement), server=server)
    found = [scores(method, attack, seed) for seed in SEEDS]
    return tuple(sum(f[name] for f in found) / len(SEEDS) for name in ("personal", "global"))  # type: ignore[return-value]


@pytest.mark.parametrize("attack", [A1, A2, A3], ids=["A1", "A2", "A3"])
def test_personal_models_beat_the_global_model_and_training_alone(attack: Attack) -> None:
    personal, everyone = together(attack)
    assert personal > everyone
    assert personal > alone()


@pytest.mark.slow
def test_scaled_poison_wrecks_the_global_model_and_clipping_helps_the_personal_ones() -> None:
    """Table 3's remedy. Behind a plain mean the pull is towards garbage, and there training alone is better."""
    personal, everyone = together(POISONED_A3)
    assert everyone + 0.3 < personal < alone()
    defended, defended_everyone = together(POISONED_A3, chain(Clip(), WeightedMean("uniform")))
    assert defended > max(personal, defended_everyone)
