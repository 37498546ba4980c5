"""`equipoise check`: a method of one's own, held to the contract."""

from pathlib import Path

from typer.testing import CliRunner

from equipoise.cli import app

GOOD = '''"""Half a step.

Nobody, "On being careful", 2026, Equation 1.

    w <- w - lr/2 grad F(w)

Departures: none.
"""
from dataclasses import dataclass
from equipoise.core import SGD, Method, WeightedMean

@dataclass(frozen=True)
class Half(SGD):
    def step(self, w, state, at):
        return at.descend(w, at.grad(w) / 2), state

def careful() -> Method:
    return Method("careful", Half(), WeightedMean())
'''
BAD = '''"""Something."""
from dataclasses import dataclass
from equipoise.core import SGD, Aggregator, Method

@dataclass(frozen=True)
class First(Aggregator):
    def combine(self, cohort):
        cohort.updates.mul_(2)
        return cohort.updates[0]

def sloppy() -> Method:
    return Method("sloppy", SGD(), First())
'''


def test_a_method_that_keeps_the_contract_passes(tmp_path: Path) -> None:
    (tmp_path / "careful.py").write_text(GOOD)
    done = CliRunner().invoke(app, ["check", str(tmp_path / "careful.py")])
    assert done.exit_code == 0, done.output
    assert "keeps the contract" in done.stdout


def test_one_that_does_not_is_told_what_it_breaks(tmp_path: Path) -> None:
    (tmp_path / "sloppy.py").write_text(BAD)
    done = CliRunner().invoke(app, ["check", str(tmp_path / "sloppy.py")])
    assert done.exit_code == 2
    assert "updates was changed in place" in done.stdout
    assert "clients in another order gave another direction" in done.stdout
    assert "no equation" in done.stdout and "no departures" in done.stdout
