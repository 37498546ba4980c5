"""The reference pages are what the code says today, all of it, and once."""

import tomllib
from pathlib import Path

import pytest

from equipoise import reference, registry
from equipoise.audit import plan as plans
from equipoise.audit.sweep import load as load_sweep
from equipoise.config import SECTIONS, dump, load

PAGES = Path(__file__).parents[2] / "docs" / "reference"
FILES = {file.name: file for file in reference.files()}
KEYS = [key for file in FILES.values() for section in file.sections for key in section.keys]
PARTS = [entry for kind in registry.KINDS for entry in registry.entries(kind).values()]


@pytest.mark.parametrize(("page", "command"), [("config", "keys"), ("parts", "list")])
def test_a_page_is_up_to_date(page: str, command: str) -> None:
    made = reference.config_page() if page == "config" else reference.parts_page()
    written = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    assert written == made, f"equipoise {command} --markdown > docs/reference/{page}.md"


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.full)
def test_every_key_says_what_it_means(key: reference.Key) -> None:
    assert key.meaning and key.takes and key.default
    assert "Any" not in key.takes and "[" not in key.takes


def test_a_runs_sections_and_defaults_are_those_of_a_config() -> None:
    run = {section.name: {key.name: key for key in section.keys} for section in FILES["A run"].sections}
    assert tuple(run) == SECTIONS
    least = '[data]\ndataset = "digits"\nclients = 5\n[model]\nkind = "mlp"\n[method]\nname = "fedavg"\n'
    settled = tomllib.loads(dump(load(least)))
    for name in ("train", "participation", "admission", "run"):
        told = {k: tomllib.loads(f"v = {key.default}")["v"] for k, key in run[name].items() if key.has_default}
        assert told == settled[name]


def test_types_and_ranges_are_told() -> None:
    found = {key.full: key.takes for key in KEYS}
    assert found["train.lr_decay"] == "a number: above 0, at most 1 (no decay)"
    assert found["data.validation"] == "a number: from 0 up to (not including) 1"
    assert found["admission.guard"] == '"redescend" or "winsorise" or "rank" or "off"'
    assert found["attack.clients"] == "a list, each a whole number"
    assert found["claims"] == "a list, each a table"


def test_the_examples_are_files_that_can_be_read() -> None:
    run = FILES["A run"].example
    assert load(run).attack is not None
    sections = run[: run.index("[method]")]
    audit = plans.load(sections + FILES["An audit"].example, ["data.validation=0.1"])
    assert len(audit.cells) == 2 * 2 * 3
    rest = sections.replace("lr = 0.1\n", "").replace("[train]\n", "")
    train = rest[rest.index("rounds =") : rest.index("[participation]")]
    sweep = FILES["A sweep"].example.replace("[train]\n", f"[train]\n{train}")
    assert len(load_sweep(rest.replace(train, "") + sweep, ["data.validation=0.1"]).combinations()) == 6
    table = tomllib.loads(FILES["A published table"].example)
    assert set(table) - {"run"} <= {key.name for key in FILES["A published table"].sections[0].keys}


def test_every_part_and_every_setting_is_on_the_page() -> None:
    page = reference.parts_page()
    for kind in registry.KINDS:
        for name, entry in registry.entries(kind).items():
            part = page.split(f"\n### {name}\n")[-1].split("\n### ")[0]
            common = ("fraction", "count", "clients", "added") if kind == "attacks" else ()
            for p in entry.parameters:
                assert p.name in common or f"- `{p.name}`: " in part, (kind, name, p.name)


@pytest.mark.parametrize("entry", PARTS, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_every_setting_of_a_part_says_what_it_means(entry: registry.Entry) -> None:
    for key in reference.settings(entry):
        assert key.meaning.endswith(".") and len(key.meaning.split()) > 1, key.full
        assert "Departures" not in key.meaning and "\n" not in key.meaning, key.full


def test_every_common_word_is_that_of_some_part() -> None:
    told = {(entry.kind, key.meaning) for entry in PARTS for key in reference.settings(entry)}
    assert {(kind, text) for kind, words in reference._COMMON.items() for text in words.values()} <= told


def test_words_come_from_fields_classes_recipes_and_from_what_many_parts_share() -> None:
    def told(kind: registry.Kind, name: str) -> dict[str, str]:
        return {key.name: key.meaning for key in reference.settings(registry.get(kind, name))}

    assert told("partitions", "dirichlet")["min_size"].startswith("The fewest samples that a client may hold")
    assert told("attacks", "alie")["evaluations"].startswith("How many scales a search tries")
    assert told("methods", "ditto")["base"].endswith("left out: FedAvg with the plain mean.")
    assert told("methods", "ewc")["base"].endswith("left out: FedAvg.")
    assert told("models", "resnet")["widths"] != told("models", "text-cnn")["widths"]
    assert told("datasets", "ditto-point")["test"] == "How many observations it is tested on, 0 or more."


def test_what_many_parts_share_is_not_said_of_a_part_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_OWN", {})
    own = tmp_path / "mine_alone.py"
    recipe = 'def mine_alone(weights="a", mu=1.0):\n    """mu: strength of mine."""\n    return Method()\n'
    own.write_text(f"from equipoise.core import Method\n\n{recipe}", encoding="utf-8")
    meanings = {key.name: key.meaning for key in reference.settings(registry.load_file(own))}
    assert meanings == {"weights": "", "mu": "Strength of mine."}


def test_settings_carry_what_their_class_says_of_them() -> None:
    found = {key.name: key for key in reference.settings(registry.get("methods", "apfl"))}
    assert found["adaptive"].meaning == "Whether clients learn alpha, each its own, from this one on."
    assert found["alpha"].meaning.startswith("Share of the own model") and "adaptive" not in found["alpha"].meaning
    assert found["server"].told() == 'a server rule; default { name = "weighted-mean", weights = "uniform" }'
