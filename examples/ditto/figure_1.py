"""Figure 1: the lam of Theorem 8 has the lowest error, and the lowest deviation of it, with and without adversaries.

python examples/ditto/figure_1.py [FOLDER]

Takes about two minutes. The curves are the average error of benign clients with its deviation as error bars, against
lam; the vertical line is the theory's optimum, which knows nothing of the draws.
"""

from typing import Any

from _problems import PROBLEMS, Setting, draw, folder, summary, write

FACTORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 10.0)  # of the optimum


def rows(setting: Setting) -> list[dict[str, Any]]:
    found = []
    for factor in FACTORS:
        own, _ = setting.errors(factor * setting.best)
        where = {"problem": setting.problem, "malicious": setting.malicious, "optimum": setting.best}
        found.append({**where, "lam": factor * setting.best, **summary(own)})
    return found


def report(found: list[dict[str, Any]]) -> None:
    best = {name: min(found, key=lambda r: r[name])["lam"] for name in ("error", "deviation")}
    print(
        f"{found[0]['problem']}, {found[0]['malicious']} malicious: optimum {found[0]['optimum']:.3g} by theory,"
        f" {best['error']:.3g} by error, {best['deviation']:.3g} by deviation"
    )


def panel(ax: Any, found: list[dict[str, Any]]) -> None:
    lam, error, deviation = ([r[name] for r in found] for name in ("lam", "error", "deviation"))
    ax.errorbar(lam, error, yerr=deviation, marker="o", ms=3, capsize=3, label="error, its deviation over clients")
    ax.axvline(found[0]["optimum"], color="black", ls="--", lw=1, label="optimum by Theorem 8")
    ax.set_xscale("symlog", linthresh=0.1)
    ax.set(xlabel="lam (0: local)", ylabel="squared error", xlim=(-0.02, None))


if __name__ == "__main__":
    everything = []
    for problem in PROBLEMS:
        for malicious in (0, 10):
            curve = rows(Setting(problem, malicious))
            report(curve)
            everything += curve
    write(folder() / "figure-1.csv", everything)
    draw(folder() / "figure-1.svg", everything, panel)
