"""The command that runs published tables again."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.audits import AddressOption, EngineOption, Where, Workers, engine_of
from equipoise.cli.runs import Own, SetOption, known
from equipoise.cli.steps import steps
from equipoise.cli.terminal import FAILED, Quiet, Verbose, guarded, put, put_table, say, say_failed
from equipoise.errors import EquipoiseError, first_line, nearest, require

if TYPE_CHECKING:
    from equipoise.reproduce import Table

_MANY = 10_000  # seeds at most


@guarded
def reproduce(
    tables: Annotated[list[str] | None, typer.Argument(help="PAPER or PAPER/TABLE; none: list them all.")] = None,
    scale: Annotated[float, typer.Option(help="The share of every run's rounds.")] = 1.0,
    also: Annotated[str | None, typer.Option(help="Measure on the way too: 0.1,0.3, smaller shares.")] = None,
    seeds: Annotated[str | None, typer.Option(help="0..4 or 0,3,7, for all rows. Default: the table's.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows, by name, with commas between.")] = None,
    columns: Annotated[str | None, typer.Option(help="Only these columns.")] = None,
    overrides: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Where measurements are kept. Default: runs/reproduce.")] = None,
    experiments: Annotated[Path | None, typer.Option(help="The folder of tables. Default: ours.")] = None,
    page: Annotated[Path | None, typer.Option(help="The results page. Default: OUT/PAPER.md.")] = None,
    workers: Workers = None,
    engine: EngineOption = Where.local,
    ray_address: AddressOption = None,
    own: Own = None,
    minutes: Annotated[float | None, typer.Option(help="Start no run after so many minutes.")] = None,
    only_show: Annotated[bool, typer.Option("--show", help="Run nothing; show and write what is there.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run the tables of the papers again and set ours beside theirs, with a verdict for every cell and claim.

    What was measured before is not run again; a command that was stopped goes on when it is given once more.

    \b
    Examples:
      equipoise reproduce
      equipoise reproduce --show
      equipoise reproduce ditto/table1 --show
      equipoise reproduce fedlf/table1-fashion --scale 0.1 --seeds 0..4
      equipoise reproduce ditto --minutes 30 --set run.device=cuda
    """
    from equipoise.reproduce import home, load, matching, names, run
    from equipoise.reproduce.runner import LATE, Wanted

    files, folder = known(own), experiments or home()
    if not names(folder):
        raise EquipoiseError(f"no published tables in {folder}", "PAPER/TABLE.toml, see docs/guides/reproduce.md")
    kept = out or Path("runs/reproduce")
    if only_show and out is None and not kept.is_dir():
        kept = folder  # what was measured by us, which lies with the tables
    if not tables:
        everything = [load(name, folder) for name in names(folder)]
        if only_show:
            _overview(everything, folder, kept, page)
        else:
            put_table(("table", "title"), [(table.name, table.head.title) for table in everything])
        return
    chosen = [load(name, folder) for name in matching(tables, folder)]
    shares = [_share("--also", text) for text in _names(also) or ()]
    sets, share = tuple(overrides or ()), _share("--scale", scale)
    some_rows = _known("--rows", rows, [name for table in chosen for name in table.head.rows])
    some_columns = _known("--columns", columns, [name for table in chosen for name in table.head.columns])
    wanted = Wanted(share, _seeds(seeds), some_rows, some_columns, sets, shares)
    papers = list(dict.fromkeys(table.name.split("/")[0] for table in chosen))
    if page and len(papers) > 1:
        raise EquipoiseError(f"--page {page} is one page, for {len(papers)} papers", "name one paper, or leave it out")
    require(minutes is None or minutes >= 0, "--minutes", minutes, "0 or more; left out: no limit")
    errors: dict[str, str] = {}
    if not only_show:
        where = engine_of(engine, ray_address, workers, files)
        with steps(quiet, kept) as report:
            errors = run(chosen, kept, wanted, engine=where, minutes=minutes, report=report)
    for table in chosen:
        _show(table, kept)
    for paper in papers:
        _write(paper, folder, kept, page)
    late = [name for name, error in errors.items() if first_line(error) == LATE]
    if late:
        say(f"{LATE}: {len(late)} runs; give the command again to go on")
    if say_failed({name: error for name, error in errors.items() if name not in late}):
        raise typer.Exit(FAILED)


def _show(table: Table, out: Path) -> None:
    from equipoise.reproduce import Record
    from equipoise.reproduce.page import grids
    from equipoise.reproduce.verdicts import found, held

    ours = found(table, Record(table, out))
    put(f"\n{table.head.title}")
    for headings, rows in grids(table, ours):
        put("")
        put_table(headings, rows)
    put("")
    for claim in held(table, ours):
        told = "; ".join(text for text in (claim.seed_by_seed, claim.why) if text)
        put(f"{claim.verdict}: {claim.claim.says}" + (f" ({told})" if told else ""))


def _overview(tables: list[Table], folder: Path, out: Path, page: Path | None) -> None:
    from equipoise.reproduce.page import OVERVIEW, glance, overview

    put_table(OVERVIEW, [(table.name, *glance(table, out)[1:]) for table in tables])
    if page or out != folder:
        say(f"page: {overview(tables, out, page or out / 'README.md', _about(folder)).resolve()}")


def _write(paper: str, folder: Path, out: Path, page: Path | None) -> None:
    """The page, but for one among the tables that nobody asked for."""
    from equipoise.reproduce import load, matching
    from equipoise.reproduce.page import write

    if page or out != folder:
        tables = [load(name, folder) for name in matching([paper], folder)]
        say(f"page: {write(tables, out, page or out / f'{paper}.md', _about(folder / paper)).resolve()}")


def _about(folder: Path) -> str:
    path = folder / "about.md"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _share(option: str, value: float | str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise EquipoiseError(f"{option} is {value}", "above 0, at most 1")
    return share


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _known(option: str, text: str | None, known: list[str]) -> list[str] | None:
    """The names in an option, each of which one of the tables must have."""
    found = _names(text)
    for name in found or ():
        require(name in known, option, name, nearest(name, known))
    return found


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    span = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text)
    if span and int(span[1]) <= int(span[2]) < int(span[1]) + _MANY:
        return list(range(int(span[1]), int(span[2]) + 1))
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise EquipoiseError(f"--seeds is {text!r}", "such as 0..4 or 0,3,7")
    return [int(part) for part in text.split(",")]
