"""What `eq.run` is given by name is checked as strictly as what stands in a config."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.engine.settings import Admission
from equipoise.errors import EquipoiseError, not_negative, positive

FEDERATION = eq.partition(eq.load("digits"), "iid", clients=4)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rounds": 2.5}, "train.rounds is 2.5"),
        ({"lr": "0.1"}, "train.lr is"),
        ({"lr": math.inf}, "train.lr is inf"),
        ({"lr": 1e308}, "train.lr is 1e"),
        ({"batch": 2.5}, "train.batch is 2.5"),
        ({"sampling": "foo"}, "participation.sampling is"),
        ({"dtype": "float16"}, "run.dtype is"),
        ({"executor": "foo"}, "run.executor is"),
        ({"splits": "foo"}, "run.splits is"),
        ({"seed": 1.5}, "run.seed is 1.5"),
        ({"device": "gpu"}, "run.device is 'gpu'"),
        ({"steps": 3, "epochs": 2}, "train.steps with epochs = 2 is 3"),
        ({"admission": Admission(quorum=5)}, "admission.quorum is 5, but a round asks for 4 clients"),
        ({"admission": Admission(quorum=2), "per_round": 1}, "admission.quorum is 2, but a round asks for 1 clients"),
    ],
)
def test_wrong_values_are_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(EquipoiseError, match=told):
        eq.run(FEDERATION, model="linear", **given)


def test_numbers_of_numpys_are_numbers() -> None:
    given = {"rounds": np.int64(1), "lr": np.float32(0.1), "per_round": np.int32(2), "seed": np.int64(3)}
    assert len(eq.run(FEDERATION, model="linear", **given).rounds) == 1


def test_a_run_without_measures_says_why() -> None:
    untested = eq.run(eq.partition(eq.load("digits"), "iid", clients=4, test=0.0), model="linear", rounds=1)
    assert "accuracy_mean" not in untested.summary() and "nobody was tested" in untested.why_empty
    with pytest.raises(EquipoiseError, match=r"this run: nobody was tested: there are no test samples \(data.test"):
        untested.served()
    everyone = eq.run(FEDERATION, model="linear", rounds=1, attack=eq.attacks.LabelNoise(fraction=1.0))
    assert "4 client rows; all clients are malicious, and measures are of benign ones" in repr(everyone)
    assert everyone.summary()["accuracy_mean"] is None
    assert eq.run(FEDERATION, model="linear", rounds=1).why_empty == ""


def test_an_audit_is_not_given_as_the_text_of_its_path(tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match=r"audit: \"audit.toml\" holds no key = value\n.*Path\('audit.toml'\)"):
        eq.audit("audit.toml", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("value", "ok"), [(0, True), (0.0, True), (7.5, True), (-1e-9, False)])
def test_what_is_not_negative_is_finite_too(value: float, ok: bool) -> None:
    assert not_negative(value) is ok
    assert not any(map(not_negative, (math.inf, -math.inf, math.nan)))


@pytest.mark.parametrize(("value", "ok"), [(5e-324, True), (1, True), (0.0, False), (-0.0, False), (-1, False)])
def test_what_is_positive_is_finite_too(value: float, ok: bool) -> None:
    assert positive(value) is ok
    assert not any(map(positive, (math.inf, -math.inf, math.nan)))


@pytest.mark.parametrize("mu", [-1.0, math.nan, math.inf])
def test_fedprox_has_a_finite_pull(mu: float) -> None:
    with pytest.raises(EquipoiseError, match="fedprox: mu is"):
        eq.methods.fedprox(mu=mu)
