"""EAGLE on its paper's synthetic problem: gaps even out, and the easy client does not pay for it.

Three clients, logistic regression, one full-batch step per round, the mean over five seeds; lam = 5, the largest that
the paper tries, and q = 5, its choice for q-FFL.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.core import SGD, Cohort, Method, Outcome, ServerRule, State, Stop, Stream, WeightedMean
from equipoise.data.synthetic import eagle_synthetic
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Admission, Run, Train
from equipoise.methods.eagle import eagle
from equipoise.metrics import gaps
from equipoise.models import build
from equipoise.standalone import local_optima

ROUNDS, SEEDS, STOP = 50, range(5), Stop(cap=300)


@dataclass(frozen=True)
class QFFL(ServerRule):
    """q-FedAvg (Li, Sanjabi, Beirami, Smith, 2020): w <- w - sum_k F_k^q g_k / sum_k h_k."""

    q: float = 5.0
    needs = frozenset({"losses"})

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        assert cohort.losses is not None
        loss, g = cohort.losses + 1e-10, cohort.updates / cohort.lr
        h = self.q * loss ** (self.q - 1) * g.square().sum(1) + loss**self.q / cohort.lr
        return Outcome((loss**self.q) @ g / h.sum(), state)


@dataclass(frozen=True)
class AFL(ServerRule):
    """Agnostic federated learning (Mohri, Sivek, Suresh, 2019): descent in w, projected ascent in client weights."""

    step: float = 0.1
    needs = frozenset({"losses"})

    def init(self, w: Tensor) -> State:
        return {"lam": torch.full((3,), 1 / 3, dtype=w.dtype)}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        assert cohort.losses is not None
        ascended = state["lam"] + self.step * cohort.losses
        return Outcome(state["lam"] @ cohort.updates, {"lam": on_simplex(ascended)})


def on_simplex(v: Tensor) -> Tensor:
    """The nearest point of the probability simplex, by bisection on the shift."""
    low, high = v.min() - 1, v.max()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float((v - middle).clamp(min=0).sum()) > 1 else (low, middle)
    return (v - high).clamp(min=0)


METHODS = {
    "eagle": eagle(5.0, scale="sqrt_k", cap=STOP.cap),
    "fedavg": Method("fedavg", SGD(), WeightedMean("uniform")),
    "q-ffl": Method("q-ffl", SGD(), QFFL()),
    "afl": Method("afl", SGD(), AFL()),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """For each method: variance of gaps on the validation and test splits, and client 0's test loss."""
    cache = tmp_path_factory.mktemp("alone")
    rows = {name: [_measured(method, seed, cache) for seed in SEEDS] for name, method in METHODS.items()}
    return {name: {key: float(np.mean([r[key] for r in runs])) for key in runs[0]} for name, runs in rows.items()}


def _measured(method: Method, seed: int, cache: Path) -> dict[str, float]:
    model = build("linear", (2,), 2, Stream(seed).child("init"))
    scenario = Scenario(
        eagle_synthetic(seed=seed),
        model,
        Train(rounds=ROUNDS, steps=1, batch=0, lr=1.0),
        admission=Admission(guard="off"),
    )
    run = Run(seed=seed, dtype="float64", device="cpu")
    alone, simulation = local_optima(scenario, run, STOP, cache), Simulation(scenario, method, run)
    simulation.simulator.reached = {STOP: alone.models}.__getitem__  # the same that EAGLE's clients reach: test_gaps.py
    for _ in range(ROUNDS):
        simulation.step()
    loss = {split: simulation.evaluate(split)["global"].loss for split in ("validation", "test")}
    spread = {split: gaps(loss[split], alone.loss[split])["gap_variance"] for split in loss}
    return {**spread, "client 0": float(loss["test"][0])}


def test_gaps_are_more_even_than_with_fedavg_and_far_more_than_with_loss_parity(
    found: dict[str, dict[str, float]],
) -> None:
    assert found["eagle"]["validation"] < found["fedavg"]["validation"]
    for other in ("q-ffl", "afl"):
        assert found["eagle"]["validation"] < 0.5 * found[other]["validation"]


def test_gaps_on_unseen_samples_are_more_even_than_with_loss_parity(found: dict[str, dict[str, float]]) -> None:
    for other in ("q-ffl", "afl"):
        assert found["eagle"]["test"] < found[other]["test"]


def test_the_easy_client_is_not_levelled_down(found: dict[str, dict[str, float]]) -> None:
    for other in ("q-ffl", "afl"):
        assert found["eagle"]["client 0"] < 0.5 * found[other]["client 0"]
    assert found["eagle"]["client 0"] < 2 * found["fedavg"]["client 0"]
