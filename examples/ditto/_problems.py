"""What the figures of Ditto's section 3.3 share: its two problems, their solutions in closed form, and files.

Li et al., "Ditto: fair and robust federated learning through personalization", ICML 2021. Point estimation, and linear
regression with X_k' X_k = n b I, b = 1. With e_k the client's own estimate (the mean of its observations, or least
squares), Ditto's global and personal models are

    w = mean_k e_k,   v_k = (e_k + lam w) / (1 + lam)

The paper does not state the numbers behind its figures; these are ours. An error is the squared distance of a client's
model from its true one: the test error without the noise that nobody can predict. Only benign clients are counted. The
whole problem is drawn many times, in one federation of draws x clients: a draw is a block of rows, not a run.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import Federation
from equipoise.data.synthetic import ditto_linear, ditto_linear_truth, ditto_point, ditto_point_truth
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.methods.ditto import ditto, optimal_lam

CLIENTS, SAMPLES, SIGMA, TAU_A, FEATURES = 50, 5, 2.0, 10.0, 5
PROBLEMS = ("point estimation", "linear regression")


@dataclass(frozen=True)
class Setting:
    """One of the problems, with clients whose true models have deviation `tau`, and some that are malicious."""

    problem: str
    malicious: int
    draws: int
    tau: float = 1.0

    @property
    def best(self) -> float:
        return optimal_lam(SIGMA, SAMPLES, self.tau, CLIENTS, self.malicious, TAU_A)

    @cached_property
    def drawn(self) -> tuple[Tensor, Tensor]:
        """[draws, clients, d] each: the clients' own estimates and their true models, the malicious last."""
        fed, truth = federation(self, self.draws)
        return self._blocks(estimates(fed)), self._blocks(truth)

    def errors(self, lam: float) -> tuple[Tensor, Tensor]:
        """[draws, benign] each: squared errors of the personal models, and of the global one."""
        (own, truth), benign = self.drawn, slice(0, CLIENTS - self.malicious)
        shared = own.mean(1, keepdim=True)
        models = (own + lam * shared) / (1 + lam), shared.expand_as(own)
        personal, common = [(m - truth).square().sum(-1)[:, benign] for m in models]
        return personal, common

    def _blocks(self, rows: Tensor) -> Tensor:
        bad = self.malicious * self.draws
        parts = rows[: len(rows) - bad], rows[len(rows) - bad :]
        return torch.cat([p.view(self.draws, -1, rows.shape[1]) for p in parts], 1)


def federation(setting: Setting, draws: int = 1) -> tuple[Federation, Tensor]:
    """`draws` independent draws of the problem as one federation, and the true models of its clients."""
    clients = CLIENTS * draws
    truth = {"tau": setting.tau, "malicious": setting.malicious * draws, "tau_a": TAU_A}
    if setting.problem == PROBLEMS[0]:
        return ditto_point(clients, SAMPLES, sigma=SIGMA, test=0, **truth), ditto_point_truth(clients, **truth)
    truth["features"] = FEATURES
    return ditto_linear(clients, SAMPLES, sigma=SIGMA, test=0, **truth), ditto_linear_truth(clients, **truth)


def estimates(fed: Federation) -> Tensor:
    """[clients, d]: what each client would find alone, X_k' y_k / n."""
    x, y = (t.view(fed.n_clients, SAMPLES, -1).double() for t in (fed.data.x, fed.data.y))
    return (x.transpose(1, 2) @ y).squeeze(-1) / SAMPLES


def engine_difference(setting: Setting) -> float:
    """How far Ditto as the engine trains it, until nothing moves, is from the closed form: one draw, the best lam."""
    fed, _ = federation(setting)
    own = estimates(fed)
    found, shared = _train(fed, setting.best)
    want = (own + setting.best * own.mean(0)) / (1 + setting.best)
    return max(float((found - want).abs().max()), float((shared - own.mean(0)).abs().max()))


def _train(fed: Federation, lam: float) -> tuple[Tensor, Tensor]:
    torch.set_num_threads(1)
    model = nn.Linear(fed.data.x.shape[1], 1, bias=False)
    train = Train(rounds=6, steps=20, batch=0, lr=1.0 / (1.0 + lam))  # the loss has curvature 1, the pull lam
    sim = Simulation(Scenario(fed, model, train), ditto(lam), Run(dtype="float64", device="cpu"))
    for _ in range(train.rounds):
        sim.step()
    found = sim.personal()
    assert found is not None
    return found[1], sim.server.w


def summary(errors: Tensor) -> dict[str, float]:
    """The average error; its deviation over all benign clients of all draws, which is what the theorems are about; and
    its deviation over the clients of one draw, averaged, which leaves out how much one draw differs from another."""
    within = errors.std(1, correction=0).mean()
    return {"error": float(errors.mean()), "deviation": float(errors.std(correction=0)), "within_draw": float(within)}


def arguments(about: str | None, draws: int) -> argparse.Namespace:
    words = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("ditto-figures"), metavar="FOLDER", help="where files go")
    words.add_argument("--quick", action="store_true", help="few draws: to see that it runs, not to read numbers")
    given = words.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    given.draws = 20 if given.quick else draws
    return given


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
