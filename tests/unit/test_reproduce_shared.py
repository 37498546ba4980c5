"""A run that several tables have is made once, for the first that is asked for."""

from pathlib import Path
from typing import Any

import pytest

from equipoise.reproduce import Record, load, run
from equipoise.reproduce.runner import Wanted
from equipoise.reproduce.tables import Table
from tests.unit.test_reproduce_together import TABLE

OTHER = (
    TABLE.replace("A table", "A figure").replace("rows.own", "rows.figured").replace("columns.clean", "columns.bare")
)
ELSE = OTHER.replace("lam = 0.5", "lam = 0.25")


def folder(path: Path, **texts: str) -> tuple[Table, ...]:
    for name, text in texts.items():
        paper, file = name.split("_")
        (path / paper).mkdir(parents=True, exist_ok=True)
        (path / paper / f"{file}.toml").write_text(text)
    return tuple(load(name.replace("_", "/"), path) for name in texts)


def runs(tables: tuple[Table, ...], out: Path, wanted: Wanted = Wanted()) -> list[str]:
    """The names of the runs that it took."""
    seen: list[str] = []
    assert run(tables, out, wanted, report=lambda step: seen.append(step.what)) == {}
    return seen


def numbers(table: Table, out: Path) -> dict[tuple[Any, ...], Any]:
    entries = Record(table, out).entries.values()
    return {(e["row"], e["column"], e["seed"], e["scale"]): (e["numbers"], e["rounds"]) for e in entries}


def test_both_tables_have_the_numbers_and_one_command_makes_the_runs_once(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=OTHER)
    made = runs((one, two), tmp_path / "out", Wanted(also=[0.5]))
    assert sorted(made) == ["us/one own clean seed 0", "us/one own noise seed 0"]
    mine, other = numbers(one, tmp_path / "out"), numbers(two, tmp_path / "out")
    assert len(mine) == len(other) == 2 * 2 * 2
    assert other["figured", "bare", 0, 0.5] == mine["own", "clean", 0, 0.5] != mine["own", "clean", 0, 1.0]
    assert {e["table"] for e in Record(two, tmp_path / "out").entries.values()} == {"us/one"}
    assert not any("table" in e for e in Record(one, tmp_path / "out").entries.values())


def test_what_was_measured_for_another_table_is_taken_over_later(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "e", us_one=TABLE, them_two=OTHER)
    first = runs((one,), tmp_path / "out", Wanted(rows=["own"], columns=["clean"]))
    second = runs((two,), tmp_path / "out", Wanted(rows=["figured"]))
    assert (first, second) == (["us/one own clean seed 0"], ["them/two figured noise seed 0"])


def test_what_a_table_has_measured_itself_stays(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=OTHER)
    runs((two,), tmp_path / "two", Wanted(rows=["figured"], columns=["bare"]))
    runs((one,), tmp_path / "one", Wanted(rows=["own"], columns=["clean"]))
    (tmp_path / "one/us/measured/one.json").rename(tmp_path / "two/us/measured/one.json")
    assert runs((one, two), tmp_path / "two", Wanted(rows=["own", "figured"], columns=["clean", "bare"])) == []
    assert not any("table" in e for e in Record(two, tmp_path / "two").entries.values())


@pytest.mark.parametrize("other", ["seed", "scale", "setting", "measure"])
def test_another_run_is_another_run(tmp_path: Path, other: str) -> None:
    text = ELSE if other == "setting" else OTHER
    if other == "measure":
        text = text.replace('"accuracy_std"]', '"accuracy_std", "worst_10"]')
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=text)
    runs((one,), tmp_path / "out", Wanted(rows=["own"], columns=["clean"]))
    wanted = Wanted(0.5 if other == "scale" else 1.0, [1] if other == "seed" else None, ["figured"], ["bare"])
    assert len(runs((two,), tmp_path / "out", wanted)) == 1


def test_a_table_that_measures_more_makes_its_own_run_in_the_same_command(tmp_path: Path) -> None:
    more = OTHER.replace('"accuracy_std"]', '"accuracy_std", "worst_10"]')
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=more)
    wanted = Wanted(rows=["own", "figured"], columns=["clean", "bare"])
    assert len(runs((one, two), tmp_path / "out", wanted)) == 2
    assert len(runs((two, one), tmp_path / "again", wanted)) == 1  # the other way round one is enough
    assert numbers(one, tmp_path / "out") == numbers(one, tmp_path / "again")


def test_what_was_chosen_from_a_grid_is_nobody_elses(tmp_path: Path) -> None:
    """Another table may choose in another way."""
    grid = 'grid = { "train.lr" = [0.01, 0.1] }\n\n[run.data]'
    one, two = folder(
        tmp_path / "e", us_one=TABLE.replace("[run.data]", grid), us_two=OTHER.replace("[run.data]", grid)
    )
    wanted = Wanted(rows=["own", "figured"], columns=["clean", "bare"])
    assert len([name for name in runs((one, two), tmp_path / "out", wanted) if "seed 0" in name]) == 2
    assert "us/one own clean seed 0" in runs((one,), tmp_path / "again", wanted)
    assert "us/two figured bare seed 0" in runs((two,), tmp_path / "again", wanted)
