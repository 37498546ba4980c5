"""Commands that compare: audit, report, sweep, advise."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.runs import Own, SetOption, TrackOption, known, only, tracker_of
from equipoise.cli.steps import steps
from equipoise.cli.terminal import (
    FAILED,
    Json,
    Quiet,
    Verbose,
    guarded,
    number,
    put,
    put_json,
    put_table,
    say,
    say_failed,
)
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from equipoise.audit.data import AuditData
    from equipoise.audit.engines import Engine

COLUMNS = ("accuracy_mean", "accuracy_std", "worst_10", "gap_variance", "pearson", "drop")


class Where(StrEnum):
    local = "local"
    ray = "ray"


Workers = Annotated[int | None, typer.Option(min=1, help="Runs side by side. Default: one for each core; 4 on a GPU.")]
EngineOption = Annotated[
    Where, typer.Option("--engine", help="local: processes here; ray: a Ray cluster, all of which must share --out.")
]
AddressOption = Annotated[
    str | None, typer.Option("--ray-address", help="The cluster's. Default: RAY_ADDRESS, else a Ray on this machine.")
]


class Format(StrEnum):
    html = "html"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    svg = "svg"
    pdf = "pdf"


@guarded
def audit(
    config: Annotated[Path, typer.Argument(help="A TOML file with an [audit] section.", show_default=False)],
    overrides: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="The audit's folder. Default: runs/NAME of the file.")] = None,
    workers: Workers = None,
    engine: EngineOption = Where.local,
    ray_address: AddressOption = None,
    own: Own = None,
    track: TrackOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, list the runs, run nothing.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run every method under every attack with every seed, and write one report about it.

    An audit that was stopped goes on when the same command is given again.

    \b
    Examples:
      equipoise audit audit.toml
      equipoise audit audit.toml --workers 4 --out runs/mine --set train.rounds=50
      equipoise audit audit.toml --engine ray --ray-address 10.0.0.1:6379 --out /shared/mine
    """
    from equipoise.audit import gather, load_plan, record, run_audit

    files = known(own)
    plan = load_plan(config, overrides or ())
    folder = out or Path("runs") / config.stem
    tracker = tracker_of(track)(folder)
    if dry_run:
        put_table(("method", "attack", "seed"), [(c.method, c.attack, str(c.seed)) for c in plan.cells])
        return
    where = engine_of(engine, ray_address, workers, files)
    with steps(quiet, folder) as report:
        errors = run_audit(plan, folder, engine=where, report=report)
    data = gather(plan, folder, errors)
    if tracker:
        record(data, tracker)
    page = _write_page(data, folder)
    show(data, as_json)
    say_failed(errors)
    say(f"report: {page.resolve()}")
    if errors and len(errors) >= len(plan.cells):
        raise typer.Exit(FAILED)


@guarded
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of an audit, or of one run.", show_default=False)],
    form: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.html,
    out: Annotated[Path | None, typer.Option(help="Where to. Default: into that folder.")] = None,
    times: Annotated[
        bool, typer.Option(help="Without times, the same audit gives the same bytes whenever and wherever it was run.")
    ] = True,
    own: Own = None,
    verbose: Verbose = False,
) -> None:
    """Write the report of an audit or of a run, or its tables and figures in another form.

    \b
    Examples:
      equipoise report runs/audit
      equipoise report runs/audit --format latex --out tables/
      equipoise report runs/audit --no-times
      equipoise report runs/deployed
      equipoise report runs/audit --own ./mine.py
    """
    from equipoise.report import write_figures, write_report, write_tables

    known(own)
    data = _told_by(folder) if times else _told_by(folder).without_times()
    if form is Format.html:
        say(f"report: {write_report(data, out or folder / 'report.html').resolve()}")
    elif form is Format.svg or form is Format.pdf:
        _tell(write_figures(data, out or folder / "figures", "svg" if form is Format.svg else "pdf"))
    else:
        _tell(write_tables(data, out or folder / "tables", form.value))  # type: ignore[arg-type]


def _told_by(folder: Path) -> AuditData:
    from equipoise.audit import read
    from equipoise.audit.single import of_run

    if (folder / "audit.toml").exists() or not (folder / "config.toml").exists():
        return read(folder)
    with TemporaryDirectory() as work:
        return of_run(folder, Path(work))


@guarded
def sweep(
    config: Annotated[Path, typer.Argument(help="A run's TOML file; lists in it are a grid.", show_default=False)],
    overrides: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder. Default: runs/NAME of the file.")] = None,
    workers: Workers = None,
    engine: EngineOption = Where.local,
    ray_address: AddressOption = None,
    own: Own = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Choose hyper-parameters on validation data; only the chosen ones are ever tested.

    \b
    Examples:
      equipoise sweep experiment.toml --set 'method.lam=[0.1, 1.0, 2.0]'
    """
    from equipoise.audit.sweep import load, run

    files = known(own)
    grid, folder = load(config, overrides or ()), out or Path("runs") / config.stem
    where = engine_of(engine, ray_address, workers, files)
    with steps(quiet, folder) as report:
        chosen = run(grid, folder, engine=where, report=report)
    if as_json:
        put_json({"chosen": dict(chosen.settings), "criterion": chosen.criterion, "summary": chosen.result.summary()})
        return
    rows = [(*(str(v) for v in settings.values()), number(score)) for settings, score in chosen.scores]
    put_table((*chosen.settings, chosen.criterion), rows)
    told = ", ".join(f"{k} = {v}" for k, v in chosen.settings.items())
    accuracy = number(chosen.result.summary().get("accuracy_mean"))
    say(f"chosen on validation data: {told}; accuracy on the test split: {accuracy}")


@guarded
def advise(
    folders: Annotated[list[Path], typer.Argument(help="Folders of audits.", show_default=False)],
    wish: Annotated[str, typer.Option(help="What matters most; a wrong name lists them.")] = "worst-10",
    own: Own = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say which method to take for a wish, from audits already run. Trains nothing.

    \b
    Examples:
      equipoise advise runs/audit --wish worst-10
      equipoise advise runs/* --wish under-attack
    """
    from equipoise.audit import advise as advised
    from equipoise.audit import read

    known(own)
    once = {folder.resolve(): folder for folder in only(folders, "audit.toml", "an audit")}
    found = advised([read(folder) for folder in once.values()], wish)
    if as_json:
        put_json(
            {
                "method": found.method,
                "parameters": dict(found.parameters),
                "rule": found.rule,
                "confidence": found.confidence,
            }
        )
        return
    put(f"{found.method}\n  by: {found.rule}\n  how sure: {found.confidence}")


# -------------------------------------------------------------------------------------------------- small things


def _tell(paths: Sequence[Path]) -> None:
    for path in paths:
        say(str(path.resolve()))


def engine_of(where: Where, address: str | None, workers: int | None, own: tuple[Path, ...] = ()) -> Engine:
    from equipoise.audit.engines import Local, Ray, side_by_side

    if where is Where.ray:
        return Ray(address, workers, own)
    if address is not None:
        raise EquipoiseError(f"--ray-address is {address!r}, and nothing runs on Ray", "add --engine ray")
    return Local(workers or side_by_side(), own)


def _write_page(data: AuditData, folder: Path) -> Path:
    from equipoise.report import write_report

    return write_report(data, folder / "report.html")


def show(data: AuditData, as_json: bool = False) -> None:
    """The measures that a first look needs, averaged over seeds."""
    import numpy as np

    rows: list[dict[str, Any]] = []
    for attack in data.attacks:
        for method in data.methods:
            cells = data.cells.filter(method=method.name, attack=attack.name, status="done")
            means = {m: float(np.mean(cells[m])) if len(cells) else float("nan") for m in COLUMNS}
            rows.append({"attack": attack.name, "method": method.name, "runs": len(cells), **means})
    if as_json:
        put_json([{k: None if v != v else v for k, v in row.items()} for row in rows])
    else:
        put_table(tuple(rows[0]), [tuple(number(v) for v in row.values()) for row in rows])
    for attack in data.attacks:
        if why := data.why_empty(attack.name):
            say(f"no measures under {attack.name}: {why}")
