"""A run that several tables have is made once, for the first that is asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.audit.runner import Step
from equipoise.reproduce import Record, load, run
from equipoise.reproduce.record import unfinished
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


def three(tmp_path: Path) -> tuple[Table, ...]:
    """The one in the middle measures less."""
    few = OTHER.replace('measures = ["accuracy_mean", "accuracy_std"]', 'measures = ["accuracy_mean"]')
    assert few != OTHER
    return folder(tmp_path / "e", us_a=TABLE, us_b=few, us_c=OTHER)


@pytest.mark.parametrize("first", ["together", "before"])
def test_a_table_that_measures_less_hides_nothing(tmp_path: Path, first: str) -> None:
    one, few, two = three(tmp_path)
    wanted = Wanted(rows=["own", "figured"], columns=["clean", "bare"])
    if first == "before":
        assert len(runs((few,), tmp_path / "out", wanted)) == 1
    made = runs((one, two) if first == "before" else (one, few, two), tmp_path / "out", wanted)
    assert made == ["us/a own clean seed 0"]
    assert len({str(numbers(table, tmp_path / "out").values()) for table in (one, two)}) == 1
    assert runs((one, few, two), tmp_path / "out", wanted) == []


def test_what_was_taken_over_does_not_outlive_what_it_was_taken_from(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=OTHER)
    wanted = Wanted(rows=["own", "figured"], columns=["clean", "bare"])
    runs((one, two), tmp_path / "out", wanted)
    (tmp_path / "out/us/measured/one.json").unlink()
    assert runs((one,), tmp_path / "out", wanted) == ["us/one own clean seed 0"]
    assert not any("table" in e for e in Record(one, tmp_path / "out").entries.values())


def test_smaller_shares_are_taken_over_beside_larger_ones(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=OTHER)
    wanted = Wanted(rows=["own", "figured"], columns=["clean", "bare"])
    runs((one,), tmp_path / "out", replace(wanted, also=[0.5]))
    assert runs((two,), tmp_path / "out", wanted) == [] and len(numbers(two, tmp_path / "out")) == 1
    assert runs((two,), tmp_path / "out", replace(wanted, also=[0.5])) == []
    assert len(numbers(two, tmp_path / "out")) == 2


def test_a_damaged_record_of_another_table_is_passed_over(tmp_path: Path) -> None:
    (one,) = folder(tmp_path / "e", us_one=TABLE)
    damaged = tmp_path / "out/other/measured"
    damaged.mkdir(parents=True)
    for name, text in {"half": '{"entr', "none": "{}", "list": "[]", "odd": '{"entries": [3]}'}.items():
        (damaged / f"{name}.json").write_text(text)
    assert len(runs((one,), tmp_path / "out", Wanted(rows=["own"], columns=["clean"]))) == 1


def stopped(table: Table, out: Path) -> Path:
    """The folder that a table leaves when it is stopped in its first run of a personalised method."""
    cell = next(cell for cell in table.cells if cell.row in ("own", "figured"))
    folder = unfinished(out, table.name, cell, cell.seed)
    folder.mkdir(parents=True)
    return folder


def test_the_table_that_was_stopped_in_a_run_goes_on_with_it(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=OTHER)
    wanted = Wanted(rows=["own", "figured"], columns=["clean", "bare"])
    left = stopped(two, tmp_path / "out")
    assert runs((one, two), tmp_path / "out", wanted) == ["us/two figured bare seed 0"]
    assert not left.exists() and numbers(one, tmp_path / "out").keys() == {("own", "clean", 0, 1.0)}


def test_what_a_table_was_stopped_in_is_removed_when_another_has_measured_it(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=OTHER)
    wanted = Wanted(rows=["own", "figured"], columns=["clean", "bare"])
    left = stopped(two, tmp_path / "out")
    runs((one,), tmp_path / "out", wanted)
    assert left.exists()
    assert runs((two,), tmp_path / "out", wanted) == [] and not left.exists()
    left = stopped(two, tmp_path / "out")  # of a share that it has: nobody waits for it, and it keeps nobody waiting
    shorter = replace(wanted, scale=0.5)
    assert runs((one, two), tmp_path / "out", replace(shorter, seeds=[0, 1])) == ["us/one own clean seed 1"]


def test_tables_have_what_was_measured_before_it_was_stopped(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "e", us_one=TABLE, us_two=OTHER)

    def stop(step: Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run((one, two), tmp_path / "out", report=stop)
    assert len(numbers(one, tmp_path / "out")) == len(numbers(two, tmp_path / "out")) == 2  # of four
