"""Figure 2: local, global and personal models against how much clients have in common.

python examples/ditto/figure_2.py [--out FOLDER] [--quick]

Takes about 15 seconds. To the left (1/tau small) clients have little in common and training alone beats one model for
all; to the right it is the other way round. Ditto with the lam of Theorem 8 is best everywhere.
"""

from typing import Any

from _problems import PROBLEMS, Setting, arguments, draw, summary, write

RELATEDNESS = (0.33, 0.5, 1.0, 2.0, 3.0, 4.0)


def rows(problem: str, malicious: int, draws: int) -> list[dict[str, Any]]:
    found = []
    for related in RELATEDNESS:
        setting = Setting(problem, malicious, draws, tau=1 / related)
        own, shared = setting.errors(setting.best)
        alone, _ = setting.errors(0.0)
        where = {"problem": problem, "malicious": malicious, "relatedness": related, "lam": setting.best}
        for name, errors in (("local", alone), ("global", shared), ("ditto", own)):
            found.append({**where, "model": name, **summary(errors)})
    return found


def report(found: list[dict[str, Any]]) -> None:
    for related in RELATEDNESS:
        models = [r for r in found if r["relatedness"] == related]
        errors = "  ".join(f"{r['model']} {r['error']:7.4f} ({r['deviation']:.4f})" for r in models)
        print(f"    1/tau {related:4g}  lam {models[0]['lam']:7.3f}:  {errors}")


def panel(ax: Any, found: list[dict[str, Any]]) -> None:
    for shift, name in enumerate(("local", "global", "ditto")):
        line = [r for r in found if r["model"] == name]
        at = [r["relatedness"] * 1.03 ** (shift - 1) for r in line]  # side by side, so that the bars can be told apart
        error, deviation = ([r[key] for r in line] for key in ("error", "deviation"))
        above = [[0.0] * len(line), deviation]  # the axis is logarithmic: a bar downwards would leave it
        ax.errorbar(at, error, yerr=above, marker="o", ms=3, capsize=3, label=name)
    ax.set(xlabel="1/tau", ylabel="squared error, its deviation as bars", xscale="log", yscale="log")
    ax.set_xticks(RELATEDNESS, [f"{r:g}" for r in RELATEDNESS])
    ax.set_xticks([], minor=True)


if __name__ == "__main__":
    given, everything = arguments(__doc__, draws=400), []
    for problem in PROBLEMS:
        for malicious in (0, 10):
            curve = rows(problem, malicious, given.draws)
            print(f"{problem}, {malicious} malicious: error (deviation)")
            report(curve)
            everything += curve
    write(given.out / "figure-2.csv", everything)
    draw(given.out / "figure-2.svg", everything, panel)
