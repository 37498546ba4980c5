"""Numbers of tables, and failures of many jobs, as text."""

import math

import pytest

from equipoise.cli.terminal import number, say_failed


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


def test_an_error_that_many_jobs_share_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    errors = {**{f"run {i}": "no data\n  hint: get it" for i in range(5)}, "run 5": "too far"}
    assert say_failed(errors) and not say_failed({})
    told = "failed: run 0, run 1, run 2 and 2 more: no data\n  hint: get it\nfailed: run 5: too far\n"
    assert capsys.readouterr().err == told
