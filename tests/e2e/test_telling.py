"""Commands that tell: folders of another kind among those given, the keys of files, the pages of the reference."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise import reference, registry
from equipoise.audit import audit
from equipoise.cli import app
from equipoise.config import load
from equipoise.experiment import build, execute

RUN = '[data]\ndataset = "digits"\nclients = 4\n[model]\nkind = "linear"\n[train]\nrounds = 1\nsteps = 1\n'


def equipoise(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What may lie in a folder runs/: a run, an audit, a sweep, something else."""
    folder = tmp_path_factory.mktemp("telling") / "runs"
    execute(build(load(RUN + '[method]\nname = "fedavg"\n')), folder / "one")
    audit('[audit]\nmethods = ["fedavg", "local"]\nalone_epochs = 1\n' + RUN, folder / "many")
    (folder / "swept").mkdir()
    (folder / "swept" / "sweep.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    return folder


def test_compare_leaves_out_what_is_no_run_and_says_so(runs: Path) -> None:
    told = equipoise("compare", *(str(p) for p in sorted(runs.iterdir())), "--json")
    assert told.exit_code == 0, told.output
    assert [row["run"] for row in json.loads(told.stdout)] == ["one"]
    assert f"left out: {runs / 'many'}, an audit; its runs are in {runs / 'many' / 'cells'}" in told.stderr
    assert f"left out: {runs / 'swept'}, a sweep" in told.stderr
    assert f"left out: {runs / 'notes.txt'}, no folder of a run or an audit" in told.stderr
    cells = equipoise("compare", *(str(p) for p in sorted((runs / "many" / "cells").iterdir())))
    assert cells.exit_code == 0 and cells.stderr == ""


def test_advise_leaves_out_what_is_no_audit_and_says_so(runs: Path) -> None:
    told = equipoise("advise", *(str(p) for p in sorted(runs.iterdir())))
    assert told.exit_code == 0, told.output
    assert f"left out: {runs / 'one'}, a run" in told.stderr
    assert told.stdout.split("\n")[0] in ("fedavg", "local")


@pytest.mark.parametrize(("command", "name", "what"), [("compare", "many", "a run"), ("advise", "one", "an audit")])
def test_nothing_of_the_kind_is_an_error_with_a_hint(runs: Path, command: str, name: str, what: str) -> None:
    told = equipoise(command, str(runs / name))
    assert told.exit_code == 2 and told.stdout == ""
    assert f"error: none of these is the folder of {what}\n  hint: give the --out of {what}" in told.stderr


@pytest.mark.parametrize(("command", "good"), [("compare", "one"), ("advise", "many")])
def test_a_path_that_leads_nowhere_is_an_error_beside_any_other(runs: Path, command: str, good: str) -> None:
    told = equipoise(command, str(runs / good), str(runs / "nowhere"))
    assert told.exit_code == 2 and "nowhere" in told.stderr


def test_keys_of_all_files_and_of_one_section() -> None:
    told = equipoise("keys", "train").stdout
    assert told.splitlines()[0].split() == ["file", "key", "takes", "default", "what", "it", "means"]
    assert {line.split()[2] for line in told.splitlines()[1:]} >= {"train.lr", "train.rounds"}
    found = json.loads(equipoise("keys", "--json").stdout)
    assert {"file": "A run", "section": "train", "name": "lr", "default": "0.05"}.items() <= next(
        key for key in found if key["section"] == "train" and key["name"] == "lr"
    ).items()
    assert {key["file"] for key in found} == {file.name for file in reference.files()}
    refused = equipoise("keys", "trian")
    assert refused.exit_code == 2 and "did you mean 'train'?" in refused.stderr
    assert "equipoise keys" in equipoise("keys", "--help").stdout.split("Example", 1)[1]


def test_pages_of_the_reference_are_printed() -> None:
    assert equipoise("keys", "--markdown").stdout == reference.config_page()
    assert equipoise("list", "--markdown").stdout == reference.parts_page()
    some = equipoise("list", "filters", "--markdown").stdout
    assert "### clip" in some and "### krum" not in some


def test_list_knows_every_kind() -> None:
    assert {row["kind"] for row in json.loads(equipoise("list", "--json").stdout)} == set(registry.KINDS)
