"""The public bar on fully non-iid MNIST: the worst of five attacks leaves centred clipping with buckets 97% or more.

25 clients, 5 malicious, 600 rounds, three seeds; `benchmarks/byzantine_mnist.py` says what exactly is run and why tau
is 1, and prints the whole table. The model is a CNN with two convolutions: the one of the table with a GPU, a narrow
one (5,994 parameters) without, which takes minutes a run. An MLP does not get as far in 600 such steps, malicious
clients or none (784-100-10 reaches 95%, 784-500-10 95.6%).
"""

import os
import statistics
from functools import cache

import pytest
import torch
from benchmarks.byzantine_mnist import ATTACKS, BAR, HONEST, RULES, TAU, accuracy, simulation

from equipoise.data import Dataset, load
from equipoise.data.datasets import where

pytestmark = [pytest.mark.data, pytest.mark.slow]
MODEL = "cnn" if torch.cuda.is_available() else "narrow"
SEEDS, ENOUGH = 3, 0.97


@cache
def mnist() -> Dataset:
    if os.environ.get("EQUIPOISE_DATA") is None or where("mnist") is None:
        pytest.skip("EQUIPOISE_DATA holds no mnist")
    return load("mnist")


def test_the_setting_is_the_published_one() -> None:
    sim = simulation(mnist(), RULES[BAR], "mimic", seed=0, model=MODEL)
    counts = sim.simulator.federation.class_counts()[:HONEST]
    assert sim.n_clients == 25 and sim.malicious.nonzero().flatten().tolist() == [20, 21, 22, 23, 24]
    assert counts.sum(1).tolist() == [3000] * HONEST
    # Contiguous shards of sorted labels: one class each, or two neighbours where a shard straddles them.
    held = [row.nonzero().flatten().tolist() for row in counts]
    assert all(len(c) == 1 or (len(c) == 2 and c[1] == c[0] + 1) for c in held)
    assert sum(len(c) - 1 for c in held) <= 9
    assert (sim.simulator.federation.class_counts()[HONEST:] > 200).all()  # malicious clients' data are iid
    assert pytest.approx(1.0) == TAU


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_accuracy_that_an_attack_leaves_is_97_percent_or_more(attack: str) -> None:
    found = [accuracy(mnist(), RULES[BAR], attack, seed, MODEL) for seed in range(SEEDS)]
    assert statistics.mean(found) >= ENOUGH, found
