"""Commands about datasets: data list, get, where, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.terminal import FAILED, Json, Verbose, guarded, put, put_json, put_table, say

app = typer.Typer(help="Find, fetch and verify datasets.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="A name that `equipoise data list` prints.", show_default=False)]
Folder = Annotated[Path | None, typer.Option(help="Here, instead of the usual places.", show_default=False)]


@app.command("list")
@guarded
def list_datasets(as_json: Json = False, verbose: Verbose = False) -> None:
    """List the datasets that are read from files, and where this machine has them.

    \b
    Example:
      equipoise data list
    """
    from equipoise.data import datasets

    infos = datasets.catalogue()
    places = {info.name: datasets.where(info.name) for info in infos}
    if as_json:
        facts = ("name", "what", "samples", "classes", "licence", "source")
        put_json([{f: getattr(i, f) for f in facts} | {"where": _text(places[i.name])} for i in infos])
        return
    rows = [(i.name, f"{i.samples:,}", str(i.classes), _text(places[i.name]) or "-", i.what) for i in infos]
    put_table(("name", "samples", "classes", "where", "what"), rows)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@app.command("get")
@guarded
def get(name: Name, folder: Folder = None, verbose: Verbose = False) -> None:
    """Download a dataset and check what came; prints the folder.

    \b
    Example:
      equipoise data get fashion-mnist
    """
    from equipoise.data import datasets

    put(str(datasets.get(name, folder=folder)))


@app.command("where")
@guarded
def where(name: Name, folder: Folder = None, verbose: Verbose = False) -> None:
    """Print the folder that holds a dataset; exit with 1 if none does.

    \b
    Example:
      equipoise data where fashion-mnist
    """
    from equipoise.data import datasets

    found = datasets.where(name, folder=folder)
    if found is None:
        say(f"{name} is not on this machine\n  hint: equipoise data get {name}")
        raise typer.Exit(FAILED)
    put(str(found))


@app.command("verify")
@guarded
def verify(name: Name, folder: Folder = None, as_json: Json = False, verbose: Verbose = False) -> None:
    """Compare a dataset's files with their published checksums; exit with 1 if one is missing or differs.

    \b
    Example:
      equipoise data verify fashion-mnist
    """
    from equipoise.data import datasets

    lines = datasets.verify(name, folder=folder)
    put_json(dict(lines)) if as_json else put_table(("file", "state"), lines)
    if any(state == "missing" or state.startswith("differs") for _, state in lines):
        raise typer.Exit(FAILED)
