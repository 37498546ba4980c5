"""Figure 1: the lam of Theorem 8 has the lowest error, and the lowest deviation of it, with and without adversaries.

python examples/ditto/figure_1.py [--out FOLDER] [--quick]

Takes about 15 seconds. The curves are the average error of benign clients and its deviation, against lam (the paper
has one curve with error bars); the vertical line is the theory's optimum, which knows nothing of the draws. Printed are
the lam where the measured error and its deviation are lowest, with the standard error that ten groups of draws give,
and how far Ditto as the engine trains it is from the closed form that everything else here uses.

The deviation over the clients of a single draw (within_draw) is not what the theorem minimises: malicious clients shift
the global model by something that all clients of a draw share, and a deviation within the draw leaves part of it out.
Its lowest point lies at a lam about 5% larger.
"""

from typing import Any

import torch
from _problems import PROBLEMS, Setting, arguments, draw, engine_difference, summary, write

FACTORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 10.0)  # of the optimum
FINE = torch.logspace(-0.3, 0.3, 61).tolist()  # around it: half to twice
GROUPS = 10


def rows(setting: Setting) -> list[dict[str, Any]]:
    where = {"problem": setting.problem, "malicious": setting.malicious, "optimum": setting.best}
    return [{**where, "lam": f * setting.best, **summary(setting.errors(f * setting.best)[0])} for f in FACTORS]


def measured(setting: Setting) -> dict[str, str]:
    """Where error and deviation are lowest, by measurement, with its standard error."""
    curves = []  # for every lam: for every group of draws
    for factor in FINE:
        groups = setting.errors(factor * setting.best)[0].chunk(GROUPS)
        curves.append([list(summary(g).values()) for g in groups])
    lowest = setting.best * torch.tensor(FINE)[torch.tensor(curves).argmin(0)]  # [groups, 3]
    found = zip(lowest.mean(0).tolist(), (lowest.std(0) / GROUPS**0.5).tolist(), strict=True)
    return dict(zip(("error", "deviation", "within_draw"), (f"{m:.3f} +- {e:.3f}" for m, e in found), strict=True))


def report(setting: Setting) -> None:
    words = ", ".join(f"{where} by {name}" for name, where in measured(setting).items())
    print(f"{setting.problem}, {setting.malicious} malicious: lowest at lam = {setting.best:.3f} by theory, {words}")
    print(f"    engine and closed form differ by {engine_difference(setting):.1e}")


def panel(ax: Any, found: list[dict[str, Any]]) -> None:
    lam, optimum = [r["lam"] for r in found], found[0]["optimum"]
    for name, words in (("error", "error"), ("deviation", "its deviation over clients")):
        ax.plot(lam, [r[name] for r in found], marker="o", ms=3, label=words)
    ax.axvline(optimum, color="black", ls="--", lw=1, label="optimum by Theorem 8")
    ax.set_xscale("symlog", linthresh=0.1)
    ax.set(xlabel="lam (0: local)", ylabel="squared error", xlim=(-0.02, 13 * optimum), ylim=(0, None))


if __name__ == "__main__":
    given, everything = arguments(__doc__, draws=2000), []
    for problem in PROBLEMS:
        for malicious in (0, 10):
            setting = Setting(problem, malicious, given.draws)
            report(setting)
            everything += rows(setting)
    write(given.out / "figure-1.csv", everything)
    draw(given.out / "figure-1.svg", everything, panel)
