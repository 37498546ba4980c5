"""Intervals that cover, tests that do not cry wolf, and both equal to what scipy and statsmodels say."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.regression.mixed_linear_model import MixedLM
from statsmodels.stats.multitest import multipletests

from equipoise import metrics
from equipoise.audit import comparing, evidence, resampling
from equipoise.audit.data import MEASURES, AuditData
from equipoise.errors import EquipoiseError
from equipoise.results import Table
from equipoise.streams import Stream
from tests.audits import Effect, make_audit

STREAM = Stream(7)
ACCURACIES = st.lists(st.floats(0, 1), min_size=1, max_size=40).map(np.array)


def without(table: Table, *names: str) -> Table:
    return Table({name: table[name] for name in table if name not in names})


def changed(table: Table, **columns: Any) -> Table:
    return Table({**{name: table[name] for name in table}, **columns})


def draw(rng: np.random.Generator, seeds: int, clients: int, luck: float) -> dict[int, Any]:
    return {s: 0.7 + luck * rng.normal() + 0.08 * rng.normal(size=clients) for s in range(seeds)}


# ------------------------------------------------------------------------------------------------- statistics


@given(ACCURACIES)
def test_statistics_are_those_of_the_metrics(a: Any) -> None:
    expected = metrics.summary(a, np.ones(len(a)))
    for name, (columns, statistic) in resampling.OF_CLIENTS.items():
        if columns == ("accuracy",):
            assert float(statistic(a)) == pytest.approx(expected[name], abs=1e-12), name


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 99)), min_size=3, max_size=30).map(np.array))
def test_statistics_of_two_columns_are_those_of_scipy(rows: Any) -> None:
    a = rows.T
    assert float(resampling.weighted_mean(a)) == pytest.approx(np.average(a[0], weights=a[1]))
    if a.std(1).min() > 1e-6:
        assert float(resampling.pearson(a)) == pytest.approx(stats.pearsonr(*a).statistic, abs=1e-6)
        assert float(resampling.spearman(a)) == pytest.approx(stats.spearmanr(*a).statistic, abs=1e-9)


def test_a_statistic_of_many_rows_is_that_of_each_row() -> None:
    a = STREAM.numpy().random((2, 5, 12))
    for name, (columns, statistic) in resampling.OF_CLIENTS.items():
        every = statistic(a if len(columns) == 2 else a[0])
        each = [statistic(a[:, i] if len(columns) == 2 else a[0, i]) for i in range(5)]
        np.testing.assert_allclose(every, each, err_msg=name)


def test_correlation_with_something_constant_is_missing() -> None:
    assert np.isnan(resampling.pearson(np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])))


# ------------------------------------------------------------------------------------------------- intervals


def test_clients_of_one_seed_give_the_percentile_bootstrap_of_scipy() -> None:
    a = STREAM.numpy().normal(0.7, 0.1, 40)
    ours = evidence.interval({3: a}, resampling.mean, STREAM, draws=9000)
    theirs = stats.bootstrap((a,), np.mean, n_resamples=9000, method="percentile", rng=1).confidence_interval
    assert ours == pytest.approx(tuple(theirs), abs=0.003)


def test_numbers_of_seeds_give_the_percentile_bootstrap_of_scipy_as_much_wider_as_student_says() -> None:
    a = STREAM.numpy().normal(0.7, 0.1, 8)
    low, high = evidence.interval({s: [v] for s, v in enumerate(a)}, resampling.mean, STREAM, draws=9000)
    theirs = stats.bootstrap((a,), np.mean, n_resamples=9000, method="percentile", rng=1).confidence_interval
    wider = np.sqrt(8 / 7) * stats.t.ppf(0.975, 7) / stats.norm.ppf(0.975)
    assert (low - a.mean(), high - a.mean()) == pytest.approx(tuple((np.array(theirs) - a.mean()) * wider), abs=0.005)


def test_intervals_repeat_and_depend_on_the_stream_alone() -> None:
    values = draw(STREAM.numpy(), 3, 20, 0.01)
    once = evidence.interval(values, resampling.deviation, STREAM)
    assert once == evidence.interval(values, resampling.deviation, STREAM)
    assert once != evidence.interval(values, resampling.deviation, Stream(8))


@pytest.mark.parametrize("name", ["accuracy_mean", "accuracy_std", "worst_10", "gini", "angle"])
def test_intervals_hold_what_was_measured_and_are_not_empty(name: str) -> None:
    values, statistic = draw(STREAM.numpy(), 10, 20, 0.01), resampling.OF_CLIENTS[name][1]
    low, high = evidence.interval(values, statistic, STREAM)
    assert low < np.mean([statistic(v) for v in values.values()]) < high


def test_equal_values_leave_nothing_open() -> None:
    same = {s: np.full(9, 0.5) for s in range(4)}
    assert evidence.interval(same, resampling.mean, STREAM) == (0.5, 0.5)
    assert evidence.interval(same, resampling.gini, STREAM) == (0.0, 0.0)


def test_nothing_to_resample_gives_no_interval() -> None:
    assert np.isnan(evidence.interval({}, resampling.mean, STREAM)).all()
    assert np.isnan(evidence.interval({0: [0.4]}, resampling.mean, STREAM)).all()


def test_more_clients_and_more_seeds_make_intervals_narrower() -> None:
    def width(seeds: int, clients: int) -> float:
        low, high = evidence.interval(draw(STREAM.numpy(), seeds, clients, 0.02), resampling.mean, STREAM)
        return high - low

    assert width(5, 200) < width(5, 10)
    assert width(40, 20) < 0.8 * width(5, 20)


def test_limits_are_kept() -> None:
    values = {s: np.array([0.0, 0.0, 0.0, 0.9]) for s in range(3)}
    assert evidence.interval(values, resampling.tail(10), STREAM, limits=(0.0, 1.0))[0] == 0.0


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_intervals_over_seeds_alone_cover_the_truth_as_often_as_they_say(seeds: int) -> None:
    rng, hits = STREAM.child(seeds).numpy(), 0
    for _ in range(400):
        low, high = resampling.bounds(rng.normal(size=seeds), None, STREAM, draws=400)
        hits += low <= 0 <= high
    assert 0.91 <= hits / 400 <= 0.98


@pytest.mark.parametrize(("name", "truth"), [("accuracy_mean", 0.7), ("accuracy_std", 0.0779)])
def test_intervals_cover_the_truth_about_as_often_as_they_say(name: str, truth: float) -> None:
    rng, statistic, hits = STREAM.numpy(), resampling.OF_CLIENTS[name][1], 0
    for _ in range(200):
        low, high = evidence.interval(draw(rng, 5, 20, 0.01), statistic, STREAM, draws=400)
        hits += low <= truth <= high
    assert hits / 200 >= 0.92


def test_every_measure_has_the_mean_of_its_cells_inside_its_interval() -> None:
    data = make_audit(seeds=5)
    table = evidence.intervals(data).to_pandas().set_index(["method", "attack", "measure"])
    means = data.cells.to_pandas().groupby(["method", "attack"])[list(MEASURES)].mean().stack().dropna()
    assert set(table.index) == set(means.index)
    np.testing.assert_allclose(table["mean"], means.loc[table.index], rtol=1e-12)
    assert (table["low"] <= table["mean"] + 1e-12).all() and (table["mean"] <= table["high"] + 1e-12).all()
    shares = [m.percent and m.name != "drop" for m in map(MEASURES.get, table.index.get_level_values("measure")) if m]
    assert table["low"][shares].min() >= 0 and table["high"][shares].max() <= 1


def test_notes_say_what_was_resampled() -> None:
    def note(measure: str, **given: Any) -> str:
        table = evidence.intervals(make_audit(methods=("fedavg",), attacks=("none",), **given), [measure])
        return str(table["note"][0])

    assert note("accuracy_std", seeds=5) == ""
    assert note("conflicts", seeds=5) == "over seeds only"
    assert note("accuracy_std", seeds=1) == "one seed: over clients only"
    assert note("conflicts", seeds=1) == "one seed: no interval"
    assert "3 seeds: a rough interval" in note("accuracy_std", seeds=3)
    assert "1 of 5 seeds left out" in note("accuracy_std", seeds=5, failed=[("fedavg", "none", 2)])


def test_malicious_clients_do_not_count() -> None:
    data = make_audit(methods=("fedavg",), attacks=("sign_flip",), seeds=5)
    bad = data.clients["malicious"]
    other = changed(data.clients, accuracy=np.where(bad, 0.0, data.clients["accuracy"]))
    before, after = (evidence.intervals(d) for d in (data, replace(data, clients=other)))
    np.testing.assert_array_equal(before["low"], after["low"])


def test_clients_that_do_not_give_the_cells_number_are_not_resampled() -> None:
    data = make_audit(methods=("fedavg",), attacks=("none",), seeds=5)
    other = changed(data.clients, accuracy=data.clients["accuracy"] / 2)
    table = evidence.intervals(replace(data, clients=other), ["accuracy_mean", "loss_mean"])
    assert table["note"].tolist() == ["over seeds only", ""]


# ------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("p", [[0.01], [0.04, 0.01, 0.04, 0.0], [0.9, 0.8], [0.001, np.nan, 0.02, 0.02, 1.0, 0.013]])
def test_holm_is_that_of_statsmodels(p: list[float]) -> None:
    values = np.array(p)
    there = np.isfinite(values)
    ours = comparing.holm(values)
    assert np.isnan(ours[~there]).all()
    np.testing.assert_allclose(ours[there], multipletests(values[there], method="holm")[1])


def test_p_values_and_intervals_are_those_of_scipys_paired_t_test() -> None:
    data = make_audit(seeds=6, effect={"ditto": 0.02})
    table = evidence.tests(data)
    unmeasured = {(a, m) for a in ("none", "sign_flip") for m in ("caught", "attack_success")} - {
        ("sign_flip", "caught")
    }
    assert len(table) == 2 * (2 * len(MEASURES) - len(unmeasured))
    for i in np.flatnonzero(np.isfinite(table["effect"]) & (table["difference"] != 0)):
        mine, base = (
            data.cells.filter(method=m, attack=table["attack"][i])[table["measure"][i]]
            for m in (table["method"][i], "fedavg")
        )
        expected = stats.ttest_rel(mine, base)
        assert table["p"][i] == pytest.approx(expected.pvalue)
        assert (table["low"][i], table["high"][i]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert table["effect"][i] == pytest.approx(expected.statistic / np.sqrt(6) * (1 - 3 / 19))


def test_corrected_p_values_are_over_the_methods_of_one_attack_and_measure() -> None:
    data = make_audit(("a", "b", "c", "d"), seeds=5, effect={"b": 0.01, "c": 0.02})
    table = evidence.tests(data, measures=["accuracy_mean", "gini"])
    for (_, measure), group in table.to_pandas().groupby(["attack", "measure"]):
        np.testing.assert_allclose(group["p_holm"], multipletests(group["p"], method="holm")[1], err_msg=measure)


def test_a_mixed_model_of_clients_within_seeds_comes_to_the_same() -> None:
    rng = STREAM.numpy()
    seed = np.repeat(np.arange(6), 25)
    client_differences = 0.02 + 0.03 * rng.normal(size=6)[seed] + 0.05 * rng.normal(size=150)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MixedLM(client_differences, np.ones((150, 1)), seed).fit(reml=True)
    means = np.array([client_differences[seed == s].mean() for s in range(6)])
    expected = stats.ttest_1samp(means, 0.0)
    assert float(model.tvalues[0]) == pytest.approx(expected.statistic, rel=1e-3)
    assert comparing.paired(means) == pytest.approx(expected.pvalue)


def verdict(measure: str = "accuracy_mean", method: str = "ditto", attack: str = "none", **given: Any) -> str:
    table = evidence.tests(make_audit(**given), measures=[measure])
    return str(table.filter(method=method, attack=attack)["verdict"][0])


def test_verdicts_in_words() -> None:
    assert verdict(seeds=5, effect=0.1) == "better"
    assert verdict(seeds=5, effect=-0.1) == "worse"
    assert verdict("loss_mean", seeds=5, effect=0.1) == "better"
    assert verdict("accuracy_std", seeds=6, effect={"ditto": Effect(spread=0.3)}) == "better"
    assert verdict(seeds=5) == "no significant difference"
    assert verdict(seeds=4, effect=0.1) == "too few seeds to tell"
    assert verdict(seeds=5, effect=0.1, failed=[("fedavg", "none", 1)]) == "too few seeds to tell"
    assert verdict(seeds=5, effect=0.1, failed=[("ditto", "none", s) for s in range(5)]) == "too few seeds to tell"


def test_no_difference_is_seldom_called_one() -> None:
    """Also where a run's luck is shared by its clients, which a test that swaps methods client by client would miss."""
    ours = naive = 0
    rng = STREAM.numpy()
    for key in range(100):
        data = make_audit(("a", "b"), ("none",), seeds=5, luck=0.02, rounds=1, key=key)
        ours += evidence.tests(data, measures=["accuracy_mean"])["verdict"][0] != "no significant difference"
        a, b = (data.clients.filter(method=name)["accuracy"] for name in "ab")
        swapped = ((a - b) * rng.choice([-1.0, 1.0], (400, len(a)))).mean(1)
        naive += (np.abs(swapped) >= abs((a - b).mean())).mean() <= 0.05
    assert ours / 100 <= 0.08
    assert naive / 100 > 0.4


def test_the_other_way_round_is_the_opposite() -> None:
    data = make_audit(seeds=5, methods=("a", "b"), effect=0.03)
    one, other = evidence.tests(data), evidence.tests(data, baseline="b")
    np.testing.assert_allclose(one["difference"], -other["difference"], atol=1e-12)
    np.testing.assert_allclose(one["p"], other["p"])
    opposite = {"better": "worse", "worse": "better"}
    assert [opposite.get(v, v) for v in one["verdict"]] == other["verdict"].tolist()


def test_what_is_the_same_in_every_seed_is_certain() -> None:
    assert comparing.paired(np.full(5, 0.2)) == 0.0 and comparing.paired(np.zeros(5)) == 1.0
    assert comparing.paired_interval(np.full(5, 0.5)) == (0.5, 0.5)
    assert np.isnan(comparing.hedges(np.full(5, 0.2))) and comparing.hedges(np.zeros(5)) == 0.0


def test_rounding_is_no_difference() -> None:
    data = make_audit(("a", "b"), ("none",), seeds=5)
    b = data.cells["method"] == "b"
    values = np.where(b, 0.1 + 1e-16 * data.cells["seed"], 0.1)
    table = evidence.tests(replace(data, cells=changed(data.cells, accuracy_mean=values)), measures=["accuracy_mean"])
    assert table["verdict"][0] == "no significant difference" and table["p"][0] == 1.0


def test_an_unknown_measure_is_refused_with_the_nearest() -> None:
    with pytest.raises(EquipoiseError, match="worst_10"):
        evidence.tests(make_audit(), measures=["worst_1O"])


# ------------------------------------------------------------------------------------------------- odd audits


def check_all(data: AuditData) -> None:
    measured = evidence.intervals(data)
    assert np.isfinite(measured["mean"].astype(float)).all()
    for row in evidence.tests(data)["verdict"]:
        assert row in ("better", "worse", "no significant difference", "too few seeds to tell")
    assert all(isinstance(s, str) and "nan" not in s for s in evidence.headline(data))
    assert len(evidence.levelling_down(data)) == len(data.attacks) * (len(data.methods) - 1)
    for y in ("worst_10", "gap_variance", "pearson"):
        assert len(evidence.fronts(data, y=y)) == len(data.attacks) * len(data.methods)


@settings(max_examples=15)
@given(
    st.integers(1, 3), st.sampled_from([("none",), ("x",), ("none", "x", "y")]), st.integers(1, 6), st.integers(1, 7),
    st.data(),
)  # fmt: skip
def test_any_audit_gives_evidence(
    methods: int, attacks: tuple[str, ...], seeds: int, clients: int, choice: st.DataObject
) -> None:
    names = ("fedavg", "ditto", "rffl")[:methods]
    runs = st.tuples(st.sampled_from(names), st.sampled_from(attacks), st.integers(0, seeds - 1))
    failed = choice.draw(st.sets(runs, max_size=8))
    alone = choice.draw(st.booleans())
    data = make_audit(names, attacks, seeds, clients, failed=failed, alone=alone, rounds=1)
    gone = choice.draw(st.sets(st.sampled_from(list(MEASURES)), max_size=4))
    check_all(replace(data, cells=without(data.cells, *gone)))


@pytest.mark.parametrize("gone", ["malicious", "n", "client", "accuracy", "gap", "method"])
def test_a_missing_column_of_clients_is_no_error(gone: str) -> None:
    data = make_audit(seeds=2)
    check_all(replace(data, clients=without(data.clients, gone)))


def test_nothing_measured_is_no_error() -> None:
    data = make_audit(seeds=2, failed=[(m, a, s) for m in ("fedavg", "ditto", "rffl") for a in ("none", "sign_flip") for s in (0, 1)])  # fmt: skip  # noqa: E501
    empty = Table({})
    check_all(data)
    check_all(replace(data, cells=empty, clients=empty))
    assert len(evidence.tests(data)) == 0 and len(evidence.intervals(data)) == 0


def test_infinite_and_missing_numbers_are_left_out_and_it_is_said() -> None:
    data = make_audit(seeds=5)
    loss = np.where(data.cells["seed"] == 1, np.inf, data.cells["loss_mean"])
    odd = replace(data, cells=changed(data.cells, loss_mean=loss))
    check_all(odd)
    row = evidence.intervals(odd, ["loss_mean"])
    assert set(row["seeds"]) == {4} and all("1 of 5 seeds left out" in note for note in row["note"])
