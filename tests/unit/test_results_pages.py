"""The pages under docs/results are what the tables and the measurements make of them today."""

from pathlib import Path

import pytest

from equipoise.reproduce import load, names
from equipoise.reproduce.page import overview, write

ROOT = Path(__file__).parents[2]
EXPERIMENTS, PAGES = ROOT / "experiments", ROOT / "docs" / "results"
PAPERS = sorted({name.split("/")[0] for name in names(EXPERIMENTS)})
HINT = "equipoise reproduce {} --show --out experiments --page docs/results/{}.md"


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_page_is_up_to_date(paper: str, tmp_path: Path) -> None:
    tables = [load(name, EXPERIMENTS) for name in names(EXPERIMENTS) if name.startswith(f"{paper}/")]
    about = (EXPERIMENTS / paper / "about.md").read_text(encoding="utf-8")
    made = write(tables, EXPERIMENTS, tmp_path / "page.md", about)
    assert made.read_bytes() == (PAGES / f"{paper}.md").read_bytes(), HINT.format(paper, paper)


def test_the_overview_is_up_to_date(tmp_path: Path) -> None:
    tables = [load(name, EXPERIMENTS) for name in names(EXPERIMENTS)]
    made = overview(tables, EXPERIMENTS, tmp_path / "page.md", (EXPERIMENTS / "about.md").read_text(encoding="utf-8"))
    assert made.read_bytes() == (PAGES / "README.md").read_bytes(), HINT.format("", "README")
