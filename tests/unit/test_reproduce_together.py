"""A row for the global model needs no run of its own, where a personalised method sends the same."""

from pathlib import Path
from typing import Any

import pytest

from equipoise.reproduce import Record, load, run
from equipoise.reproduce.runner import Wanted
from equipoise.reproduce.tables import Table

TABLE = """
title = "A table"
source = "Nobody, Table 1"
measures = ["accuracy_mean", "accuracy_std"]

[run.data]
dataset = "digits"
clients = 6
partition = { kind = "dirichlet", alpha = 0.5 }
[run.model]
kind = "linear"
[run.train]
rounds = 6
batch = 8
[run.participation]
per_round = 4
[run.admission]
guard = "off"
[run.run]
eval_every = 0
executor = "loop"

[columns.clean]
title = "clean"
[columns.noise]
title = "noise"
set.attack = { name = "random-update", fraction = 0.5, label_noise = true }

[rows.global]
title = "global"
set.method = { name = "fedavg", server = { name = "weighted-mean", weights = "uniform" } }
[rows.own]
title = "own"
set.method = { name = "ditto", lam = 0.5, server = { name = "weighted-mean", weights = "uniform" } }
"""
UNIFORM = 'server = { name = "weighted-mean", weights = "uniform" }'


def made(path: Path, text: str = TABLE) -> Table:
    (path / "nobody").mkdir(parents=True)
    (path / "nobody" / "one.toml").write_text(text)
    return load("nobody/one", path)


def ran(table: Table, out: Path, *wanted: Wanted) -> tuple[int, dict[tuple[Any, ...], Any]]:
    """How many runs it took, and what was measured."""
    seen: list[str] = []
    for some in wanted:
        assert run([table], out, some, report=lambda step: seen.append(step.what)) == {}
    entries = Record(table, out).entries.values()
    return len(seen), {(e["row"], e["column"], e["scale"]): (e["numbers"], e["rounds"]) for e in entries}


@pytest.mark.parametrize("sets", [(), ("run.own_models=honest",)])
def test_the_global_model_is_measured_in_the_run_of_a_method_that_sends_the_same(
    tmp_path: Path, sets: tuple[str, ...]
) -> None:
    table = made(tmp_path / "e")
    once, found = ran(table, tmp_path / "once", Wanted(sets=sets, also=[0.5]))
    apart = [Wanted(sets=sets, also=[0.5], rows=[row]) for row in ("global", "own")]
    twice, other = ran(table, tmp_path / "apart", *apart)
    assert (once, twice) == (2, 4) and len(found) == 2 * 2 * 2
    assert found == other and found["global", "noise", 1.0] != found["own", "noise", 1.0]
    told = {(e["row"], e.get("within")) for e in Record(table, tmp_path / "once").entries.values()}
    assert told == {("global", "own"), ("own", None)}


def test_what_was_measured_of_one_is_not_measured_again_for_the_other(tmp_path: Path) -> None:
    table, seen = made(tmp_path / "e"), []
    run([table], tmp_path / "out", Wanted(rows=["own"], columns=["clean"]))
    run([table], tmp_path / "out", Wanted(columns=["clean"]), report=lambda step: seen.append(step.what))
    assert seen == ["nobody/one global clean seed 0"]


def test_clients_that_go_on_after_the_last_round_leave_the_global_model_as_it_was(tmp_path: Path) -> None:
    text = TABLE.replace('name = "ditto", lam = 0.5', 'name = "finetuning"')
    table = made(tmp_path / "e", text)
    once, found = ran(table, tmp_path / "once", Wanted())
    twice, other = ran(table, tmp_path / "apart", Wanted(rows=["global"]), Wanted(rows=["own"]))
    assert (once, twice) == (2, 4) and found == other
    more, found = ran(table, tmp_path / "also", Wanted(columns=["clean"], also=[0.5]))
    assert more == 2 and ("global", "clean", 0.5) in found  # which the other cannot be stopped for


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"ditto", lam = 0.5, ' + UNIFORM, '"ditto", lam = 0.5, server = { name = "coordinate-median" }'),
        ('"ditto", lam = 0.5, ' + UNIFORM, '"local"'),
        ('"ditto", lam = 0.5', '"fedprox", mu = 0.5'),
        ('"accuracy_std"', '"accuracy_mean_last_tenth"'),
        ('title = "own"', 'title = "own"\nextra_epoch = true'),
        ('title = "own"', 'title = "own"\nseeds = [1]'),
        ('title = "own"', 'title = "own"\nset.train.lr = 0.3'),
    ],
)
def test_runs_that_differ_in_what_counts_stay_apart(tmp_path: Path, old: str, new: str) -> None:
    assert TABLE.count(old)
    assert ran(made(tmp_path / "e", TABLE.replace(old, new)), tmp_path / "out", Wanted())[0] == 4
