"""What the guides print runs: their files, their commands, their Python."""

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equipoise import registry
from equipoise.cli import app

ROOT = Path(__file__).parents[2]
QUICK = ["--workers", "1", "--set", "train.rounds=2", "--set", "audit.seeds=[0]", "--set", "audit.alone_epochs=2"]


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Language, the name of the file that it is, and text, of every fenced block: "`mine.py`:" stands before a file."""
    before = ""
    for i, part in enumerate(page.read_text(encoding="utf-8").split("```")):
        language, _, text = part.partition("\n")
        if i % 2:
            named = re.search(r"`([\w-]+\.(?:py|toml))`:\s*$", before)
            yield language, named[1] if named else "", text
        before = part


def commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        program, *args = shlex.split(line, comments=True) or [""]
        if program == "equipoise":
            yield args


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in {p.stem for p in tmp_path.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.mark.parametrize("guide", ["audit", "extend"])
def test_a_guide_does_what_it_says(guide: str, here: Path) -> None:
    said = ""
    for i, (language, name, text) in enumerate(blocks(ROOT / "docs" / "guides" / f"{guide}.md")):
        if name:
            (here / name).write_text(text)
        elif language == "sh":
            registry._OWN.clear()  # every command is a process of its own
            said = "".join(asked(args) for args in commands(text))
        elif language == "python":
            registry._OWN.clear()
            (here / f"_{i}.py").write_text(text)
            runpy.run_path(str(here / f"_{i}.py"))
        elif not re.search(r"\d", text):  # numbers are those of a longer run, on one machine
            assert said == text


def asked(args: list[str]) -> str:
    done = CliRunner().invoke(app, [*args, *QUICK] if args == ["audit", "audit.toml"] else args)
    assert done.exit_code == 0, (args, done.output)
    return done.stdout


def test_the_first_lines_of_python_in_the_readme_run(here: Path) -> None:
    text = next(text for language, _, text in blocks(ROOT / "README.md") if language == "python")
    (here / "first.py").write_text(text)
    found = runpy.run_path(str(here / "first.py"))
    assert found["result"].summary()["accuracy_mean"] > 0.5


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", re.sub(r"```.*?```", "", text, flags=re.S)):
        assert (ROOT / page).parent.joinpath(target).exists(), target
