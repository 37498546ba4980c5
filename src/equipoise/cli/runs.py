"""Commands that make runs and look at them: run, resume, compare."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise.cli.terminal import Json, Quiet, Verbose, guarded, number, progress, put, put_json, put_table, say
from equipoise.errors import EquipoiseError

if TYPE_CHECKING:
    from equipoise.cli.profile import Profile
    from equipoise.config import Config
    from equipoise.experiment import Experiment
    from equipoise.results import Result
    from equipoise.tracking import Tracker

HEADLINE = ("accuracy_mean", "accuracy_std", "worst_10", "best_10", "angle")

MethodOption = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME|FILE.py", help="Another method than the config's; your own as a .py file."),
]
Own = Annotated[
    list[Path] | None,
    typer.Option("--own", metavar="FILE.py", help="A method, rule, filter, attack or model of your own. Repeatable."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Override one key; VALUE is TOML, or a bare word. Repeatable."
    ),
]


class Track(StrEnum):
    tensorboard = "tensorboard"
    mlflow = "mlflow"
    wandb = "wandb"


TrackOption = Annotated[
    Track | None, typer.Option("--track", help="Also tell a tracker, in the same folder and offline.")
]


@guarded
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file.", show_default=False)],
    overrides: SetOption = None,
    method: MethodOption = None,
    own: Own = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set run.seed=SEED.")] = None,
    device: Annotated[
        str | None, typer.Option(help='Short for --set run.device=DEVICE ("auto", "cpu", "cuda").')
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: one below runs/.")] = None,
    track: TrackOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also print where the time of a round goes.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the config, run nothing.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run one experiment.

    \b
    Examples:
      equipoise run experiment.toml
      equipoise run experiment.toml --set train.lr=0.1 --seed 3 --out runs/lr01
      equipoise run experiment.toml --method ./mine.py --track tensorboard
      equipoise run experiment.toml --own ./my_attack.py
      equipoise run experiment.toml --profile
      equipoise run experiment.toml --dry-run
    """
    from equipoise.config import dump, load
    from equipoise.config.parts import write

    known(own)
    short = {"run.seed": seed, "run.device": device}
    changes = [*(overrides or []), *(f"{k}={write(v)}" for k, v in short.items() if v is not None)]
    settled = load(config, changes, _method_name(method))
    tracker = tracker_of(track)

    from equipoise import experiment
    from equipoise.cli.profile import Profile
    from equipoise.engine.run import Simulation

    made = experiment.build(settled)
    if not quiet:
        _warn(made)
    if dry_run:
        Simulation(made.scenario, made.method, made.run)
        text = dump(settled)
        put_json(tomllib.loads(text)) if as_json else put(text.rstrip())
        return
    folder, times = out or _new_folder(Path("runs"), _folder_name(settled)), Profile() if profile else None
    try:
        with progress(quiet, verbose) as bar, times.watching(bar) if times else nullcontext(bar) as report:
            result = experiment.execute(made, folder, report, track=tracker(folder))
    finally:
        with suppress(OSError):
            folder.rmdir()  # only if the run never began, and left nothing in it
    if times:
        times.measure_device(made)
    _finish(result, as_json, quiet, verbose, times)


@guarded
def resume(
    path: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.", show_default=False)],
    method: MethodOption = None,
    own: Own = None,
    track: TrackOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Go on with an interrupted run; the result is the same as without the interruption.

    A run with parts of your own needs their files again, as they were (--method ./mine.py, --own ./my_attack.py): a
    config never makes code run. Data of your own (folder:PATH) must be as they were, too.

    \b
    Example:
      equipoise resume runs/fedprox-fashion-mnist-clean-s0
    """
    from equipoise import experiment

    if method is not None and not method.endswith(".py"):
        raise EquipoiseError(f"--method {method}: a run keeps its method", "give only the .py file that the run used")
    _method_name(method)
    known(own)
    tracker = tracker_of(track)
    with progress(quiet, verbose) as report:
        result = experiment.resume(path, report, tracker(path))
    _finish(result, as_json, quiet, verbose)


@guarded
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", show_default=False)],
    everything: Annotated[bool, typer.Option("--all", help="Every number of the summaries.")] = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Put runs side by side, one row each.

    \b
    Examples:
      equipoise compare runs/*
      equipoise compare runs/* --all --json
    """
    from equipoise import results

    loaded = [results.load_result(path) for path in only(runs, "config.toml", "a run")]
    for result in loaded:
        if result.note or result.why_empty:
            say(f"{result.path}: {result.note or result.why_empty}")
    table = results.compare(loaded)
    first = ("run", "method", "attack", "seed", *HEADLINE)
    names = [n for n in table.columns if everything or as_json or n in first]
    columns = {n: [_plain(v) for v in table[n].tolist()] for n in names}
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    put_json(rows) if as_json else put_table(names, [[number(v) for v in row.values()] for row in rows])


def only(paths: list[Path], mark: str, what: str) -> list[Path]:
    """Those of the paths that are folders of runs, or of audits, by the file that marks them: runs/* names others too.

    A path that leads nowhere stays: it is a mistake, and its reader says so.
    """
    found = [path for path in paths if (path / mark).is_file() or not path.exists()]
    for path in paths:
        if path not in found:
            say(f"left out: {path}, {_about(path)}")
    if not found:
        raise EquipoiseError(f"none of these is the folder of {what}", f"give the --out of {what}")
    return found


def _about(path: Path) -> str:
    """What a folder is that is not what was asked for, and where to turn to with it."""
    if (path / "audit.toml").is_file():
        return f"an audit; its runs are in {path / 'cells'}, equipoise report {shlex.quote(str(path))} tells of it"
    if (path / "sweep.json").is_file():
        return f"a sweep; the run of what it chose is in {path / 'best'}"
    return "a run" if (path / "config.toml").is_file() else "no folder of a run or an audit"


def _plain(value: Any) -> Any:
    return None if value != value else value


def _method_name(method: str | None) -> str | None:
    """The name behind --method; a file is imported first, because the user said so."""
    if method is None or not method.endswith(".py"):
        return method
    from equipoise import registry

    return registry.load_file(Path(method), "methods").name


def known(own: list[Path] | None) -> tuple[Path, ...]:
    """The files behind --own, whose parts a config may name from now on."""
    if own:
        from equipoise import registry

        for path in own:
            registry.load_file(path)
    return tuple(own or ())


def tracker_of(track: Track | None) -> Callable[[Path], Tracker | None]:
    """How to make the tracker of a folder; a package that is not there is missed here, before anything is trained."""
    if track is None:
        return lambda folder: None
    from equipoise import tracking

    return tracking.get(track.value)


def _warn(made: Experiment) -> None:
    from equipoise.engine.cautions import cautions

    s = made.scenario
    for text in cautions(made.method, s.attack, s.admission, s.federation.n_clients):
        say(f"warning: {text}")


def _folder_name(config: Config) -> str:
    dataset = re.sub(r"[^A-Za-z0-9._-]+", "-", config.data.dataset.removeprefix("folder:").rpartition("/")[2])
    attack = config.attack.name if config.attack else "clean"
    return f"{config.method.name}-{dataset[:40]}-{attack}-s{config.run.seed}"


def _new_folder(parent: Path, name: str) -> Path:
    """An empty folder that nobody else has: name, name-2, name-3, ..."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for i in range(1, 10_000):
            folder = parent / (name if i == 1 else f"{name}-{i}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise EquipoiseError(
            f"cannot make a folder in {parent}: {error.strerror}", "choose another with --out"
        ) from error
    raise EquipoiseError(f"{parent} holds 9,999 runs of {name}", "choose another folder with --out")


def _finish(result: Result, as_json: bool, quiet: bool, verbose: bool, times: Profile | None = None) -> None:
    summary = result.summary()
    if as_json:
        put_json({**summary, "profile": times.plain()} if times else summary)
    else:
        names = summary if verbose else [n for n in (*HEADLINE, "loss_mean", "loss_std") if n in summary]
        rows = [(n, number(summary[n])) for n in names if isinstance(summary[n], int | float)]
        put_table(("measure", "value"), rows)
        if times:
            times.put()
    if result.why_empty:
        say(f"no measures: {result.why_empty}")
    if not quiet and result.path is not None:
        say(f"saved in {result.path} (all measures: summary.json)")
