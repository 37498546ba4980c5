"""What clients reach alone is trained once for an audit, and no result depends on which cell asked first."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from equipoise import config, experiment
from equipoise.audit import load_plan
from equipoise.audit.plan import Cell
from equipoise.audit.runner import folder, run_cell
from equipoise.engine.clients import Executor

TEXT = """
[audit]
methods = [{{ name = "eagle", lam = 0.5, window = 2, cap = 4 }}]
attacks = [
  "none",
  {{ name = "label-noise", fraction = 0.25 }},
  {{ name = "sign-flip", added = 0.25, label = "added" }},
  {{ name = "sign-flip", fraction = 0.25 }},
]
[data]
dataset = "digits"
clients = 8
partition = {{ kind = "dirichlet", alpha = 0.5, min_size = 20 }}
validation = 0.2
[model]
kind = "linear"
[train]
rounds = 3
steps = 2
batch = 25
lr = 0.2
[participation]
per_round = 5
[run]
executor = "{executor}"
"""
KEPT = ("model.safetensors", "clients.parquet", "rounds.parquet", "summary.json")
EXECUTORS = pytest.mark.parametrize("executor", ["vmap", "loop"])


def cells(executor: str) -> list[Cell]:
    return list(load_plan(TEXT.format(executor=executor)).cells)


def carried_out(cell: Cell, out: Path) -> dict[str, bytes]:
    run_cell(config.dump(cell.config), folder(out, cell), out)
    return content(folder(out, cell))


def content(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in KEPT}


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clients that were trained alone, in order."""
    ids: list[int] = []
    real = Executor.fit_alone

    def counted(self: Executor, who: torch.Tensor, *rest: object) -> torch.Tensor:
        ids.extend(who.tolist())
        return real(self, who, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "fit_alone", counted)
    return ids


@pytest.fixture(scope="module", params=["vmap", "loop"])
def audited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The executor, and the folder of an audit whose cells were carried out in order."""
    out = tmp_path_factory.mktemp("forth")
    for cell in cells(request.param):
        carried_out(cell, out)
    return request.param, out


def test_every_cell_has_the_same_bytes_whichever_came_first(audited: tuple[str, Path], tmp_path: Path) -> None:
    executor, forth = audited
    back = {c.name: carried_out(c, tmp_path) for c in reversed(cells(executor))}
    assert len(back) == 4
    assert back == {c.name: content(folder(forth, c)) for c in cells(executor)}


def test_a_cell_finds_what_an_ordinary_run_finds(audited: tuple[str, Path], tmp_path: Path) -> None:
    executor, out = audited
    for cell in cells(executor):
        alone = experiment.execute(experiment.build(cell.config), tmp_path / cell.name).path
        assert alone is not None
        a, b = (pd.read_parquet(p / "clients.parquet") for p in (folder(out, cell), alone))
        pd.testing.assert_frame_equal(a, b, check_exact=False, rtol=0, atol=1e-6)
        if executor == "loop":  # where a client's numbers depend on that client only
            assert content(folder(out, cell)) == content(alone)


@EXECUTORS
def test_once_kept_only_clients_with_other_samples_train_alone(
    executor: str, tmp_path: Path, fitted: list[int]
) -> None:
    clean, poisoned, joined, forging = cells(executor)
    carried_out(clean, tmp_path)
    assert sorted(fitted) == list(range(8))
    bad = pd.read_parquet(folder(tmp_path, clean) / "clients.parquet")
    assert not bad["malicious"].any()
    for cell in (poisoned, joined):
        fitted.clear()
        carried_out(cell, tmp_path)
        bad = pd.read_parquet(folder(tmp_path, cell) / "clients.parquet").query("malicious")["client"]
        assert set(fitted) <= set(bad) and len(set(bad)) == 2
        assert fitted or cell is joined  # one by one, clients without validation data have nothing to train for
    fitted.clear()
    carried_out(forging, tmp_path)  # its clients lie about what they learned, from samples that are as they were
    assert fitted == []
    assert len(list((tmp_path / "alone").iterdir())) == 1
