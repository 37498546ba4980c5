"""The demonstration behind `make demo`: three methods, the same clients, with and without liars among them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from equipoise import config, experiment
from equipoise.results import Result

SCENARIO = """
[data]
dataset = "digits"
clients = 20
partition = { kind = "dirichlet", alpha = 0.3, min_size = 20 }
[model]
kind = "mlp"
hidden = [64]
[train]
rounds = 40
epochs = 2
batch = 10
lr = 0.1
[participation]
per_round = 10
[run]
seed = 0
eval_every = 20
"""
METHODS = ("fedavg", "fedprox", "local")
ATTACKS = {
    "none": "",
    "label-noise": '[attack]\nname = "label-noise"\nfraction = 0.3\n',
    "sign-flip": '[attack]\nname = "sign-flip"\nfraction = 0.3\nscale = 3.0\n',
}


def main(out: Path = Path("runs/demo")) -> dict[tuple[str, str], Result]:
    """Run every method under every attack, print the comparison, say where the runs are."""
    shutil.rmtree(out, ignore_errors=True)
    talk, found = Console(stderr=True), {}
    with Bar(console=talk, disable=not talk.is_terminal) as bar:
        task = bar.add_task("training", total=len(METHODS) * len(ATTACKS))
        for attack, section in ATTACKS.items():
            for method in METHODS:
                text = f'{SCENARIO}[method]\nname = "{method}"\n{section}'
                if not talk.is_terminal:
                    talk.print(f"{method}, attack: {attack}")
                made = experiment.build(config.load(text))
                found[attack, method] = experiment.execute(made, out / f"{method}-{attack}")
                bar.advance(task)
    Console(width=None if sys.stdout.isatty() else 110).print(table(found))
    talk.print(f"\nEvery client, every round: {out.resolve()}")
    talk.print(f"Look closer: .venv/bin/equipoise compare {out}/*")
    return found


def table(found: dict[tuple[str, str], Result]) -> Table:
    """How the honest clients fare."""
    made = Table(title="Honest clients' accuracy on their own test data (%)", title_justify="left")
    for heading in ("attack", "method", "mean", "deviation", "worst tenth", "best tenth"):
        made.add_column(heading, justify="left" if heading in ("attack", "method") else "right")
    before = ""
    for (attack, method), result in found.items():
        if before not in ("", attack):
            made.add_section()
        numbers = result.summary()
        shown = [numbers[k] for k in ("accuracy_mean", "accuracy_std", "worst_10", "best_10")]
        made.add_row("" if attack == before else attack, method, *(f"{100 * v:.1f}" for v in shown))
        before = attack
    return made


if __name__ == "__main__":
    main()
