"""Fronts against a plain reading of what "dominated" means."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.audit import evidence
from equipoise.audit.fronts import beaten
from equipoise.errors import EquipoiseError
from equipoise.results import Table
from tests.audits import Effect, make_audit

GRID = st.sampled_from([0.0, 0.1, 0.5, float("nan")])


@given(st.lists(st.tuples(GRID, GRID), max_size=7), st.booleans(), st.booleans())
def test_dominated_is_as_good_in_both_and_worse_in_one(points: list[tuple[float, float]], x: bool, y: bool) -> None:
    found = beaten(np.array(points, dtype=float).reshape(-1, 2), np.array([x, y]))
    for i, a in enumerate(points):
        for j, b in enumerate(points):
            good = [v >= u if up else v <= u for u, v, up in zip(a, b, (x, y), strict=True)]
            better = [v > u if up else v < u for u, v, up in zip(a, b, (x, y), strict=True)]
            assert found[i, j] == (all(good) and any(better))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=9))
def test_somebody_is_always_on_the_front_and_dominates_the_rest(points: list[tuple[float, float]]) -> None:
    under = beaten(np.array(points), np.array([True, False]))
    front = np.asarray(~under.any(1))
    assert front.any()
    assert np.asarray(under[:, front].any(1))[~front].all()


def row(table: Table, method: str, attack: str = "none") -> dict[str, object]:
    found = table.filter(method=method, attack=attack)
    return {name: found[name][0] for name in found}


def test_a_front_respects_which_way_is_better() -> None:
    effect = {"even": Effect(mean=-0.02, spread=0.2), "good": Effect(mean=0.05), "bad": Effect(mean=-0.1, spread=1.3)}
    data = make_audit(("fedavg", "even", "good", "bad"), seeds=3, effect=effect, luck=0.0)
    table = evidence.fronts(data, y="accuracy_std")
    assert row(table, "even")["front"] and row(table, "good")["front"]
    bad = row(table, "bad")
    assert bad["dominated"] and bad["by"] == "fedavg, even, good"
    assert row(table, "fedavg")["y"] == pytest.approx(
        data.cells.filter(method="fedavg", attack="none")["accuracy_std"].mean()
    )


def test_equal_methods_do_not_dominate_each_other() -> None:
    data = make_audit(("a", "b"), ("none",))
    twin = data.cells.filter(method="a")
    both = {n: np.concatenate([twin[n], np.full(3, "b", object) if n == "method" else twin[n]]) for n in twin}
    table = evidence.fronts(replace(data, cells=Table(both)))
    assert table["front"].tolist() == [True, True] and not table["dominated"].any()


def test_a_method_without_numbers_is_neither_on_the_front_nor_dominated() -> None:
    data = make_audit(seeds=2, failed=[("ditto", "none", 0), ("ditto", "none", 1), ("rffl", "none", 1)])
    table = evidence.fronts(data)
    lost = row(table, "ditto")
    assert not lost["front"] and not lost["dominated"] and lost["seeds"] == 0
    assert row(table, "rffl")["seeds"] == 1 and "1 of 2 seeds left out" in str(row(table, "rffl")["note"])


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="accuracy_std"):
        evidence.fronts(make_audit(), y="accuracy_sd")
