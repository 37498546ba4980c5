"""The pages under docs/results are what the tables and the measurements make of them today."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from equipoise.reproduce import Record, load, names, picture
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
    assert (tmp_path / "published.svg").read_bytes() == (PAGES / "published.svg").read_bytes(), HINT.format(
        "", "README"
    )


def test_the_picture_has_a_mark_where_published_and_ours_meet() -> None:
    table = load("fedlf/table1-fashion", EXPERIMENTS)
    marks = {m.name: m for m in picture.marks(table, Record(table, EXPERIMENTS))}
    ours = marks["fedlf/table1-fashion: FedLF, Dir(0.1)"]
    assert (ours.published, ours.own, ours.full) == (0.892, True, True)
    assert not marks["fedlf/table1-fashion: FedAvg, Pat-1"].own
    drawn = ElementTree.fromstring(picture.draw([table], EXPERIMENTS))
    circles = [c for c in drawn.iter("{http://www.w3.org/2000/svg}circle") if len(c)]
    assert len(circles) == len(marks)
    (told,) = [c for c in circles if c[0].text == f"{ours.name}: published 0.892, ours {ours.ours:.3f}"]
    left, right = 30, 240  # of the first panel
    assert float(told.get("cx", 0)) == pytest.approx(left + 0.892 * (right - left), abs=0.1)
    assert float(told.get("cy", 0)) == pytest.approx(256 - ours.ours * (right - left), abs=0.1)
