"""RFFL's published numbers: summaries are those of the ten participants, and its measures are what they say."""

import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise import config, experiment
from equipoise.audit.runner import built
from equipoise.reproduce import home
from equipoise.reproduce.measures import Finished, measure

OF = {
    "table7-mnist": {"sign": 7, "rescale": 8, "invert": 9, "free": 13},
    "table15-mnist": {"sign": 15, "rescale": 16, "invert": 17, "free": 18},
    "table19-mnist": {"sign": 19, "rescale": 20, "invert": 21, "free": 22},
}


@pytest.mark.parametrize(("table", "column"), [(t, c) for t, columns in OF.items() for c in columns])
def test_summaries_are_of_the_ten_printed_accuracies(table: str, column: str) -> None:
    published = tomllib.loads((home() / "rffl" / "published.toml").read_text())
    printed = published["participants"][f"table{OF[table][column]}"]
    for row, summary in published[table][column].items():
        ten = np.array(printed["rffl" if row == "rffl-clip" else row]) / 100
        assert len(ten) == 10
        assert summary == pytest.approx([ten.mean(), ten.min(), ten.max()])


def finished(attack: str) -> Finished:
    text = f"""
        [data]
        dataset = "digits"
        clients = 4
        test_set = "common"
        [model]
        kind = "linear"
        [train]
        rounds = 10
        batch = 0
        lr = 0.5
        [method]
        name = "rffl"
        clip = 0.01
        [attack]
        {attack}
        [run]
        eval_every = 0
    """
    made = built(config.dump(config.load(text)))
    return Finished(made, experiment.execute(made, models=False))


def test_target_accuracy_is_the_best_honest_participants_on_the_flipped_classes() -> None:
    run = finished('name = "label-flip"\npairs = [[1, 7], [3, 3]]\nadded = 0.5')
    last: dict[str, Any] = run.last
    best = int(np.argmax(last["accuracy"][:4]))
    expected = last["class_correct"][best][1] / last["class_n"][best][1]
    assert measure(run, ["target_accuracy"])["target_accuracy"] == pytest.approx(expected)
    assert 0 < expected <= 1


def test_target_accuracy_is_undefined_for_an_attack_that_renames_no_class() -> None:
    run = finished('name = "free-rider"\nadded = 0.5')
    assert measure(run, ["target_accuracy"]) == {"target_accuracy": None}
    clean = replace(run, made=replace(run.made, scenario=replace(run.made.scenario, attack=None)))
    assert measure(clean, ["target_accuracy"]) == {"target_accuracy": None}


def test_free_riders_are_gone_within_five_rounds_where_all_updates_are_as_short() -> None:
    removed = measure(finished('name = "free-rider"\nadded = 0.5'), ["attackers_removed", "removal_round"])
    assert removed["attackers_removed"] == 1.0
    assert removed["removal_round"] is not None
    assert removed["removal_round"] <= 5
