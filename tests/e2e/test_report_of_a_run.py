"""`equipoise report` takes one run as well: it is an audit of itself."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise import config, experiment
from equipoise.cli import app
from equipoise.results import load_result

RUN = """
[data]
dataset = "digits"
clients = 6
[model]
kind = "linear"
[train]
rounds = 3
batch = 20
[method]
name = "ditto"
lam = 0.5
"""
ATTACK = """
[attack]
name = "sign-flip"
fraction = 0.2
"""


@pytest.mark.parametrize("text", [RUN, RUN + ATTACK], ids=["clean", "attacked"])
def test_a_run_gets_a_page_and_stays_the_run_it_was(text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    experiment.execute(experiment.build(config.load(text)), run)
    before = load_result(run).summary()
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 0, done.output
    page = (run / "report.html").read_text()
    assert "ditto" in page.lower() and "The run run" in page
    assert load_result(run).summary() == before


def test_what_is_neither_a_run_nor_an_audit_is_said_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code != 0


def test_of_a_run_that_is_not_finished_it_says_how_to_finish_it(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def stop(progress: experiment.Progress) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        experiment.execute(experiment.build(config.load(RUN)), run, stop)
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 2 and "not finished" in done.output and "equipoise resume" in done.output
