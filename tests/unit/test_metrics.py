"""Metrics: every number against a plain recomputation, and the properties that make it mean what it says."""

from __future__ import annotations

import math
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import metrics
from equipoise.conflicts import conflicts
from equipoise.metrics import Evaluation, last_tenth, summarise, summary, table
from equipoise.streams import Stream

accuracies = st.lists(st.floats(0.0, 1.0, allow_subnormal=False), min_size=1, max_size=40).map(np.array)


def evaluation(n_clients: int = 30, classes: int = 5, seed: int = 0) -> Evaluation:
    """Random counts; some clients have no samples, some classes are absent."""
    rng = Stream(seed).child("evaluation").numpy()
    class_n = rng.integers(0, 8, (n_clients, classes)) * (rng.random((n_clients, classes)) < 0.6)
    class_n[:2] = 0
    class_correct = rng.binomial(class_n, 0.7)
    return Evaluation(class_n.sum(1), class_correct.sum(1), rng.random(n_clients), class_n, class_correct)


def rows(e: Evaluation, **change: object) -> dict[str, np.ndarray]:
    n = len(e.n)
    given_ = {"round": 3, "split": "test", "model": "global", "malicious": np.zeros(n), "quarantined": np.zeros(n)}
    return table(e, **{**given_, **change})


# ------------------------------------------------------------------------------------------------- per client


def test_evaluation_agrees_with_a_loop_over_clients_and_classes() -> None:
    e = evaluation()
    for k in range(len(e.n)):
        rates = [c / m for c, m in zip(e.class_correct[k], e.class_n[k], strict=True) if m > 0]
        assert np.isnan(e.accuracy[k]) == (not rates)
        if rates:
            assert e.accuracy[k] == e.correct[k] / e.n[k]
            assert e.balanced_accuracy[k] == pytest.approx(sum(rates) / len(rates), abs=1e-15)
    assert np.array_equal(np.isnan(e.per_class), e.class_n == 0)


def test_balanced_accuracy_counts_a_rare_class_like_a_common_one() -> None:
    e = Evaluation(*map(np.array, ([100], [99], [0.1], [[99, 1, 0]], [[99, 0, 0]])))
    assert e.accuracy[0] == 0.99
    assert e.balanced_accuracy[0] == 0.5


def test_a_regression_has_losses_but_no_accuracy() -> None:
    none = np.zeros((2, 0), int)
    e = Evaluation(np.array([3, 4]), np.array([0, 0]), np.array([1.0, 3.0]), none, none)
    assert np.isnan(e.accuracy).all()
    assert np.isnan(e.balanced_accuracy).all()
    s = summarise(rows(e))
    assert s["loss_mean"] == 2.0
    assert all(math.isnan(v) for k, v in s.items() if not k.startswith("loss"))


def test_the_table_has_one_row_per_client_and_a_data_frame_can_hold_it() -> None:
    e = evaluation(n_clients=7)
    columns = rows(e, malicious=np.arange(7) == 2, quarantined=[0, 0, 1, 0, 0, 0, 2])
    assert list(columns) == [
        *("round", "client", "split", "model", "accuracy", "balanced_accuracy"),
        *("loss", "n", "malicious", "quarantined", "class_n", "class_correct"),
    ]
    frame = pd.DataFrame({k: list(v) for k, v in columns.items()})
    assert len(frame) == 7
    assert frame["client"].tolist() == list(range(7))
    assert frame.loc[frame["malicious"], "client"].tolist() == [2]
    assert frame.loc[frame["quarantined"], "client"].tolist() == [2, 6]
    assert frame["class_n"].map(sum).tolist() == frame["n"].tolist()


# ------------------------------------------------------------------------------------------------- over clients


def test_the_summary_agrees_with_pandas() -> None:
    e = evaluation(n_clients=137)
    bad = np.arange(137) % 7 == 0
    columns = rows(e, malicious=bad)
    frame = pd.DataFrame({k: list(v) for k, v in columns.items()})
    frame = frame[~frame["malicious"] & (frame["n"] > 0)]
    a, s = frame["accuracy"], summarise(columns)
    worst, best = a.sort_values(), a.sort_values(ascending=False)
    five, ten = math.ceil(len(a) * 5 / 100), math.ceil(len(a) * 10 / 100)
    rates = [
        pd.Series([c / m for c, m in zip(cs, ms, strict=True) if m]).std(ddof=0)
        for cs, ms in zip(frame["class_correct"], frame["class_n"], strict=True)
    ]
    expected = {
        "accuracy_mean": a.mean(),
        "accuracy_weighted": (a * frame["n"]).sum() / frame["n"].sum(),
        "accuracy_std": a.std(ddof=0),
        "accuracy_variance": a.var(ddof=0),
        "accuracy_min": a.min(),
        "accuracy_max": a.max(),
        "worst_5": worst[:five].mean(),
        "worst_10": worst[:ten].mean(),
        "best_10": best[:ten].mean(),
        "best_5": best[:five].mean(),
        "gini": np.abs(a.values[:, None] - a.values).mean() / (2 * a.mean()),
        "jain": a.sum() ** 2 / (len(a) * (a**2).sum()),
        "angle": np.arccos(a.sum() / (np.linalg.norm(a) * math.sqrt(len(a)))),
        "loss_mean": frame["loss"].mean(),
        "loss_std": frame["loss"].std(ddof=0),
        "class_std_mean": np.mean(rates),
        "class_std_std": np.std(rates),
    }
    assert s == pytest.approx(expected, abs=1e-12)
    assert list(s) == list(expected)


def test_malicious_clients_and_clients_without_samples_change_nothing() -> None:
    a, n = np.array([0.2, 0.4, 0.9]), np.array([5, 6, 7])
    more = summary([*a, 0.0, np.nan], [*n, 9, 0], [1, 2, 3, 99, np.nan], malicious=[0, 0, 0, 1, 0])
    assert more == pytest.approx(summary(a, n, [1, 2, 3]), nan_ok=True)


@pytest.mark.parametrize(("n", "worst"), [(1, 1), (3, 1), (20, 1), (21, 2), (140, 7), (500, 25)])
def test_the_worst_five_percent_are_rounded_up(n: int, worst: int) -> None:
    assert metrics.tail(np.arange(float(n)), 5) == np.arange(worst).mean()
    assert metrics.tail(np.arange(float(n)), 5, best=True) == np.arange(n)[n - worst :].mean()


@given(accuracies)
def test_tails_are_ordered(a: np.ndarray) -> None:
    s = summary(a, np.ones(len(a)))
    names = ["accuracy_min", "worst_5", "worst_10", "accuracy_mean", "best_10", "best_5", "accuracy_max"]
    values = [s[name] for name in names]
    assert all(x <= y + 1e-12 for x, y in pairwise(values))


@given(accuracies)
def test_the_indices_stay_in_their_ranges_and_are_extreme_only_for_equal_values(a: np.ndarray) -> None:
    equal = bool((a == a[0]).all())
    assert 0.0 <= metrics.gini(a) < 1.0
    assert (metrics.gini(a) == 0.0) == equal
    assert 1 / len(a) - 1e-12 <= metrics.jain(a) <= 1.0 + 1e-12
    assert 0.0 <= metrics.angle(a) < math.pi / 2
    if equal:
        assert metrics.deviation(a) == metrics.angle(a) == 0.0
        assert metrics.jain(a) == pytest.approx(1.0)


@given(accuracies, st.floats(1e-3, 1e3))
def test_gini_jain_and_angle_ignore_the_scale(a: np.ndarray, c: float) -> None:
    for index in (metrics.gini, metrics.jain, metrics.angle):
        assert index(a * c) == pytest.approx(index(a), abs=1e-7)


@given(accuracies, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(a: np.ndarray, random: object) -> None:
    n = np.arange(1, len(a) + 1)
    order = list(range(len(a)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert summary(a[order], n[order], a[order]) == pytest.approx(summary(a, n, a), abs=1e-7, nan_ok=True)


def test_the_angle_and_jain_of_one_client_that_has_everything() -> None:
    a = np.array([1.0, 0.0, 0.0, 0.0])
    assert metrics.angle(a) == pytest.approx(math.acos(0.5))
    assert metrics.jain(a) == 0.25
    assert metrics.gini(a) == 0.75


def test_a_model_that_is_always_wrong_has_no_spread() -> None:
    s = summary(np.zeros(4), np.ones(4))
    assert (s["gini"], s["jain"], s["angle"], s["accuracy_mean"]) == (0.0, 1.0, 0.0, 0.0)


def test_client_data_spread_is_over_the_classes_that_a_client_has() -> None:
    s = summary([0.5, 1.0], [4, 2], class_n=[[2, 2, 0], [0, 0, 2]], class_correct=[[2, 0, 0], [0, 0, 2]])
    assert s["class_std_mean"] == 0.25  # 0.5 for the first client, 0 for the one-class client
    assert s["class_std_std"] == 0.25


@pytest.mark.filterwarnings("error")
def test_empty_and_diverged_inputs_give_nan_and_no_warning() -> None:
    nothing = summary([], [])
    assert all(math.isnan(v) for v in nothing.values())
    assert list(nothing) == list(summary([0.5], [1], [0.1]))
    assert all(math.isnan(v) for v in summary([0.5, np.nan], [3, 0], malicious=[True, False]).values())
    assert all(math.isnan(v) for v in summarise(rows(evaluation(n_clients=0))).values())
    assert all(math.isnan(v) for v in summarise(rows(evaluation()), split="validation").values())
    diverged = summary([0.1, 0.1], [1, 1], [np.inf, np.nan])
    assert math.isnan(diverged["loss_mean"])
    assert diverged["accuracy_mean"] == 0.1
    assert summary([0.1, 0.1], [1, 1], [np.inf, 1.0])["loss_mean"] == math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(metrics.jain(np.array([np.nan, 1.0])))


def test_summarise_takes_the_last_round_and_the_model_that_clients_use() -> None:
    early, late, own = (evaluation(seed=i) for i in range(3))
    parts = [rows(early, round=1), rows(late, round=2), rows(own, round=2, model="personal")]
    columns = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    assert summarise(columns) == summarise(parts[2])
    assert summarise(columns, model="global") == summarise(parts[1])
    lists = {**columns, "class_n": pd.Series(list(columns["class_n"])).to_numpy()}  # as a file gives them back
    assert lists["class_n"].dtype == object
    assert summarise(lists) == summarise(columns)


# ------------------------------------------------------------------------------------------------- over rounds


def test_the_last_tenth_is_the_plain_mean_of_evenly_spaced_measurements() -> None:
    rounds = np.arange(1, 101)
    assert last_tenth(rounds, rounds**2) == pytest.approx(np.mean(rounds[-10:] ** 2))
    order = np.argsort(Stream(1).numpy().random(100))
    assert last_tenth(rounds[order], rounds[order] ** 2) == pytest.approx(np.mean(rounds[-10:] ** 2))


def test_the_last_tenth_weighs_a_measurement_by_the_rounds_it_stands_for() -> None:
    assert last_tenth([80, 98, 100], [9.0, 1.0, 2.0]) == pytest.approx((8 * 1.0 + 2 * 2.0) / 10)
    assert last_tenth([10, 20], [5.0, 7.0]) == 7.0
    assert last_tenth([0], [3.0]) == 3.0
    assert math.isnan(last_tenth([], []))
    assert last_tenth([50, 100], [np.nan, 4.0]) == 4.0
    assert math.isnan(last_tenth([95, 100], [np.nan, 4.0]))


# ------------------------------------------------------------------------------------------------- conflicts


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 6), st.integers(0, 1000))
def test_conflicts_agree_with_a_double_loop(k: int, seed: int) -> None:
    g = Stream(seed).torch()
    updates, direction = torch.randn(k, 11, generator=g), torch.randn(11, generator=g)
    layers = {"a": [slice(0, 4), slice(9, 11)], "b": [slice(4, 9)]}
    expected = dict.fromkeys(("model", *layers), 0)
    for row in updates.double().tolist():
        products = [u * v for u, v in zip(row, direction.double().tolist(), strict=True)]
        expected["model"] += sum(products) < 0
        for name, parts in layers.items():
            expected[name] += sum(sum(products[p]) for p in parts) < 0
    assert conflicts(updates, direction, layers) == expected


def test_conflicts_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Stream(5).torch()
    updates, direction = torch.randn(9, 103, generator=g), torch.randn(103, generator=g)
    layers = {"first": [slice(0, 50)], "second": [slice(50, 103)]}
    expected = conflicts(updates, direction, layers)
    monkeypatch.setattr("equipoise.conflicts._CHUNK", 20)
    assert conflicts(updates, direction, layers) == expected


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 1000))
def test_conflicts_are_those_of_float64_also_where_an_update_is_all_but_orthogonal(k: int, seed: int) -> None:
    g = Stream(seed).torch()
    direction = torch.randn(60, generator=g)
    updates = torch.randn(k, 60, generator=g)
    updates -= (updates @ direction)[:, None] * direction / direction.square().sum()  # what is left is rounding
    layers = {"a": [slice(0, 25)], "b": [slice(25, 60)]}
    expected = conflicts(updates.double(), direction.double(), layers)
    assert conflicts(updates, direction, layers) == expected
    assert conflicts(updates, direction, layers, torch.linalg.vector_norm(updates, dim=1)) == expected


def test_conflicts_survive_what_overflows_float32() -> None:
    updates = torch.tensor([[1e30, -2e30], [1e30, 1e30]])
    assert conflicts(updates, torch.tensor([1e30, 1e30]), {"all": [slice(0, 2)]}) == {"model": 1, "all": 1}


def test_conflicts_count_the_whole_model_also_where_layers_cover_a_part_or_share_its_name() -> None:
    updates, direction = torch.tensor([[1.0, -3.0]]), torch.ones(2)
    assert conflicts(updates, direction, {"model": [slice(0, 1)]}) == {"model": 1, "model (layer)": 0}
    assert conflicts(updates, direction, {}) == {"model": 1}


def test_an_orthogonal_update_is_no_conflict() -> None:
    assert conflicts(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0, 0.0]), {}) == {"model": 0}
