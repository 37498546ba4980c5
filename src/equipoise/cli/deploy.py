"""Commands for real federations, on Flower: deploy new, local."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.terminal import Verbose, guarded, put, say

app = typer.Typer(help="Run on real clients, with Flower.", no_args_is_help=True, rich_markup_mode=None)

Config = Annotated[Path, typer.Option("--config", "-c", help="The run's TOML file.", show_default=False)]
Timeout = Annotated[float, typer.Option(help="Seconds that a client may take to answer.")]
Own = Annotated[
    list[Path] | None,
    typer.Option("--own", metavar="FILE.py", help="A method, rule, filter or model of your own. Repeatable."),
]

_SAMPLE = """
[method]
name = "fedavg"
[data]
dataset = "digits"
clients = 3
[model]
kind = "mlp"
[train]
rounds = 3
lr = 0.1
[run]
eval_every = 1
"""


@app.command("new")
@guarded
def new(
    folder: Annotated[Path, typer.Argument(help="Where to write the app.", show_default=False)],
    config: Config,
    out: Annotated[Path, typer.Option(help="Where the server puts the results.")] = Path("runs/deployed"),
    timeout: Timeout = 300.0,
    own: Own = None,
    verbose: Verbose = False,
) -> None:
    """Write a small Flower app that runs a config; `flwr run FOLDER` accepts it.

    nodes.toml says which node is which client, data.py where a site's data comes from; nginx.conf lets nodes in. Parts
    of your own (--own) are copied into the app, and reach the nodes with it.

    \b
    Example:
      equipoise deploy new my-federation --config run.toml
      equipoise deploy new my-federation --config run.toml --own ./mine.py
    """
    from equipoise import config as configs
    from equipoise.errors import require
    from equipoise.flower import parts
    from equipoise.flower import writing as flower

    # Who is who and where data comes from was filled in by hand: never write over it.
    free = not (folder / "pyproject.toml").exists()
    require(free, "the app's folder", str(folder), "there is an app already: edit its files, or choose another folder")
    held = parts.gathered(own or ())
    put(str(flower.new(folder, configs.load(config), out, timeout, own=held)))


@app.command("local")
@guarded
def local(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The run's TOML file.")] = None,
    out: Annotated[Path, typer.Option(help="For the results; given again, it goes on.")] = Path("runs/deployed"),
    clients: Annotated[int | None, typer.Option(help="How many, instead of what the config says.")] = None,
    tls: Annotated[bool, typer.Option(help="Encrypt, and let in only nodes whose keys are known.")] = False,
    timeout: Timeout = 300.0,
    own: Own = None,
    verbose: Verbose = False,
) -> None:
    """Run on Flower with processes for every client, all on this machine, and stop them afterwards.

    Without a config: three rounds of FedAvg on handwritten digits.

    \b
    Example:
      equipoise deploy local --clients 3
      equipoise deploy local --tls --config run.toml --out runs/deployed
    """
    from equipoise import config as configs
    from equipoise.audit.single import of_run
    from equipoise.flower import local as flower
    from equipoise.flower import parts
    from equipoise.report import write_report

    held = parts.gathered(own or ())
    chosen = configs.load(config or _SAMPLE, [] if clients is None else [f"data.clients={clients}"])
    result = flower.run(chosen, out, tls=tls, timeout=timeout, say=say, own=held)
    put(f"accuracy {result.summary().get('accuracy_mean', float('nan')):.3f} in {out}")
    data = of_run(out, out.with_name(out.name + ".flower") / "report")
    say(f"report: {write_report(data, out / 'report.html').resolve()}")
