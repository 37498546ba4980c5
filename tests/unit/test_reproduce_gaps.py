"""Published tables with loss gaps: clients train alone once for all rows of a column and seed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch import Tensor

from equipoise.core import Stop
from equipoise.engine.clients import Executor
from equipoise.reproduce import Record, load, run
from equipoise.reproduce.measures import MEASURES, needs_optima
from equipoise.reproduce.runner import Wanted
from equipoise.reproduce.tables import Table

TABLE = """
title = "Gaps"
source = "Nobody, Table 2"
measures = ["gap_max", "gap_min", "gap_variance", "gap_of_0", "gap_of_4", "loss_of_0", "optimum_range", "optimum_max"]

[run.data]
dataset = "digits"
clients = 3
validation = 0.2
[run.model]
kind = "linear"
[run.train]
rounds = 2
batch = 0
lr = 0.1
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
[rows.eagle]
title = "EAGLE"
set.method = { name = "eagle", lam = 1.0, scale = "sqrt_k", cap = 2000 }
seeds = [0, 1]
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    folder = tmp_path / "experiments" / "nobody"
    folder.mkdir(parents=True)
    (folder / "two.toml").write_text(TABLE)
    return load("nobody/two", folder.parent)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Stop]:
    """Every training alone, which here is quick: client k gets the initial model times 1 + k."""
    seen: list[Stop] = []

    def quick(self: Executor, ids: Tensor, start: Tensor, schedule: object, lr: float, stop: Stop, s: object) -> Tensor:
        seen.append(stop)
        return (1.0 + ids.to(start.dtype))[:, None] * start

    monkeypatch.setattr(Executor, "fit_alone", quick)
    return seen


def test_clients_train_alone_once_for_all_rows_of_a_column_and_seed(
    table: Table, tmp_path: Path, trained: list[Stop]
) -> None:
    steps: list[str] = []
    assert run([table], tmp_path / "out", report=lambda step: steps.append(step.what)) == {}
    assert trained == [Stop()] * 4  # two columns, two seeds
    assert [("alone" in step) for step in steps] == [True] * 4 + [False] * 6
    run([table], tmp_path / "out", Wanted(seeds=[0, 1, 2], columns=["iid"]))
    assert len(trained) == 5
    run([table], tmp_path / "out")
    assert len(trained) == 5


def test_gaps_and_optima_of_one_run_belong_together(table: Table, tmp_path: Path, trained: list[Stop]) -> None:
    run([table], tmp_path / "out", Wanted(rows=["fedavg"], columns=["iid"]))
    numbers = Record(table, tmp_path / "out").of("fedavg", "iid", table.cells)[0]["numbers"]
    assert numbers["gap_min"] <= numbers["gap_of_0"] <= numbers["gap_max"]
    assert numbers["gap_of_4"] is None  # there are three clients
    assert 0 < numbers["optimum_range"] < numbers["optimum_max"]
    assert numbers["loss_of_0"] - numbers["gap_of_0"] <= numbers["optimum_max"]


def test_eagle_starts_from_the_models_that_are_kept(table: Table, tmp_path: Path, trained: list[Stop]) -> None:
    """Were they trained anew, or not at all, its gaps would be others: the stub's models are no optima."""
    run([table], tmp_path / "out", Wanted(rows=["eagle"], columns=["iid"], seeds=[0]))
    kept = list((tmp_path / "out" / "alone").glob("*.safetensors"))
    assert (len(trained), len(kept)) == (1, 1)
    before = Record(table, tmp_path / "out").of("eagle", "iid", table.cells)[0]["numbers"]
    other = tmp_path / "other"
    (other / "alone").mkdir(parents=True)
    (other / "alone" / kept[0].name).write_bytes(kept[0].read_bytes())
    run([table], other, Wanted(rows=["eagle"], columns=["iid"], seeds=[0]))
    assert len(trained) == 1
    assert Record(table, other).of("eagle", "iid", table.cells)[0]["numbers"] == before


def test_which_measures_compare_with_training_alone() -> None:
    assert all(needs_optima([name]) for name in ("gap_max", "gap_of_0", "optimum_range"))
    assert not needs_optima(["accuracy_mean", "loss_of_0", "pearson", "conflicts"])
    assert all(name in MEASURES for name in ("gap_of_4", "loss_of_4", "optimum_min"))


def test_nothing_is_trained_alone_for_tables_without_gaps(tmp_path: Path, trained: list[Stop]) -> None:
    folder = tmp_path / "experiments" / "nobody"
    folder.mkdir(parents=True)
    (folder / "two.toml").write_text(re.sub(r"measures = .*", 'measures = ["loss_of_0"]', TABLE))
    table = load("nobody/two", folder.parent)
    assert run([table], tmp_path / "out", Wanted(rows=["fedavg"])) == {}
    assert trained == []
