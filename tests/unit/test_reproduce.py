"""Published tables: read strictly, run once, kept, and judged as they say."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import experiment, files
from equipoise.attacks.backdoor import Backdoor
from equipoise.errors import EquipoiseError
from equipoise.methods.local import local
from equipoise.reproduce import Record, home, load, matching, names, run, runner
from equipoise.reproduce.measures import NAMES
from equipoise.reproduce.page import OVERVIEW, glance, grids, overview, section, write
from equipoise.reproduce.record import final, leave
from equipoise.reproduce.runner import Wanted
from equipoise.reproduce.tables import Cell, Table, merged
from equipoise.reproduce.verdicts import found, held
from tests.small import federation

TABLE = """
title = "A table"
source = "Nobody, Table 1"
measures = ["accuracy_mean", "angle"]
within = { accuracy_mean = 0.05 }
choose = { validation = 0.2, rounds = 1 }

[run.data]
dataset = "digits"
clients = 6
[run.model]
kind = "linear"
[run.train]
rounds = 2
batch = 0
[run.run]
eval_every = 0

[columns.iid]
title = "iid"
[columns.skewed]
title = "skewed"
set.data.partition = { kind = "dirichlet", alpha = 0.5 }

[rows.fedavg]
title = "FedAvg"
set.method = { name = "fedavg" }
grid = { "train.lr" = [0.01, 0.1] }
[rows.fedprox]
title = "FedProx"
set.method = { name = "fedprox", mu = 0.1 }
at.skewed.method.mu = 1.0
seeds = [0, 1]

[[claims]]
says = "FedProx is better"
measure = "accuracy_mean"
more = "fedprox"
"""
PUBLISHED = "[one.iid]\nfedavg = [0.5, 0.2]\nfedprox = [0.9]\n"


def folder_with(path: Path, table: str = TABLE, published: str = PUBLISHED) -> Path:
    (path / "nobody").mkdir(parents=True)
    (path / "nobody" / "one.toml").write_text(table)
    (path / "nobody" / "published.toml").write_text(published)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return load("nobody/one", folder_with(tmp_path / "experiments"))


def entry(cell: Cell, accuracy: float | None, scale: float = 1.0) -> dict[str, object]:
    return {**final(cell, scale), "rounds": 2, "numbers": {"accuracy_mean": accuracy, "angle": None}}


def test_a_cell_is_the_run_with_the_columns_and_then_the_rows_settings(table: Table) -> None:
    cells = {(c.row, c.column, c.seed): c for c in table.cells}
    assert len(cells) == 6
    config = cells["fedprox", "skewed", 1].config()
    assert (config.method.params["mu"], config.data.partition["alpha"], config.run.seed) == (1.0, 0.5, 1)
    assert cells["fedprox", "iid", 0].config().method.params["mu"] == 0.1
    assert cells["fedavg", "iid", 0].config({"train.lr": 0.1}, 0.5).train.lr == 0.1
    assert cells["fedavg", "iid", 0].config(rounds=0.5).train.rounds == 1


def test_a_named_table_replaces_and_any_other_is_merged() -> None:
    first = {"method": {"name": "a", "x": 1}, "train": {"lr": 1, "batch": 2}}
    over = merged(first, {"method": {"name": "b"}, "train": {"lr": 3}}, {"method": {"y": 2}})
    assert over == {"method": {"name": "b", "y": 2}, "train": {"lr": 3, "batch": 2}}
    assert first["method"] == {"name": "a", "x": 1}


def test_every_cell_is_run_once_its_grid_decided_without_the_test_split(table: Table, tmp_path: Path) -> None:
    seen: list[str] = []
    assert run([table], tmp_path / "out", report=lambda step: seen.append(step.what)) == {}
    assert len(seen) == 4 + 6
    record = Record(table, tmp_path / "out")
    trials = [e for e in record.entries.values() if e["seed"] is None]
    assert len(trials) == 4
    assert all("numbers" not in e and 0 <= e["score"] <= 1 for e in trials)
    best = max((e for e in trials if e["column"] == "iid"), key=lambda e: e["score"])
    assert record.of("fedavg", "iid", table.cells)[0]["chosen"] == best["tried"]
    seen.clear()
    before = record.path.read_bytes()
    run([table], tmp_path / "out", Wanted(scale=0.5), report=lambda step: seen.append(step.what))
    assert seen == []
    assert record.path.read_bytes() == before


def test_entries_name_the_commit_that_their_process_began_with(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = runner.experiment.execute

    def meanwhile(*given: Any, **more: Any) -> Any:
        monkeypatch.setenv("EQUIPOISE_COMMIT", "later")
        return execute(*given, **more)

    runner._commit.cache_clear()
    monkeypatch.setenv("EQUIPOISE_COMMIT", "begun")
    monkeypatch.setattr(runner.experiment, "execute", meanwhile)
    assert run([table], tmp_path / "out", Wanted(rows=["fedprox"])) == {}
    runner._commit.cache_clear()
    found = Record(table, tmp_path / "out").entries.values()
    assert {e["commit"] for e in found if e["row"] == "fedprox"} == {"begun"}


def longer() -> str:
    """The table with columns that differ in the number of rounds."""
    text = TABLE.replace('set.data.partition = { kind = "dirichlet", alpha = 0.5 }', "set.train.rounds = 5")
    return text.replace("at.skewed.method.mu = 1.0\n", "")


def numbers(table: Table, out: Path) -> dict[tuple[str, str, int, float], object]:
    found = Record(table, out).entries.values()
    return {(e["row"], e["column"], e["seed"], e["scale"]): e["numbers"] for e in found if e["seed"] is not None}


def test_columns_that_differ_in_rounds_alone_share_trials_and_runs(tmp_path: Path) -> None:
    text = longer().replace("[run.model]", "[run.participation]\nper_round = 3\n[run.model]")
    table, seen = load("nobody/one", folder_with(tmp_path / "e", text)), []
    assert run([table], tmp_path / "shared", report=lambda step: seen.append(step.what)) == {}
    assert len(seen) == 2 + 3 and len(Record(table, tmp_path / "shared").entries) == 4 + 6
    for column in ("iid", "skewed"):  # one after the other they share nothing
        assert run([table], tmp_path / "apart", Wanted(columns=[column])) == {}
    assert numbers(table, tmp_path / "shared") == numbers(table, tmp_path / "apart")
    lengths = {(e["column"], e.get("rounds")) for e in Record(table, tmp_path / "shared").entries.values()}
    assert {("iid", 2), ("skewed", 5)} <= lengths


def test_smaller_shares_are_measured_on_the_way_where_nothing_is_chosen(tmp_path: Path) -> None:
    table, seen = load("nobody/one", folder_with(tmp_path / "e", longer())), []
    wanted = Wanted(columns=["skewed"], also=[0.4])
    run([table], tmp_path / "out", wanted, report=lambda step: seen.append(step.what))
    assert len(seen) == 2 + 3
    found = numbers(table, tmp_path / "out")
    assert set(found) == {("fedavg", "skewed", 0, 1.0)} | {
        ("fedprox", "skewed", s, f) for s in (0, 1) for f in (0.4, 1.0)
    }
    run([table], tmp_path / "short", Wanted(0.4, columns=["skewed"], rows=["fedprox"]))
    short = numbers(table, tmp_path / "short")
    assert short and all(found[key] == value for key, value in short.items())


def test_clients_that_go_on_after_the_last_round_are_not_measured_on_the_way(tmp_path: Path) -> None:
    text = longer().replace('name = "fedprox", mu = 0.1', 'name = "finetuning"')
    table, seen = load("nobody/one", folder_with(tmp_path / "e", text)), []
    wanted = Wanted(rows=["fedprox"], seeds=[0], also=[0.5])
    assert run([table], tmp_path / "out", wanted, report=lambda step: seen.append(step.what)) == {}
    assert len(seen) == 2 and {key[3] for key in numbers(table, tmp_path / "out")} == {1.0}
    made = experiment.build(table.cells[-1].config())
    with pytest.raises(EquipoiseError, match="on_the_way"):
        experiment.execute(made, on_the_way={1: lambda result: None})


@pytest.mark.parametrize("change", ["train.lr=1", "run.seed=3", "run.eval_every=1", "method.mu=2", "run.splits=all"])
def test_what_would_make_another_table_cannot_be_set(change: str) -> None:
    with pytest.raises(EquipoiseError, match=re.escape(f"--set {change}")):
        Wanted(sets=["run.device=cpu", change])


def test_the_page_says_how_many_runs_were_rougher_or_finer_than_the_table(table: Table, tmp_path: Path) -> None:
    one = {"rows": ["fedprox"], "columns": ["iid"]}
    run([table], tmp_path, Wanted(seeds=[0], **one))
    run([table], tmp_path, Wanted(seeds=[1], sets=["run.dtype=float64", "run.device=cpu"], **one))
    first, second = Record(table, tmp_path).of("fedprox", "iid", table.cells)
    assert "set" not in first and second["set"] == ["run.dtype=float64", "run.device=cpu"]
    told = section(table, Record(table, tmp_path))
    assert "1 of 2 runs with run.dtype=float64" in told and "run.device" not in told


def test_no_run_starts_after_its_time_and_what_is_left_is_run_later(table: Table, tmp_path: Path) -> None:
    run([table], tmp_path, minutes=0)
    assert not Record(table, tmp_path).entries
    run([table], tmp_path, Wanted(rows=["fedprox"], columns=["iid"], seeds=[5]))
    assert [e["seed"] for e in Record(table, tmp_path).of("fedprox", "iid", table.cells)] == [5]


def test_a_failing_cell_is_told_and_does_not_stop_the_others(tmp_path: Path) -> None:
    text = TABLE.replace('{ kind = "dirichlet", alpha = 0.5 }', '{ kind = "pathological", classes = 11 }')
    table = load("nobody/one", folder_with(tmp_path / "e", text))
    errors = run([table], tmp_path, Wanted(rows=["fedprox"]))
    assert len(errors) == 2 and len(Record(table, tmp_path).entries) == 2
    assert all("classes is 11 per client, but digits has 10" in text for text in errors.values())


def test_a_share_on_the_way_is_smaller_than_the_whole() -> None:
    for share in (0.5, 0.7):
        with pytest.raises(EquipoiseError, match=f"--also is {share}\n.*below --scale, 0.5"):
            Wanted(scale=0.5, also=[0.1, share])


def test_all_numbers_of_a_summary_may_be_asked_for_and_no_other() -> None:
    setting = {"attack": Backdoor(count=1), "model": "linear", "rounds": 1, "device": "cpu"}
    summary = experiment.run(federation(shape=(1, 4, 4)), local(), **setting).summary()  # type: ignore[arg-type]
    numbers = {name for name, value in summary.items() if isinstance(value, float)}
    assert {"attack_success", "validation_personal_gini", "worst_10_last_tenth"} <= numbers <= NAMES
    assert not NAMES & {"method", "dataset", "nonsense"}


def test_entries_left_by_a_killed_process_are_taken_in(table: Table, tmp_path: Path) -> None:
    record, cell = Record(table, tmp_path), table.cells[0]
    leave(record.inbox, entry(cell, 0.5))
    again = Record(table, tmp_path)
    assert again.of(cell.row, cell.column, table.cells)[0]["numbers"]["accuracy_mean"] == 0.5
    assert not again.inbox.exists()
    assert len(files.read_json(again.path)["entries"]) == 1


def test_a_changed_setting_makes_old_entries_invisible(table: Table, tmp_path: Path) -> None:
    leave(Record(table, tmp_path).inbox, entry(table.cells[0], 0.5))
    changed = load("nobody/one", folder_with(tmp_path / "changed", TABLE.replace("rounds = 2", "rounds = 3")))
    assert Record(changed, tmp_path).of("fedavg", "iid", changed.cells) == []


@pytest.mark.parametrize(
    ("fedavg", "fedprox", "verdict", "claim"),
    [
        (0.52, 0.6, "agrees", "holds in part"),
        (0.7, 0.9, "higher", "holds in part"),
        (0.3, 0.1, "lower", "does not hold"),
    ],
)
def test_verdicts(table: Table, tmp_path: Path, fedavg: float, fedprox: float, verdict: str, claim: str) -> None:
    record = Record(table, tmp_path)
    for cell in table.cells:
        other = 0.0 if cell.column == "skewed" else fedprox
        leave(record.inbox, entry(cell, fedavg if cell.row == "fedavg" else other))
    record.take_in()
    ours = found(table, record)
    assert ours["fedavg", "iid", "accuracy_mean"].verdict == verdict
    assert ours["fedavg", "skewed", "accuracy_mean"].verdict == ""
    assert ours["fedavg", "iid", "angle"].verdict == "not measured"
    assert [h.verdict for h in held(table, ours)] == [claim]


def test_rows_are_compared_over_the_seeds_that_both_have(table: Table, tmp_path: Path) -> None:
    record = Record(table, tmp_path)
    accuracy = {("fedavg", 0): 0.5, ("fedprox", 0): 0.6, ("fedprox", 1): 0.1}
    for cell in table.cells:
        leave(record.inbox, entry(cell, accuracy[cell.row, cell.seed]))
    record.take_in()
    (claim,) = held(table, found(table, record))
    assert claim.verdict == "holds" and {pair.seeds for pair in claim.pairs} == {1}
    assert "| holds | 1, 100% |" in section(table, record)


def test_rows_that_share_no_seed_are_compared_and_the_page_says_so(table: Table, tmp_path: Path) -> None:
    record = Record(table, tmp_path)
    for cell in table.cells:
        if cell.column == "skewed" or (cell.row == "fedprox") == (cell.seed == 1):
            leave(record.inbox, entry(cell, 0.6 if cell.row == "fedprox" else 0.5))
    record.take_in()
    (claim,) = held(table, found(table, record))
    assert claim.verdict == "holds" and [pair.apart for pair in claim.pairs] == [True, False]
    assert "| holds | 1, 100%; 1 of 2 pairs share no seed |" in section(table, record)


@pytest.mark.parametrize(
    ("gains", "verdict", "told"),
    [
        ((0.2, -0.1), "holds", "seed by seed 2 of 4"),  # the means say so, one seed of two does not
        ((0.2, 0.1), "holds", "seed by seed 4 of 4"),
        ((0.2, 0.0), "holds", "seed by seed 2 of 4"),  # equals are not better
        ((0.2, 1e-15), "holds", "seed by seed 2 of 4"),  # nor are sums in another order
        ((-0.2, 0.1), "does not hold", "seed by seed 2 of 4"),
    ],
)
def test_a_verdict_on_means_says_how_many_seeds_agree(
    table: Table, tmp_path: Path, gains: tuple[float, float], verdict: str, told: str
) -> None:
    record = Record(table, tmp_path)
    for cell in table.cells:
        for seed, gain in enumerate(gains):
            leave(record.inbox, entry(replace(cell, seed=seed), 0.5 + (gain if cell.row == "fedprox" else 0.0)))
    record.take_in()
    (claim,) = held(table, found(table, record))
    assert (claim.verdict, claim.seed_by_seed) == (verdict, told)
    assert f"| {verdict} | 2, 100%; {told} |" in section(table, record)


def test_seed_by_seed_the_whole_claim_is_counted_where_all_rows_have_the_seed(tmp_path: Path) -> None:
    third = '[rows.third]\ntitle = "Third"\nset.method = { name = "fedprox", mu = 0.2 }\n'
    table = load("nobody/one", folder_with(tmp_path / "experiments", TABLE.replace("[[claims]]", third + "[[claims]]")))
    record = Record(table, tmp_path)
    accuracy = {"fedavg": (0.5, 0.5, 0.5), "fedprox": (0.6, 0.6, 0.6), "third": (0.55, 0.75)}  # no third seed
    for cell in table.cells:
        for seed, value in enumerate(accuracy[cell.row]):
            leave(record.inbox, entry(replace(cell, seed=seed), value))
    record.take_in()
    (claim,) = held(table, found(table, record))
    assert [list(column) for column in claim.each] == [
        [True, False]
    ] * 2  # each beats FedAvg, one the third row as well
    assert (claim.verdict, claim.seed_by_seed) == ("does not hold", "seed by seed 2 of 4")  # means: 0.6 against 0.65


def test_a_number_that_is_asked_for_is_reached_seed_by_seed(tmp_path: Path) -> None:
    table = load("nobody/one", folder_with(tmp_path / "experiments", TABLE + "than = 0.5\n"))
    record = Record(table, tmp_path)
    for cell in table.cells:
        for seed, accuracy in enumerate((0.5, 0.4, 0.7)):
            leave(record.inbox, entry(replace(cell, seed=seed), accuracy))
    record.take_in()
    (claim,) = held(table, found(table, record))
    assert (claim.verdict, claim.seed_by_seed) == ("holds", "seed by seed 4 of 6")


def test_seeds_that_are_far_apart_agree_with_nothing(table: Table, tmp_path: Path) -> None:
    record = Record(table, tmp_path)
    for cell in table.cells:
        leave(record.inbox, entry(cell, 0.6 + 0.3 * cell.seed))
    record.take_in()
    assert found(table, record)["fedprox", "iid", "accuracy_mean"].verdict == "undecided"
    assert "0.750 ± 0.212 ?" in section(table, record)


def test_runs_of_different_lengths_are_not_compared(table: Table, tmp_path: Path) -> None:
    record = Record(table, tmp_path)
    for cell in table.cells:
        shorter = cell.row == "fedprox" and cell.column == "skewed"
        leave(record.inbox, entry(cell, 0.9 if cell.row == "fedprox" else 0.5, 0.1 if shorter else 1.0))
    record.take_in()
    (claim,) = held(table, found(table, record))
    assert claim.verdict == "holds so far" and claim.why.startswith("not compared") and claim.why.count(", ") == 2
    for cell in table.cells:  # and with runs of the same length beside the longer ones they are
        leave(record.inbox, entry(cell, 0.9 if cell.row == "fedprox" else 0.5, 0.1))
    record.take_in()
    assert [(h.verdict, h.why) for h in held(table, found(table, record))] == [("holds", "")]


def judged(table: Table, out: Path, accuracies: dict[tuple[str, str], float | None]) -> list[tuple[str, str]]:
    """Verdict and reason of every claim, given the accuracy of some cells at seed 0."""
    record = Record(table, out)
    for cell in table.cells:
        if (cell.row, cell.column) in accuracies and cell.seed == 0:
            made = {**final(cell, 1.0), "rounds": 2, "numbers": {"accuracy_mean": accuracies[cell.row, cell.column]}}
            leave(record.inbox, made)
    record.take_in()
    return [(h.verdict, h.why) for h in held(table, found(table, record))]


IID = {("fedavg", "iid"): 0.5, ("fedprox", "iid"): 0.6}


@pytest.mark.parametrize(
    ("more", "verdict", "why"),
    [
        ({}, "holds so far", "not measured: skewed, FedProx"),
        ({("fedprox", "skewed"): 0.1}, "holds so far", "not measured: skewed, FedAvg"),
        ({("fedprox", "iid"): 0.4}, "does not hold", "iid: 0.4 against 0.5; not measured: skewed, FedProx"),
        ({("fedavg", "skewed"): 0.5, ("fedprox", "skewed"): 0.5}, "holds in part", "skewed: both 0.5"),
        ({("fedprox", "skewed"): None}, "holds in part", "there is no such number; not measured: skewed, FedAvg"),
        ({("fedprox", "iid"): 0.5}, "undecided", "iid: both 0.5"),
        ({("fedavg", "skewed"): None, ("fedprox", "skewed"): 0.5}, "holds so far", "no such number: skewed, FedAvg"),
    ],
)
def test_what_was_not_compared_is_told(
    table: Table, tmp_path: Path, more: dict[tuple[str, str], float | None], verdict: str, why: str
) -> None:
    ((found_verdict, told),) = judged(table, tmp_path, {**IID, **more})
    assert found_verdict == verdict and told.endswith(why)


def test_nothing_measured_is_nothing_to_tell(table: Table, tmp_path: Path) -> None:
    assert judged(table, tmp_path, {}) == [("not measured", "")]


def test_many_comparisons_are_counted(tmp_path: Path) -> None:
    rows = "".join(f'[rows.r{i}]\ntitle = "R{i}"\nset.method = {{ name = "fedavg" }}\n' for i in range(5))
    table = load("nobody/one", folder_with(tmp_path / "e", TABLE.replace("[[claims]]", rows + "[[claims]]")))
    assert judged(table, tmp_path, IID) == [("holds so far", "not measured: 11 of 12 comparisons")]


def test_a_margin_that_is_just_met_is_told_with_both_numbers(tmp_path: Path) -> None:
    text = TABLE.replace('more = "fedprox"', 'more = "fedprox"\nby = 0.25\ncolumns = ["iid"]')
    table = load("nobody/one", folder_with(tmp_path / "e", text))
    assert judged(table, tmp_path, {**IID, ("fedprox", "iid"): 0.75}) == [("undecided", "iid: 0.75, just 0.75")]


def test_a_seed_without_a_number_keeps_a_claim_from_holding(table: Table, tmp_path: Path) -> None:
    """Gone within so many rounds, in one seed; never, in the other."""
    record = Record(table, tmp_path)
    for cell in table.cells:
        leave(record.inbox, entry(cell, 0.5 if cell.row == "fedavg" else 0.6 if cell.seed == 0 else None))
    record.take_in()
    ours = found(table, record)
    (claim,) = held(table, ours)
    assert claim.verdict == "holds in part" and "iid: there is no such number with seed 1" in claim.why
    assert "0.600 in 1 of 2" in str(list(grids(table, ours)))


def test_a_number_as_the_bound_may_be_met_exactly(tmp_path: Path) -> None:
    text = TABLE.replace('more = "fedprox"', 'more = "fedprox"\nthan = 0.6\ncolumns = ["iid"]')
    assert judged(load("nobody/one", folder_with(tmp_path / "e", text)), tmp_path, IID) == [("holds", "")]


def test_the_largest_scale_is_what_is_shown(table: Table, tmp_path: Path) -> None:
    record, cell = Record(table, tmp_path), table.cells[0]
    for scale, accuracy in ((0.1, 0.2), (1.0, 0.8), (0.5, 0.4)):
        leave(record.inbox, entry(cell, accuracy, scale))
    record.take_in()
    assert found(table, record)[cell.row, cell.column, "accuracy_mean"].values == (0.8,)


def test_the_page_is_a_function_of_table_and_record(table: Table, tmp_path: Path) -> None:
    record = Record(table, tmp_path)
    leave(record.inbox, entry(table.cells[0], 0.52))
    record.take_in()
    pages = [write([table], tmp_path, tmp_path / name).read_text() for name in ("a.md", "b.md")]
    assert pages[0] == pages[1]
    assert "| FedAvg | 0.500 (0.200) | 0.520 ≈ (–) |" in pages[0]
    assert "not measured" in pages[0]


def test_a_table_at_a_glance(table: Table, tmp_path: Path) -> None:
    nothing = ["[nobody/one](nobody.md)", "0 of 4", "–", "–", "–", "–", "–", "–", "1"]
    assert glance(table, tmp_path) == nothing
    record = Record(table, tmp_path)
    for cell in table.cells:
        if cell.column == "iid":
            leave(record.inbox, entry(cell, 0.9 if cell.row == "fedprox" else 0.5, 0.1))
    record.take_in()
    some = ["[nobody/one](nobody.md)", "2 of 4", "10%", "1 to 2", "–", "1", "–", "–", "–"]
    assert glance(table, tmp_path) == some
    text = overview([table], tmp_path, tmp_path / "all.md", "# Ours").read_text()
    assert text.startswith("# Ours\n") and f"| {' | '.join(OVERVIEW)} |" in text and f"| {' | '.join(some)} |" in text


def test_the_page_tells_how_long_choices_ran_and_which_column_has_no_run(tmp_path: Path) -> None:
    table = load("nobody/one", folder_with(tmp_path / "e", TABLE.replace("rounds = 1 }", "rounds = 40 }")))
    record, cell = Record(table, tmp_path), table.cells[0]
    leave(record.inbox, {**entry(cell, 0.5, 0.1), "chosen": cell.grid[0]})
    record.take_in()
    told = section(table, record)
    assert "seed 1000, 4 rounds): FedAvg lr 0.01." in told and "| 1 × 2 rounds, – |" in told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('more = "fedprox"', 'more = "fedporx"', "fedporx"),
        ('more = "fedprox"', "", "less, more"),
        ('measure = "accuracy_mean"', 'measure = "accuracy"', "accuracy"),
        ("mu = 0.1", "mu = -1.0", "mu"),
        ("at.skewed", "at.skew", "skew"),
        ("clients = 6", "clientz = 6", "clientz"),
        ("title = ", "titel = ", "title is missing"),
        ("rounds = 1 }", 'rounds = 1, by = "loss_mean" }', "choose.by is"),
        ("rounds = 1 }", "rounds = 0 }", "choose.rounds is 0"),
        ("rounds = 1 }", "rounds = -3 }", "choose.rounds is -3"),
        ("rounds = 1 }", 'rounds = "few" }', 'choose.rounds is "few"'),
        ("validation = 0.2", "validation = 1.0", "choose.validation is 1.0"),
        ("rounds = 2\n", 'rounds = "many"\n', 'fedavg in iid: train.rounds is "many"'),
        ("[run.train]\nrounds = 2\n", "[run.train]\nrounds = -2\n", "train.rounds is -2"),
        ("[0.01, 0.1]", "[]", 'rows.fedavg.grid."train.lr" is'),
        ("[0.01, 0.1]", '[0.01, "fast"]', 'fedavg in iid: train.lr is "fast"'),
        ("[0.01, 0.1]", "0.1", "rows.fedavg.grid.train.lr is 0.1"),
        ('"train.lr" = [0.01, 0.1]', '"run.seed" = [1, 2]', "rows.fedavg.grid is 'run.seed'"),
        ('"train.lr" = [0.01, 0.1]', '"model.kind.x" = [1, 2]', 'kind is "linear", not a table'),
        ('["accuracy_mean", "angle"]', "[]", "measures is"),
        ('"angle"', '"angel"', "measures is 'angel'\n.*'angle'"),
        ("accuracy_mean = 0.05", "accuracy_mean = -0.05", "within.accuracy_mean is -0.05"),
        ("seeds = [0, 1]", "columns = []", "rows.fedprox.columns is"),
        ("seeds = [0, 1]", "seeds = []", "rows.fedprox.seeds is"),
        ("seeds = [0, 1]", "seeds = [-1]", "rows.fedprox.seeds is .-1"),
        ("seeds = [0, 1]", "seed = [0]", "rows.fedprox.seed: unknown key\n.*'seeds'"),
        ('title = "FedProx"', "", "rows.fedprox.title is missing"),
        ('more = "fedprox"', 'more = "fedprox"\ncolumns = []', r"claims\[0\].columns is"),
        ('"digits"', '"digitz"', 'fedavg in iid: data.dataset is "digitz"'),
        ("eval_every = 0", 'device = "gpu"', "run.device is 'gpu'"),
        ("eval_every = 0", "seed = 3", "run.seed is 3\n.*seeds"),
        ("eval_every = 0", 'splits = "validation"', "run.splits is 'validation'"),
        ("clients = 6", "clients = 6\ntest = 0.0", "data.test is 0.0"),
    ],
)
def test_mistakes_in_a_table_are_named(tmp_path: Path, old: str, new: str, told: str) -> None:
    folder = folder_with(tmp_path, TABLE.replace(old, new, 1))
    with pytest.raises(EquipoiseError, match=told):
        load("nobody/one", folder)


@pytest.mark.parametrize(
    ("published", "told"),
    [
        ("[one.odd]\nfedavg = [1]\n", "one: column 'odd'"),
        ("[one.iid]\nodd = [1]\n", "one.iid: row 'odd'"),
        ("[one.iid]\nfedavg = 1\n", "one.iid.fedavg is 1"),
        ('[one.iid]\nfedavg = ["a"]\n', "one.iid.fedavg is"),
        ("[one]\niid = 3\n", "one.iid is 3"),
        ("one = 3\n", "one is 3"),
        (PUBLISHED + "[on.iid]\nfedavg = [1]\n", "on: there is no table on.toml\n.*'one'"),
        ("[one.iid\n", "not valid TOML"),
    ],
)
def test_published_numbers_must_belong_to_the_table(tmp_path: Path, published: str, told: str) -> None:
    with pytest.raises(EquipoiseError, match=rf"published\.toml: {told}"):
        load("nobody/one", folder_with(tmp_path, published=published))
    load("nobody/one", folder_with(tmp_path / "ok", published=PUBLISHED + "[participants.iid]\nfedavg = [9, 9, 9]\n"))


def test_a_folder_of_that_name_without_tables_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)
    assert names(home())


def test_an_unknown_table_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match="nobody/one"):
        matching(["nobody/on"], folder_with(tmp_path))


def test_a_table_s_number_means_it_on_all_of_its_datasets() -> None:
    assert matching(["ditto/table1"], home()) == ["ditto/table1-fashion", "ditto/table1-femnist"]
    assert matching(["rffl/table1", "rffl/table1-mnist"], home()) == ["rffl/table1-mnist"]  # nor 11, 15 and 19


@pytest.mark.parametrize("name", names(home()))
def test_every_table_of_ours_can_be_run(name: str) -> None:
    table = load(name, home())
    assert table.published or "not in the paper" in table.head.title, "nothing to compare with"
    assert all(c.row in table.head.rows for c in table.cells)
