"""The public comparison of robust rules on fully non-iid MNIST: which accuracy the worst attack leaves.

    EQUIPOISE_DATA=FOLDER python benchmarks/byzantine_mnist.py [--model cnn] [--seeds 3] [--held iid] [--rules RULE ...]

Karimireddy, He, Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022: 25 clients, 5 of
them malicious; the training images sorted by class and cut into 20 contiguous shards, one for each honest client; 600
rounds of one step on 32 samples, lr 0.01, momentum 0.9 at the clients; test accuracy after the last round, a mean over
the seeds. The rules are the published ones, with and without buckets of 2, and the two best of them for the bar.

tau. An honest update here is u = lr m with m <- 0.9 m + g, the sum of gradients that is not damped. The published tau
of 10 is in units of one gradient; the authors' program divides it by 1 - 0.9 to clip such sums, and multiplies with lr
after it has clipped. So ||u - v|| <= lr * 10 / (1 - 0.9) = 1 here is ||m - v'|| <= 100 there.

Models: "cnn" is conv5x32 - pool - conv5x64 - pool - 512 - 10 (1,663,370 parameters; minutes on a GPU); "narrow" is
conv5x8 - pool - conv5x16 - pool - 10, without padding (5,994; minutes for each run on a CPU); "mlp" is 784-200-10.
Pixels are standardised with the mean and the deviation of the training images, as in the authors' program.

Malicious clients' data. "iid", as in that program: each holds a random twentieth of all training images. "alike": they
are added to the honest ones and each holds one or two classes as those do, which is harder where the data matter: two
malicious clients that flip the labels of one class are as many as its honest holders, and no rule that sees updates
alone can tell which of the two names is the true one.

Malicious clients' momentum. In that program those that flip signs or labels have none, so what they send is a tenth as
long as what honest clients send; "sign flip" and "label flip" are that. "+ momentum" are those of clients that do as
honest ones do, which no published number is about: they are harder.

What differs from the program: the convolutions (there 3x3, with dropout).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from equipoise import models
from equipoise.aggregators.bucketing import Bucketing
from equipoise.aggregators.centred_clipping import CentredClipping
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.geometric_median import GeometricMedian
from equipoise.aggregators.krum import Krum
from equipoise.attacks.alie import ALIE
from equipoise.attacks.ipm import IPM
from equipoise.attacks.label_flip import LabelFlip
from equipoise.attacks.mimic import Mimic
from equipoise.attacks.sign_flip import SignFlip
from equipoise.core import ServerRule, WeightedMean, chain
from equipoise.data import Dataset, Federation, Split, load, partition
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.methods.fedsgd import fedsgd
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery

HONEST, F = 20, 5
ROUNDS, LR, MOMENTUM, BATCH = 600, 0.01, 0.9, 32
TAU = LR * 10.0 / (1.0 - MOMENTUM)
SHIFT, SPREAD = 0.1307, 0.3081  # of MNIST's training pixels

WHO: dict[str, dict[str, Any]] = {
    "iid": {"clients": tuple(range(HONEST, HONEST + F))},
    "alike": {"added": F / HONEST},
}


@dataclass(frozen=True, kw_only=True)
class WithoutMomentum(Attack):
    """Malicious clients take the momentum out of what they learned: u_t - 0.9 u_{t-1} = lr g_t."""

    def remember(self, seen: Forgery) -> dict[str, Tensor]:
        past = seen.memory.get("now", torch.zeros_like(seen.own))
        return {"past": past, "now": seen.own}

    def corrupt(self, seen: Forgery) -> Tensor:
        return seen.own - MOMENTUM * seen.memory["past"]


@dataclass(frozen=True, kw_only=True)
class ShortSignFlip(WithoutMomentum):
    """And turn it round."""

    def corrupt(self, seen: Forgery) -> Tensor:
        return -super().corrupt(seen)


@dataclass(frozen=True, kw_only=True)
class ShortLabelFlip(WithoutMomentum, LabelFlip):
    """And have learned it from flipped labels."""


ATTACKS: dict[str, Callable[..., Attack]] = {
    "sign flip": ShortSignFlip,
    "label flip": partial(ShortLabelFlip, pairs="all"),
    "mimic": Mimic,
    "IPM 0.1": partial(IPM, epsilon=0.1),
    "ALIE": ALIE,
}
HARDER: dict[str, Callable[..., Attack]] = {
    "sign flip + momentum": SignFlip,
    "label flip + momentum": partial(LabelFlip, pairs="all"),
}

_ALONE: dict[str, ServerRule] = {
    "centred clipping": CentredClipping(tau=TAU, iterations=3),
    "geometric median": GeometricMedian(),
    "median": CoordinateMedian(),
    "Krum": Krum(f=F),
    "mean": WeightedMean("uniform"),
}
RULES = {f"{name}{more}": rule for name, alone in _ALONE.items() for more, rule in
         ((" + bucketing", chain(Bucketing(s=2), alone)), ("", alone))}  # fmt: skip
BAR = "centred clipping + bucketing"
PUBLISHED = {
    BAR: 97.9,
    "centred clipping": 97.8,
    "geometric median + bucketing": 68.8,
    "geometric median": 11.3,
    "median": 9.9,
    "Krum": 1.1,
}

MODELS: dict[str, tuple[str, dict[str, object]]] = {
    "cnn": ("cnn", {}),
    "narrow": ("cnn", {"channels": (8, 16), "padding": "valid", "hidden": ()}),
    "mlp": ("mlp", {"hidden": (200,)}),
}


class Standardised(nn.Module):
    """(x - mean) / deviation, the same two numbers for all pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - SHIFT) / SPREAD


def federation(data: Dataset, seed: int, held: str = "iid") -> Federation:
    """20 honest clients with a shard each and, if their data are iid, 5 more; all are tested on all test images."""
    shards = partition(data, "pathological", classes=1, clients=HONEST, test_set="common", seed=seed)
    if held == "alike":
        return shards
    random = partition(data, "iid", clients=HONEST, test_set="common", seed=seed)
    whose = [(shards, k) for k in range(HONEST)] + [(random, k) for k in range(F)]
    train = Split.of([f.splits["train"].of_client(k) for f, k in whose])
    empty, tested = Split.of([data.y[:0]] * len(whose)), Split.common(shards.splits["test"].index, len(whose))
    splits = {"train": train, "validation": empty, "test": tested}
    return replace(shards, splits=splits, partition=f"{shards.partition}; {F} more with iid data")


def simulation(
    data: Dataset, server: ServerRule, attack: str, seed: int, model: str = "cnn", held: str = "iid"
) -> Simulation:
    kind, params = MODELS[model]
    network = models.build(kind, (1, 28, 28), 10, Stream(seed).child("init"), **params)  # type: ignore[arg-type]
    method = fedsgd(BATCH, MOMENTUM, damped=False, server=server)
    train, forger = Train(rounds=ROUNDS, lr=LR), (ATTACKS | HARDER)[attack](**WHO[held])
    # On a CPU "auto" takes convolutions client by client; these are small enough to be faster as rows.
    run = Run(seed=seed, eval_every=0, executor="vmap" if model == "narrow" else "auto")
    world = Scenario(federation(data, seed, held), nn.Sequential(Standardised(), network), train, attack=forger)
    return Simulation(world, method, run)


def accuracy(data: Dataset, server: ServerRule, attack: str, seed: int, model: str = "cnn", held: str = "iid") -> float:
    """Of the last model, on all test images."""
    sim = simulation(data, server, attack, seed, model, held)
    for _ in range(ROUNDS):
        sim.step()
    return float(sim.evaluate("test")["global"].accuracy[0])


def worst(of_attacks: dict[str, list[float]]) -> tuple[str, float]:
    """The attack with the lowest mean accuracy, and that."""
    means = {name: statistics.mean(found) for name, found in of_attacks.items()}
    name = min(means, key=lambda n: means[n])
    return name, means[name]


def table(data: Dataset, model: str, held: str, rules: Iterable[str], seeds: int) -> None:
    print(
        f"model {model}, malicious data {held}, {seeds} seed(s), test accuracy in %; in brackets one by one", flush=True
    )
    for rule in rules:
        found: dict[str, list[float]] = {}
        for name in ATTACKS | HARDER:
            began = time.monotonic()
            found[name] = [100 * accuracy(data, RULES[rule], name, seed, model, held) for seed in range(seeds)]
            each = ", ".join(f"{a:.2f}" for a in found[name])
            took = (time.monotonic() - began) / seeds
            print(f"  {rule:30}{name:22}{statistics.mean(found[name]):6.2f}  ({each})  {took:.0f} s a run", flush=True)
        name, lowest = worst({n: found[n] for n in ATTACKS})
        published = f"; published {PUBLISHED[rule]}" if rule in PUBLISHED else ""
        print(f"{rule:32}worst: {name} {lowest:.2f}{published}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="cnn" if torch.cuda.is_available() else "narrow")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held", choices=WHO, default="iid")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    table(load("mnist"), chosen.model, chosen.held, chosen.rules, chosen.seeds)


if __name__ == "__main__":
    main()
