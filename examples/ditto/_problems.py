"""What the figures of Ditto's section 3.3 share: its two problems, solved by the engine, and their numbers as CSV.

Li et al., "Ditto: fair and robust federated learning through personalization", ICML 2021. The paper does not state the
numbers behind its figures; these are ours. An error is the squared distance of a client's model from its true one: the
test error without the noise that nobody can predict. It is averaged over benign clients, and its deviation is taken
over them, in each of several draws of the whole problem.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import Federation
from equipoise.data.synthetic import ditto_linear, ditto_linear_truth, ditto_point, ditto_point_truth
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.methods.ditto import ditto, optimal_lam

CLIENTS, SAMPLES, SIGMA, TAU_A, FEATURES, DRAWS = 50, 5, 2.0, 10.0, 5, 20
PROBLEMS = ("point estimation", "linear regression")


@dataclass(frozen=True)
class Setting:
    """One of the problems, with clients whose true models have deviation `tau`, and some that are malicious."""

    problem: str
    malicious: int
    tau: float = 1.0

    @property
    def best(self) -> float:
        return optimal_lam(SIGMA, SAMPLES, self.tau, CLIENTS, self.malicious, TAU_A)

    def errors(self, lam: float) -> tuple[Tensor, Tensor]:
        """[draws, benign] each: squared errors of the personal models, and of the global one."""
        own, shared = (_points if self.problem == PROBLEMS[0] else _regressions)(self, lam)
        return own[:, : CLIENTS - self.malicious], shared[:, : CLIENTS - self.malicious]

    @property
    def truth(self) -> dict[str, Any]:
        return {"tau": self.tau, "malicious": self.malicious, "tau_a": TAU_A}


def _points(setting: Setting, lam: float) -> tuple[Tensor, Tensor]:
    """Dimensions are independent of each other, so that one federation holds all draws."""
    fed = ditto_point(CLIENTS, SAMPLES, sigma=SIGMA, dim=DRAWS, **setting.truth)
    truth = ditto_point_truth(CLIENTS, dim=DRAWS, **setting.truth)
    own, shared = solve(fed, lam)
    return (own - truth).square().T, (shared - truth).square().T


def _regressions(setting: Setting, lam: float) -> tuple[Tensor, Tensor]:
    found = []
    for seed in range(DRAWS):
        options = {"features": FEATURES, "seed": seed, **setting.truth}
        fed, truth = ditto_linear(CLIENTS, SAMPLES, sigma=SIGMA, **options), ditto_linear_truth(CLIENTS, **options)
        found.append([(models - truth).square().sum(1) for models in solve(fed, lam)])
    own, shared = zip(*found, strict=True)
    return torch.stack(own), torch.stack(shared)


def solve(fed: Federation, lam: float) -> tuple[Tensor, Tensor]:
    """Ditto until nothing moves: the personal models [K, d] and the global one [d]."""
    torch.set_num_threads(1)
    model = nn.Linear(fed.data.x.shape[1], fed.data.y.shape[1], bias=False)
    train = Train(rounds=8, steps=10 + round(2 * lam), batch=0, lr=1.6 / (1.0 + lam))  # 1: the loss's curvature
    sim = Simulation(Scenario(fed, model, train), ditto(lam), Run(dtype="float64", device="cpu"))
    for _ in range(train.rounds):
        sim.step()
    found = sim.personal()
    assert found is not None
    return found[1], sim.server.w


def summary(errors: Tensor) -> dict[str, float]:
    return {"error": float(errors.mean()), "deviation": float(errors.std(1, correction=0).mean())}


def folder() -> Path:
    """Where figures go: the first argument, or a folder here."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "ditto-figures")
    path.mkdir(parents=True, exist_ok=True)
    return path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    print(f"wrote {path}")


def draw(path: Path, rows: list[dict[str, Any]], panel: Callable[[Any, list[dict[str, Any]]], None]) -> None:
    """One panel for each problem, without and with malicious clients."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print(f"{path.name} not drawn: pip install matplotlib (the CSV file has all its numbers)")
        return
    plt.switch_backend("svg")
    counts = sorted({row["malicious"] for row in rows})
    grid, axes = plt.subplots(len(PROBLEMS), len(counts), figsize=(9, 7), squeeze=False)
    for problem, line in zip(PROBLEMS, axes, strict=True):
        for malicious, ax in zip(counts, line, strict=True):
            panel(ax, [r for r in rows if r["problem"] == problem and r["malicious"] == malicious])
            ax.set_title(f"{problem}, {malicious} of {CLIENTS} malicious", fontsize=9)
    axes[0][0].legend(fontsize=8)
    grid.tight_layout()
    grid.savefig(path)
    print(f"wrote {path}")
