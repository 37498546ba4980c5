"""Numbers of tables as text."""

import math

import pytest

from equipoise.cli.terminal import number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.93451, "0.9345"),
        (-128.9422, "-128.9422"),
        (999999.0, "999999.0000"),
        (-5.6926865790630297e19, "-5.69e+19"),
        (math.inf, "inf"),
        (math.nan, "-"),
        (None, "-"),
        (3, "3"),
        ("fedavg", "fedavg"),
    ],
)
def test_number(value: object, text: str) -> None:
    assert number(value) == text
