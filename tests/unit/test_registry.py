"""Parts are found by where they lie and how they are called."""

import hashlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import equipoise.aggregators
import equipoise.attacks
import equipoise.methods
from equipoise import core, registry
from equipoise.core import Method, ServerRule
from equipoise.errors import EquipoiseError
from equipoise.registry import Doc
from equipoise.threat import Attack

MINE = '''"""Averages like everyone else.

Nobody, "A paper", 2020, Algorithm 1.

    w <- w - strength * u

Departures: none.
"""
from __future__ import annotations

from dataclasses import dataclass

from equipoise.core import SGD, Method, WeightedMean


@dataclass(frozen=True)
class Mine(WeightedMean):
    strength: float = 1.0


def mine(strength: float = 0.5) -> Method:
    return Method("mine", SGD(), Mine(strength=strength))
'''


@pytest.fixture(autouse=True)
def _forget_own_files() -> Iterator[None]:
    yield
    registry._OWN.clear()


def _stems(package: Any) -> list[str]:
    return [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]


def test_every_file_in_methods_is_a_recipe_that_makes_a_method() -> None:
    assert {s.replace("_", "-") for s in _stems(equipoise.methods)} == set(registry.methods())
    for entry in registry.methods().values():
        if not any(p.required for p in entry.parameters):
            assert isinstance(entry.make(), Method)


def test_every_file_in_attacks_is_an_attack_and_every_file_in_aggregators_a_rule_or_a_filter() -> None:
    assert {s.replace("_", "-") for s in _stems(equipoise.attacks)} == set(registry.attacks())
    assert all(issubclass(e.make, Attack) for e in registry.attacks().values())  # type: ignore[arg-type]
    known = {*registry.rules(), *registry.filters()} - {"weighted-mean"}
    assert {s.replace("_", "-") for s in _stems(equipoise.aggregators)} == known
    assert not set(registry.rules()) & set(registry.filters())


def test_the_mean_of_the_core_is_a_rule_too() -> None:
    assert registry.rules()["weighted-mean"].make is core.WeightedMean
    assert registry.name_of("rules", core.WeightedMean()) == "weighted-mean"


def test_every_part_says_in_one_line_what_it_is() -> None:
    for kind in registry.KINDS:
        for entry in registry.entries(kind).values():
            assert entry.doc.summary, entry.name


def test_every_method_and_attack_has_a_reference_and_departures() -> None:
    for entry in [*registry.methods().values(), *registry.attacks().values()]:
        assert entry.doc.reference, entry.name
        assert entry.doc.departures, entry.name


def test_parameters_carry_name_type_and_default() -> None:
    mu, server = registry.methods()["fedprox"].parameters
    assert (mu.name, mu.type, mu.default) == ("mu", float, 0.1)
    assert (server.name, server.type, server.default) == ("server", ServerRule, core.WeightedMean())
    names = [p.name for p in registry.attacks()["sign-flip"].parameters]
    assert names == ["fraction", "count", "clients", "added", "scale"]


def test_parameters_of_a_model_leave_out_what_the_data_decides() -> None:
    for entry in registry.entries("models").values():
        assert not {"shape", "classes"} & {p.name for p in entry.parameters}
    preset = {p.name: p.default for p in registry.entries("models")["cnn-ditto"].parameters}
    assert preset["hidden"] == (1024,)


def test_a_docstring_is_taken_apart_by_section() -> None:
    doc = Doc.parse(MINE.split('"""')[1])
    assert doc.summary == "Averages like everyone else."
    assert doc.reference == 'Nobody, "A paper", 2020, Algorithm 1.'
    assert doc.equation == "w <- w - strength * u"
    assert doc.departures == "none."


def test_departures_go_on_to_the_end_and_may_be_a_list() -> None:
    doc = Doc.parse("One.\n\nRef.\n\n    a = b\n\nMore.\n\n**Departures**\n\n- first\n- second\n\nlast")
    assert (doc.notes, doc.departures) == ("More.", "- first\n- second\n\nlast")


@pytest.mark.parametrize("text", ["", None, "Only this."])
def test_a_docstring_without_sections_is_no_error(text: str | None) -> None:
    assert Doc.parse(text).departures == ""


def test_types_are_told_in_plain_words() -> None:
    cases = {float: "a number", tuple[int, ...]: "a list, each a whole number", ServerRule: "a server rule"}
    for hint, words in cases.items():
        assert registry.describe(hint) == words
    assert registry.describe(Literal["a", "b"]) == '"a" or "b"'
    assert registry.describe(float | None) == "a number or nothing"
    assert registry.describe(dict[str, list[Any]]) == "a table"
    assert registry.describe(list[Any]) == "a list"
    assert registry.describe(list[Doc]) == "a list, each a table"


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(EquipoiseError, match="did you mean 'fedprox'"):
        registry.get("methods", "fedprx")


def test_a_users_file_becomes_a_method_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    entry = registry.load_file(tmp_path / "mine.py")
    assert entry.name == "mine"
    assert entry.doc.departures == "none."
    assert [p.name for p in entry.parameters] == ["strength"]
    assert isinstance(entry.make(strength=2.0).server, core.WeightedMean)
    assert registry.get("methods", "mine") is entry


def test_a_users_file_with_a_dash_holds_a_function_with_an_underscore(tmp_path: Path) -> None:
    (tmp_path / "my-own.py").write_text(MINE.replace("def mine", "def my_own"))
    assert registry.load_file(tmp_path / "my-own.py").name == "my-own"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("other.py", MINE, "no method or server rule or filter or attack or model called 'other'"),
        ("mine.py", "def mine(:\n", "SyntaxError"),
        ("mine.py", "import nothing_of_this_name\n", "ModuleNotFoundError"),
        ("mine.py", "def mine(x: Unknown): ...\n", "NameError"),
        ("mine.py", "from __future__ import annotations\ndef mine(x: Unknown): ...\n", "NameError"),
        ("mine.txt", MINE, "not a Python file"),
        ("fedavg.py", MINE.replace("def mine", "def fedavg"), "already there"),
        ("krum.py", MINE.replace("def mine", "def krum"), "server rule 'krum' is already there"),
    ],
)
def test_a_users_file_that_cannot_be_used_says_why(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EquipoiseError, match=told) as caught:
        registry.load_file(tmp_path / name)
    assert caught.value.hint
    assert "mine" not in registry.methods()


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match="not a Python file"):
        registry.load_file(tmp_path / "mine.py")


def test_a_users_attack_is_found_by_its_class(tmp_path: Path) -> None:
    text = (
        '"""Does nothing."""\nfrom dataclasses import dataclass\nfrom equipoise.threat import Attack\n\n\n'
        "@dataclass(frozen=True, kw_only=True)\nclass DoesNothing(Attack):\n    power: float = 1.0\n"
    )
    (tmp_path / "does_nothing.py").write_text(text)
    entry = registry.load_file(tmp_path / "does_nothing.py", "attacks")
    assert entry.name == "does-nothing"
    assert entry.make(fraction=0.5, power=2.0).power == 2.0


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("methods", "mine", MINE),
        ("rules", "half", "from equipoise.core import *\nclass Half(WeightedMean): ...\n"),
        (
            "filters",
            "keep",
            "from equipoise.core import *\nclass Keep(Filter):\n    def __call__(self, c): return c, {}\n",
        ),
        ("attacks", "idle", "from equipoise.threat import *\nclass Idle(Attack): ...\n"),
        ("models", "tiny", "def tiny(shape, classes, width: int = 4): ...\n"),
    ],
)
def test_a_users_file_is_what_it_holds(tmp_path: Path, kind: Any, name: str, text: str) -> None:
    (tmp_path / f"{name}.py").write_text(text)
    assert registry.load_file(tmp_path / f"{name}.py").kind == kind
    assert name in registry.entries(kind)


def test_what_runs_is_what_the_checksum_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for strength in ("0.5", "0.7"):  # of one length and one time: Python would take the bytecode of the first again
        path.write_text(MINE.replace("= 0.5", f"= {strength}").replace("from __future__ import annotations\n", ""))
        os.utime(path, (1e9, 1e9))
        entry = registry.load_file(path)
        assert entry.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert entry.make().server.strength == float(strength)
    assert entry.make.__annotations__["strength"] is float  # our own __future__ imports are not the user's


def test_the_files_of_a_run_are_those_whose_parts_its_sections_name(tmp_path: Path) -> None:
    texts = {
        "mine": MINE,
        "half": "from equipoise.core import *\nclass Half(WeightedMean): ...\n",
        "idle": "from equipoise.threat import *\nclass Idle(Attack): ...\n",
        "tiny": "def tiny(shape, classes, width: int = 4): ...\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
        registry.load_file(tmp_path / f"{name}.py")

    def named(**sections: Any) -> list[str]:
        return sorted(registry.own_files(sections))

    assert named(method={"name": "fedavg"}, model={"kind": "mlp"}, attack=None) == []
    nested = {"name": "fedavg", "base": {"name": "mine", "filters": [{"name": "half"}]}}
    assert named(method=nested) == ["method mine", "server rule half"]
    assert named(method="mine", attack="idle", model="tiny") == ["attack idle", "method mine", "model tiny"]
    other = {"method": {"name": "tiny"}, "attack": "mine", "model": "half", "data": {"dataset": "idle"}}
    assert named(**other) == []  # a name stands for parts of the kinds that may be there


def test_a_users_file_that_must_be_a_method_is_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("from equipoise.threat import *\nclass Idle(Attack): ...\n")
    with pytest.raises(EquipoiseError, match="no method called 'idle'") as caught:
        registry.load_file(tmp_path / "idle.py", "methods")
    assert caught.value.hint == "the file must have def idle(...) -> Method"


def test_signatures_of_dataclasses_resolve_inherited_hints() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Loud(Attack):
        volume: int = 11

    assert {p.name: p.type for p in registry.parameters(Loud)}["clients"] == tuple[int, ...] | None
