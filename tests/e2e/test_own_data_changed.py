"""A run belongs to its data: with others it is neither gone on with nor passed off as theirs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise import config, experiment, files
from equipoise.attacks import SignFlip
from equipoise.cli import app
from equipoise.data.federation import Federation
from equipoise.errors import EquipoiseError
from equipoise.provenance import fingerprint
from equipoise.results import RunFolder, verify
from tests.e2e.test_resume import stopped

RUN = """
[data]
dataset = "folder:cl"
validation = 0.2
[model]
kind = "linear"
[train]
rounds = 6
steps = 2
[run]
checkpoint_every = 2
"""
AUDIT = '[audit]\nmethods = ["fedavg", "local"]\nseeds = [0, 1]\nalone_epochs = 2\n' + RUN


def arrays() -> tuple[Any, Any, Any]:
    r = np.random.default_rng(0)
    return r.normal(size=(120, 5)).astype("float32"), r.integers(3, size=120), r.integers(4, size=120)


def save(more: int = 0) -> None:
    """The folder cl/, all labels moved on by so many classes."""
    x, y, client = arrays()
    Path("cl").mkdir(exist_ok=True)
    for k in range(4):
        np.savez(f"cl/site-{k}.npz", x=x[client == k], y=(y[client == k] + more) % 3)


def content(path: Path | None) -> dict[str, bytes]:
    """Its results."""
    assert path is not None and verify(path) == []
    return {name: (path / name).read_bytes() for name in files.read_json(path / "checksums.json")["sha256"]}


def equipoise(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def done(*args: str) -> Any:
    told = equipoise(*args)
    assert told.exit_code == 0, told.output
    return told


def refused(*args: str) -> str:
    told = equipoise(*args)
    assert told.exit_code == 2, told.output
    return str(" ".join(told.output.split()))


@pytest.fixture(autouse=True)
def _in_a_folder_with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN + '[method]\nname = "fedavg"\n')
    Path("audit.toml").write_text(AUDIT)
    save()


# ------------------------------------------------------------------------------------------- on the command line


def test_a_finished_run_of_other_data_is_not_given_back() -> None:
    ask = ("run", "run.toml", "--out", "o", "-q", "--json")
    first = done(*ask).stdout
    assert done(*ask).stdout == first
    before = content(Path("o"))
    save(1)
    for command in (ask, ("resume", "o"), ("report", "o")):
        told = refused(*command)
        assert "the data are not those that o was made with: sha256" in told and "another --out" in told
    assert content(Path("o")) == before and not Path("o/report.html").exists()
    save()  # as they were, in files that are not: what counts is what is in them
    assert done(*ask).stdout == first and done("report", "o").exit_code == 0


def test_an_interrupted_run_does_not_go_on_with_other_data() -> None:
    job = experiment.build(config.load(Path("run.toml")))
    whole = content(experiment.execute(job, Path("whole")).path)
    stopped(job, Path("o"), 4)
    save(1)
    assert "the data are not those" in refused("resume", "o")
    assert "the data are not those" in refused("run", "run.toml", "--out", "o")
    save()
    done("resume", "o", "-q")
    assert content(Path("o")) == whole


def test_a_client_more_or_a_sample_elsewhere_is_other_data() -> None:
    done("run", "run.toml", "--out", "o", "-q")
    shutil.copy("cl/site-3.npz", "cl/site-4.npz")
    assert "the data are not those" in refused("run", "run.toml", "--out", "o")


def test_a_run_from_before_data_were_noted_goes_on() -> None:
    job = experiment.build(config.load(Path("run.toml")))
    whole = content(experiment.execute(job, Path("whole")).path)
    stopped(job, Path("o"), 4)
    path = Path("o/environment.json")
    held = files.read_json(path)
    assert held.pop("data") == fingerprint(job.scenario.federation)
    path.write_bytes(files.encode_json(held))
    done("resume", "o", "-q")
    assert content(Path("o")) == whole and not Path("o/log.txt").exists()  # nothing else than that has changed


def test_data_that_equipoise_finds_itself_are_not_noted() -> None:
    text = RUN.replace('"folder:cl"', '"digits"\nclients = 4') + '[method]\nname = "fedavg"\n'
    experiment.execute(experiment.build(config.load(text)), Path("o"))
    assert RunFolder.open("o").data is None


@pytest.mark.parametrize("again", ["audit audit.toml --out a -q --workers 1", "report a", "advise a"])
def test_an_audit_of_other_data_is_refused_whole(again: str) -> None:
    first = json.loads(done("audit", "audit.toml", "--out", "a", "-q", "--workers", "1", "--json").stdout)
    shutil.rmtree("a/cells/local--none--s1")
    save(1)
    told = refused(*again.split())
    assert "the data are not those that a/cells/fedavg--none--s0 was made with" in told
    assert not Path("a/cells/local--none--s1").exists()
    fresh = json.loads(done("audit", "audit.toml", "--out", "b", "-q", "--workers", "1", "--json").stdout)
    assert fresh != first  # of the new data, though the same process has seen the old ones


def test_a_sweep_does_not_go_on_with_other_data() -> None:
    ask = ("sweep", "run.toml", "--set", "train.lr=[0.1, 0.2]", "--workers", "1", "-q", "--out", "s")
    done(*ask)
    save(1)
    assert "the data are not those that s/grid/000--s0 was made with" in refused(*ask)


# ---------------------------------------------------------------------------------------------------- in Python


def ours(more: int = 0) -> Federation:
    x, y, client = arrays()
    return eq.from_arrays(x, (y + more) % 3, client)


def test_a_finished_run_is_not_given_back_for_other_arrays() -> None:
    run = {"model": "linear", "rounds": 2, "out": "my runs/o7"}
    first = eq.run(ours(), **run).summary()
    assert eq.run(ours(), **run).summary() == first
    with pytest.raises(EquipoiseError, match="the data are not those that my runs/o7") as error:
        eq.run(ours(1), **run)
    assert "another out=" in error.value.hint


def test_an_interrupted_run_does_not_go_on_with_other_arrays() -> None:
    run = {"model": "linear", "rounds": 4, "checkpoint_every": 1}
    whole = content(eq.run(ours(), **run, out="whole").path)

    def stop(progress: experiment.Progress) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        eq.run(ours(), **run, out="o", progress=stop)
    with pytest.raises(EquipoiseError, match="the data are not those"):
        eq.run(ours(1), **run, out="o")
    assert content(eq.run(ours(), **run, out="o").path) == whole


def test_every_part_of_a_federation_is_in_its_fingerprint() -> None:
    fed, known = ours(), fingerprint(ours())
    data, train = fed.data, fed.splits["train"]
    turned = replace(train, index=train.index.flip(0))
    for other in (
        replace(fed, data=replace(data, x=data.x + 1)),
        replace(fed, data=replace(data, x=data.x.double())),
        replace(fed, data=replace(data, y=data.y.flip(0))),
        replace(fed, data=replace(data, scale=0.5)),
        replace(fed, data=replace(data, classes=4)),
        replace(fed, splits={**fed.splits, "train": turned}),
        replace(fed, splits={**fed.splits, "train": fed.splits["test"], "test": train}),
        replace(fed, root=torch.arange(3)),
    ):
        assert fingerprint(other) != known
    assert fingerprint(ours()) == known


def test_a_fingerprint_does_not_depend_on_how_the_data_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, known = ours(), fingerprint(ours())
    turned = replace(fed, data=replace(fed.data, x=fed.data.x.T.contiguous().T))
    assert not turned.data.x.is_contiguous() and fingerprint(turned) == known
    monkeypatch.setattr("equipoise.provenance._CHUNK", 64)
    assert fingerprint(fed) == known


def test_a_run_made_from_python_is_told_so_by_commands_that_need_a_config() -> None:
    eq.run(ours(), model="linear", rounds=1, out="o")
    told = refused("report", "o")
    assert "o was made from Python" in told and "eq.load_result" in told and "config: data is missing" not in told
    assert "o was made from Python" in refused("resume", "o")
    with pytest.raises(EquipoiseError, match="already holds another run") as error:
        eq.run(ours(), model="linear", rounds=2, out="o")
    assert "eq.run with the same arguments" in error.value.hint and "equipoise resume" not in error.value.hint


def test_a_hint_can_be_pasted_where_the_path_has_spaces() -> None:
    done("run", "run.toml", "--out", "my runs", "-q")
    told = refused("run", "run.toml", "--out", "my runs", "--set", "train.rounds=2")
    assert "equipoise resume 'my runs' goes on with it" in told


def test_an_attack_has_the_same_name_from_python_and_from_a_config() -> None:
    class Mine(SignFlip):
        pass

    def name(attack: Any) -> object:
        return eq.run(ours(), model="linear", rounds=1, attack=attack).summary()["attack"]

    made = experiment.build(config.load('attack = { name = "sign-flip", fraction = 0.5 }\nmethod = "fedavg"\n' + RUN))
    assert made.labels is not None and name(SignFlip(fraction=0.5)) == made.labels["attack"] == "sign-flip"
    assert name(Mine(fraction=0.5)) == "Mine" and name(None) == "none"
