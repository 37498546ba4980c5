"""What `eq.run` is given by name is checked as strictly as what stands in a config."""

import math
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.errors import EquipoiseError

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
    ],
)
def test_wrong_values_are_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(EquipoiseError, match=told):
        eq.run(FEDERATION, model="linear", **given)


def test_numbers_of_numpys_are_numbers() -> None:
    given = {"rounds": np.int64(1), "lr": np.float32(0.1), "per_round": np.int32(2), "seed": np.int64(3)}
    assert len(eq.run(FEDERATION, model="linear", **given).rounds) == 1


@pytest.mark.parametrize("mu", [-1.0, math.nan, math.inf])
def test_fedprox_has_a_finite_pull(mu: float) -> None:
    with pytest.raises(EquipoiseError, match="fedprox: mu is"):
        eq.methods.fedprox(mu=mu)
