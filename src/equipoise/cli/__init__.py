"""The command line. Every command imports what it needs when it runs, so that help comes at once."""

from __future__ import annotations

import typer

from equipoise import __version__
from equipoise.cli import audits, data, deploy, doctor, parts, reproduce, runs
from equipoise.engine.memory import keep_memory

app = typer.Typer(
    name="equipoise",
    help="Fair and robust federated learning, and the evidence for it.\n\nStart with: equipoise list methods",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(runs.run)
app.command("resume")(runs.resume)
app.command("compare")(runs.compare)
app.command("audit")(audits.audit)
app.command("report")(audits.report)
app.command("sweep")(audits.sweep)
app.command("advise")(audits.advise)
app.command("reproduce")(reproduce.reproduce)
app.command("list")(parts.list_parts)
app.command("show")(parts.show)
app.command("keys")(parts.keys)
app.command("check")(parts.check)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
app.command("doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"equipoise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None: ...


def main() -> None:
    keep_memory()
    app()
