"""Figure 2: local, global and personal models against how much clients have in common.

python examples/ditto/figure_2.py [FOLDER]

Takes about two minutes. To the left (1/tau small) clients have little in common and training alone beats one model for
all; to the right it is the other way round. Ditto with the lam of Theorem 8 is best everywhere.
"""

from typing import Any

from _problems import PROBLEMS, Setting, draw, folder, summary, write

RELATEDNESS = (0.33, 0.5, 1.0, 2.0, 3.0, 4.0)


def rows(problem: str, malicious: int) -> list[dict[str, Any]]:
    found = []
    for related in RELATEDNESS:
        setting = Setting(problem, malicious, tau=1 / related)
        own, shared = setting.errors(setting.best)
        alone, _ = setting.errors(0.0)
        where = {"problem": problem, "malicious": malicious, "relatedness": related, "lam": setting.best}
        for name, errors in (("local", alone), ("global", shared), ("ditto", own)):
            found.append({**where, "model": name, **summary(errors)})
    return found


def panel(ax: Any, found: list[dict[str, Any]]) -> None:
    for shift, name in enumerate(("local", "global", "ditto")):
        line = [r for r in found if r["model"] == name]
        at = [r["relatedness"] * 1.03 ** (shift - 1) for r in line]  # side by side, so that the bars can be told apart
        error, deviation = ([r[key] for r in line] for key in ("error", "deviation"))
        ax.errorbar(at, error, yerr=deviation, marker="o", ms=3, capsize=3, label=name)
    ax.set(xlabel="1/tau", ylabel="squared error", xscale="log", yscale="log")


if __name__ == "__main__":
    everything = []
    for problem in PROBLEMS:
        for malicious in (0, 10):
            curve = rows(problem, malicious)
            everything += curve
            for r in curve:
                print(
                    f"{problem}, {malicious} malicious, 1/tau {r['relatedness']:4g}: {r['model']:6}  {r['error']:.4f}"
                )
    write(folder() / "figure-2.csv", everything)
    draw(folder() / "figure-2.svg", everything, panel)
