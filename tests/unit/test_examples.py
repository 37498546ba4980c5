"""Every script in examples/ runs in its quick mode, and the shortcuts that examples take agree with the engine."""

import csv
import importlib
import runpy
import sys
import types
from itertools import pairwise
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(p for p in EXAMPLES.rglob("*.py") if not p.name.startswith("_"))
HELPERS = {p.stem for p in EXAMPLES.rglob("*.py")}


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch):
    """Import from one folder of examples, as its scripts do, and leave no trace."""
    before = torch.get_num_threads()

    def go(folder: Path) -> None:
        monkeypatch.syspath_prepend(str(folder))

    yield go
    torch.set_num_threads(before)
    for name in HELPERS & sys.modules.keys():
        del sys.modules[name]


def load(beside, folder: str, name: str) -> types.ModuleType:
    beside(EXAMPLES / folder)
    return importlib.import_module(name)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: str(p.relative_to(EXAMPLES)))
def test_every_example_runs_and_writes_its_numbers(script: Path, beside, monkeypatch, tmp_path: Path) -> None:
    beside(script.parent)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    monkeypatch.setattr(sys, "argv", [str(script), "--quick", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    tables = sorted(tmp_path.iterdir())
    assert tables and all(t.suffix == ".csv" for t in tables)
    for table in tables:
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows and all(value not in ("", "nan", "inf", None) for row in rows for value in row.values())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: str(p.relative_to(EXAMPLES)))
def test_every_example_says_how_it_is_called_and_how_long_it_takes(script: Path) -> None:
    text = script.read_text().split('"""')[1]
    assert f"python {script.relative_to(EXAMPLES.parent).as_posix()} [--out FOLDER]" in text
    assert "\nTakes about " in text


# --------------------------------------------------------------------------------------------------------- Ditto


@pytest.mark.parametrize("malicious", [0, 10])
@pytest.mark.parametrize("problem", ["point estimation", "linear regression"])
def test_dittos_closed_form_is_what_the_engine_trains(problem: str, malicious: int, beside) -> None:
    problems = load(beside, "ditto", "_problems")
    assert problems.engine_difference(problems.Setting(problem, malicious, draws=1)) < 1e-9


@pytest.mark.parametrize("malicious", [0, 10])
@pytest.mark.parametrize("problem", ["point estimation", "linear regression"])
def test_error_and_deviation_are_lowest_at_theorem_8s_lam(problem: str, malicious: int, beside) -> None:
    problems = load(beside, "ditto", "_problems")
    setting = problems.Setting(problem, malicious, draws=300)
    found = [problems.summary(setting.errors(f * setting.best)[0]) for f in (0.5, 1.0, 2.0)]
    for name in ("error", "deviation"):
        below, at, above = (f[name] for f in found)
        assert at < below and at < above


# ------------------------------------------------------------------------------------------------------- FedTilt


@pytest.mark.parametrize(
    ("problem", "lam", "tau", "q"), [(1, 1.0, 1.0, -5.0), (2, 1.0, -1.0, 0.0), (3, -10.0, 10.0, 0.0)]
)
def test_many_seeds_at_once_are_what_the_engine_trains(problem: int, lam: float, tau: float, q: float, beside) -> None:
    toy, seeds = load(beside, "fedtilt", "_toy"), load(beside, "fedtilt", "_seeds")
    shared, personal = seeds.train(seeds.toy(problem, [4, 3]), lam, tau, q, rounds=3)
    want = toy.fit(problem, lam, tau, q, seed=3, rounds=3)
    assert shared[1].tolist() == pytest.approx(toy.line(want.shared), abs=1e-9)
    for mine, model in zip(personal[1], want.personal, strict=True):
        assert mine.tolist() == pytest.approx(toy.line(model), abs=1e-9)


@pytest.mark.parametrize("lam", [-1.0, 0.0, 2.0])
def test_classes_are_less_even_the_smaller_tau_is_whatever_lam_is(lam: float, beside) -> None:
    """docs/results/fedtilt-toy.md derives it: |R_1 - R_0| at a minimum falls as tau grows, and the sign stays."""
    seeds = load(beside, "fedtilt", "_seeds")
    data, gaps = seeds.toy(2, [0]), []
    for tau in (2.0, 0.0, -0.5):
        u = torch.zeros((1, 2, 3), dtype=torch.float64)
        for _ in range(200):
            u = u - 0.5 * (data.gradient(u, lam, tau) + 0.1 * u)
        assert float((data.gradient(u, lam, tau) + 0.1 * u).norm()) < 1e-3  # it is a minimum
        zero, one = (seeds.tilted(losses, lam) for losses in data.losses(u))
        gaps.append(one - zero)
    assert all(bool((larger.abs() > smaller.abs()).all()) for smaller, larger in pairwise(gaps))
    assert all(bool((gap.sign() == gaps[0].sign()).all()) for gap in gaps)


def test_a_tilt_to_the_hardest_sample_says_one_class_everywhere_where_no_line_separates(beside) -> None:
    seeds = load(beside, "fedtilt", "_seeds")
    _, personal = seeds.train(seeds.toy(3, range(3)), 100.0, 1.0, rounds=30)
    right = seeds.toy(3, range(3), "test").right(personal)
    assert bool((right[0] == 1.0).all()) and bool((right[1] == 0.0).all())
