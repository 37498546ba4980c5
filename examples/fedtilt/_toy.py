"""What the toy figures of FedTilt share: a run on a toy problem, its numbers as CSV, its picture.

Federated logistic regression, two clients, squared distances: section IV-A and Figure 3 of "FedTilt: towards
multi-level fairness-preserving and robust federated learning" (2025). Every step sees all samples, so that tilts mean
what they say; 500 steps of 0.05 from a model of zeros.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import Federation
from equipoise.data.synthetic import fedtilt_toy
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.losses import cross_entropy
from equipoise.methods.fedtilt import fedtilt

COLOURS = ("tab:blue", "tab:orange")


@dataclass(frozen=True)
class Fit:
    """A finished run: the clients' personal models and the global one, each (weight [2, 2], bias [2])."""

    lam: float
    tau: float
    q: float
    federation: Federation
    personal: list[tuple[Tensor, Tensor]]
    shared: tuple[Tensor, Tensor]

    @property
    def title(self) -> str:
        return f"lam = {self.lam:g}, tau = {self.tau:g}, q = {self.q:g}"

    def samples(self, client: int, split: str) -> tuple[Tensor, Tensor]:
        index = self.federation.splits[split].of_client(client)
        return self.federation.data.x[index].double(), self.federation.data.y[index]

    def losses(self, client: int, split: str = "train") -> Tensor:
        x, y = self.samples(client, split)
        return cross_entropy(_outputs(self.personal[client], x), y)

    def accuracy(self, client: int, label: int | None = None) -> float:
        """On the client's test data, with its personal model."""
        x, y = self.samples(client, "test")
        right = (_outputs(self.personal[client], x).argmax(1) == y).double()
        return float((right if label is None else right[y == label]).mean())


def _outputs(model: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    return x @ model[0].T + model[1]


def fit(problem: int, lam: float, tau: float, q: float = 0.0, seed: int = 0, rounds: int = 50) -> Fit:
    torch.set_num_threads(1)
    federation, model = fedtilt_toy(problem, seed=seed), nn.Linear(2, 2)
    for p in model.parameters():
        nn.init.zeros_(p)
    train = Train(rounds=rounds, epochs=10, lr=0.05)
    method = fedtilt(lam, tau, q=q, normalise_dist=True, full_batch=True)
    simulation = Simulation(Scenario(federation, model, train), method, Run(seed=seed, dtype="float64", device="cpu"))
    for _ in range(train.rounds):
        simulation.step()
    found = simulation.personal()
    assert found is not None
    named = [simulation.server.layout.tensors(w) for w in (*found[1], simulation.server.w)]
    *personal, shared = [(n["weight"], n["bias"]) for n in named]
    return Fit(lam, tau, q, federation, personal, shared)


def line(model: tuple[Tensor, Tensor]) -> tuple[float, float, float]:
    """(a, b, c): the model is undecided where a x + b y + c = 0."""
    (a, b), c = (model[0][1] - model[0][0]).tolist(), float(model[1][1] - model[1][0])
    return a, b, c


def arguments(about: str | None) -> argparse.Namespace:
    words = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("fedtilt-figures"), metavar="FOLDER", help="where files go")
    words.add_argument("--quick", action="store_true", help="few steps: to see that it runs, not to read numbers")
    words.add_argument("--rounds", type=int, default=50, help="of ten steps each; 50 if not given")
    given = words.parse_args()
    given.rounds = 2 if given.quick else given.rounds
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    print(f"wrote {path}")


def figure(about: str | None, name: str, problem: int, tilts: list[tuple[float, float]]) -> None:
    """Fit a toy problem with every (lam, tau), and write points, boundaries and a picture of both."""
    given = arguments(about)
    fits, out = [fit(problem, lam, tau, rounds=given.rounds) for lam, tau in tilts], given.out
    write(out / f"{name}-points.csv", _points(fits[0]))
    rows = [_boundary(f, k) for f in fits for k in (0, 1)]
    write(out / f"{name}-boundaries.csv", rows)
    for row in rows:
        words = f"lam {row['lam']:6g}  tau {row['tau']:6g}  client {row['client']}:  accuracy {row['accuracy']:.3f}"
        print(f"{words}  (class 0 {row['class_0']:.3f}, class 1 {row['class_1']:.3f})")
    draw(out / f"{name}.svg", fits)


def _points(fitted: Fit) -> list[dict[str, Any]]:
    data, rows = fitted.federation.data, []
    for split in ("train", "test"):
        for k in (0, 1):
            for i in fitted.federation.splits[split].of_client(k).tolist():
                x, y = data.x[i].tolist()
                outlier = int(data.attributes["outlier"][i])
                rows.append({"client": k, "split": split, "class": int(data.y[i]), "x": x, "y": y, "outlier": outlier})
    return rows


def _boundary(fitted: Fit, k: int) -> dict[str, Any]:
    """A client's personal boundary a x + b y + c = 0, the global one, and what the first is worth."""
    own, shared = line(fitted.personal[k]), line(fitted.shared)
    names = dict(zip(("a", "b", "c", "global_a", "global_b", "global_c"), (*own, *shared), strict=True))
    accuracy = {"accuracy": fitted.accuracy(k), "class_0": fitted.accuracy(k, 0), "class_1": fitted.accuracy(k, 1)}
    return {"lam": fitted.lam, "tau": fitted.tau, "q": fitted.q, "client": k, **names, **accuracy}


def draw(path: Path, fits: list[Fit]) -> None:
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        print(f"{path.name} not drawn: pip install matplotlib (the CSV files have all its numbers)")
        return
    plt.switch_backend("svg")
    shape, size = {"squeeze": False, "sharex": True, "sharey": True}, (8, 3.2 * len(fits))
    grid, axes = plt.subplots(len(fits), 2, figsize=size, layout="constrained", **shape)
    for f, row in zip(fits, axes, strict=True):
        for k, ax in enumerate(row):
            _panel(ax, f, k)
    grid.legend(*axes[0][0].get_legend_handles_labels(), fontsize=8, ncols=3, loc="outside lower center")
    grid.savefig(path)
    print(f"wrote {path}")


def _panel(ax: Any, fitted: Fit, k: int) -> None:
    for split, marker, size in (("train", ".", 12), ("test", "x", 18)):
        x, y = fitted.samples(k, split)
        for c in (0, 1):
            name = f"class {c}, {split}"
            ax.scatter(*x[y == c].T.tolist(), s=size, marker=marker, color=COLOURS[c], alpha=0.7, lw=0.8, label=name)
    everything = fitted.federation.data.x  # panels share their axes: all samples of both clients are in view
    box = list(zip((everything.amin(0) - 0.2).tolist(), (everything.amax(0) + 0.2).tolist(), strict=True))
    for (a, b, c), style, name in ((line(fitted.personal[k]), "-", "personal"), (line(fitted.shared), "--", "global")):
        across = abs(b) > abs(a)
        ends = torch.tensor(box[0] if across else box[1])
        others = (-(a if across else b) * ends - c) / (b if across else a) if (a or b) else ends
        ax.plot(*((ends, others) if across else (others, ends)), style, color="black", lw=1.2, label=name)
    ax.set(xlim=box[0], ylim=box[1])
    ax.set_title(f"client {k + 1}: {fitted.title}", fontsize=9)
