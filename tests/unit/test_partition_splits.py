"""Federations from partitions: who trains on what, who is tested on what, and what a bad request is answered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data.federation import SPLITS, Dataset, Federation, Split
from equipoise.data.partition import partition, split_clients
from equipoise.data.partitioners import IID, PARTITIONS, Dirichlet
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream

torch.set_num_threads(1)


def dataset(n: int = 700, classes: int = 7, parts: bool = True) -> Dataset:
    number = torch.arange(n)
    columns = {"writer": number // 10, "part": (number % 10 >= 8).to(torch.int64)}
    return Dataset("toy", number[:, None].float(), number % classes, classes, attributes=columns if parts else {})


def held(fed: Federation, split: str) -> list[int]:
    return [i for k in range(fed.n_clients) for i in fed.splits[split].of_client(k).tolist()]


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    shares=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)).filter(lambda s: sum(s) < 0.999),
    seed=st.integers(0, 2**30),
)
def test_splits_are_disjoint_complete_and_leave_something_to_train_on(
    blocks: list[int], shares: tuple[float, float], seed: int
) -> None:
    parts = list(torch.arange(sum(blocks)).flip(0).split(blocks))
    test, validation = shares
    fed = split_clients(
        dataset(max(1, sum(blocks))), parts, test=test, validation=validation, stream=Stream(seed), how="blocks"
    )
    for k, part in enumerate(parts):
        own = [i for s in SPLITS for i in fed.splits[s].of_client(k).tolist()]
        assert sorted(own) == sorted(part.tolist())
        n, tested = len(part), len(fed.splits["test"].of_client(k))
        assert len(fed.splits["train"].of_client(k)) >= min(1, n)
        assert tested == min(int(test * n + 0.5), max(0, n - 1))
        assert len(fed.splits["validation"].of_client(k)) == min(int(validation * n + 0.5), max(0, n - 1) - tested)


def test_a_split_is_random_and_fair_to_every_sample() -> None:
    data, parts = dataset(), [torch.arange(k * 10, k * 10 + 10) for k in range(70)]
    counts = torch.zeros(700)
    for seed in range(100):
        fed = split_clients(data, parts, test=0.3, validation=0.2, stream=Stream(seed), how="")
        counts[torch.tensor(held(fed, "test"))] += 1
    assert counts.min() > 10  # 30 expected, standard deviation 4.6
    assert counts.max() < 50


@pytest.mark.parametrize("kind", list(PARTITIONS))
@pytest.mark.parametrize("test_set", ["local", "common", "official"])
def test_a_partition_is_the_same_for_the_same_seed_only(kind: str, test_set: str) -> None:
    params = {"max_clients": 20} if kind == "attribute" else {"clients": 20}
    first, again, other = (
        partition(dataset(), kind, test_set=test_set, validation=0.1, seed=seed, **params) for seed in (3, 3, 4)
    )
    for split in SPLITS:
        assert torch.equal(first.splits[split].index, again.splits[split].index)
        assert torch.equal(first.splits[split].start, again.splits[split].start)
        assert torch.equal(first.splits[split].size, again.splits[split].size)
    assert held(first, "train") != held(other, "train")
    assert first.partition == again.partition != other.partition


def test_local_test_sets_pool_everything_and_split_each_client() -> None:
    fed = partition(dataset(), "dirichlet", clients=12, test=0.25, validation=0.1, alpha=0.5)
    assert sorted(held(fed, "train") + held(fed, "validation") + held(fed, "test")) == list(range(700))
    assert fed.partition == ("dirichlet(alpha=0.5, min_size=1), 12 clients, test local 0.25, validation 0.1, seed 0")


def test_the_common_test_set_is_the_official_one_and_never_trained_on() -> None:
    fed = partition(dataset(), clients=9, test_set="common", validation=0.2)
    official = [i for i in range(700) if i % 10 >= 8]
    assert all(fed.splits["test"].of_client(k).tolist() == official for k in range(9))
    assert sorted(held(fed, "train") + held(fed, "validation")) == [i for i in range(700) if i % 10 < 8]


def test_without_parts_the_common_test_set_is_a_random_share() -> None:
    fed = partition(dataset(parts=False), clients=9, test_set="common", test=0.3)
    common = fed.splits["test"].of_client(0).tolist()
    assert len(common) == 210
    assert sorted(held(fed, "train") + common) == list(range(700))
    assert common != list(range(210))


def test_official_test_samples_follow_the_training_classes() -> None:
    data = dataset(70_000)
    fed = partition(data, "dirichlet", clients=15, test_set="official", alpha=0.3)
    assert sorted(held(fed, "test")) == [i for i in range(70_000) if i % 10 >= 8]
    train, test = fed.class_counts("train").double(), fed.class_counts("test").double()
    expected = train / train.sum(0) * test.sum(0)
    assert (test - expected).abs().max() < 1.0 + 1e-6


def test_official_test_sets_are_of_similar_size_where_training_sets_are() -> None:
    part = torch.arange(10_500) // 10_000
    data = Dataset("balanced", torch.zeros(10_500, 1), torch.arange(10_500) % 10, 10, attributes={"part": part})
    fed = partition(data, "pathological", clients=100, test_set="official", classes=10, deal="order")
    assert fed.class_counts("train").unique().tolist() == [10]
    size = fed.splits["test"].size  # half a sample of each of ten classes: 5 expected
    assert int(size.min()) >= 1
    assert int(size.max()) <= 9


def test_official_test_samples_of_classes_that_nobody_trains_on_are_left_out() -> None:
    y = torch.tensor([0] * 40 + [1] * 40 + [0, 1, 2, 2] * 5)
    part = torch.tensor([0] * 80 + [1] * 20)
    data = Dataset("lopsided", torch.zeros(100, 1), y, 3, attributes={"part": part})
    fed = partition(data, "pathological", clients=4, test_set="official")
    assert sorted(held(fed, "test")) == [i for i in range(80, 100) if y[i] != 2]


def test_official_test_samples_of_a_writer_stay_with_the_writer() -> None:
    data = dataset()
    fed = partition(data, "attribute", test_set="official", column="writer", max_clients=30)
    writer = data.attributes["writer"]
    for k in range(30):
        (own,) = writer[fed.splits["train"].of_client(k)].unique().tolist()
        assert fed.splits["test"].of_client(k).tolist() == [own * 10 + 8, own * 10 + 9]


def test_official_regression_tests_are_dealt_by_size() -> None:
    data = Dataset("reg", torch.zeros(120, 1), torch.rand(120, 1), 0, attributes={"part": torch.arange(120) // 100})
    fed = partition(data, "iid", clients=10, test_set="official")
    assert fed.splits["test"].size.tolist() == [2] * 10


def test_a_partitioner_object_is_as_good_as_its_name() -> None:
    by_name = partition(dataset(), "dirichlet", clients=5, alpha=0.2)
    by_object = partition(dataset(), Dirichlet(0.2), clients=5)
    assert held(by_name, "train") == held(by_object, "train")
    assert by_name.partition == by_object.partition


def test_misspelt_names_come_back_with_the_nearest_one() -> None:
    data = dataset()
    for call, hint in [
        (lambda: partition(data, "dirichlett", clients=5), "dirichlet"),
        (lambda: partition(data, "dirichlet", clients=5, alhpa=1), "alpha"),
        (lambda: partition(data, clients=5, test_set="comon"), "common"),
        (lambda: partition(data, "attribute", column="writr"), "writer"),
        (lambda: partition(data, "iid"), "clients"),
        (lambda: partition(data, IID(), clients=5, min_size=2), "object"),
        (lambda: partition(data, clients=0), "1 or more"),
        (lambda: partition(data, clients=5, test=1.0), "not including"),
        (lambda: partition(data, clients=5, test=0.6, validation=0.4), "not including"),
        (lambda: partition(dataset(parts=False), clients=5, test_set="official"), "local"),
    ]:
        with pytest.raises(EquipoiseError, match=hint):
            call()


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("dirichlet", {"alpha": 0}),
        ("dirichlet", {"alpha": float("nan")}),
        ("dirichlet", {"alpha": float("inf")}),
        ("dirichlet", {"alpha": "0.5"}),
        ("pathological", {"classes": 0}),
        ("pathological", {"deal": "cards"}),
        ("powerlaw", {"exponent": 0}),
        ("powerlaw", {"samples": 0}),
        ("class-imbalance", {"samples": 0}),
        ("lognormal", {"classes": 0}),
        ("attribute", {"min_samples": 0}),
        ("attribute", {"max_clients": 0}),
        ("iid", {"min_size": -1}),
    ],
)
def test_parameters_out_of_range_are_refused(kind: str, params: dict[str, object]) -> None:
    with pytest.raises(EquipoiseError, match=next(iter(params))):
        partition(dataset(), kind, clients=4, **params)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"clients": value} for value in ("4", 2.5)),
        *({"test": value} for value in ("0.2", None, float("nan"))),
        *({"test": value, "test_set": "common"} for value in ("0.2", 1.0)),
        *({"validation": value} for value in ("0.1", None)),
        *({"root": value} for value in ("3", 1.5)),
        *({"test_set": 3}, {"kind": 3}),
    ],
)
def test_what_is_no_number_or_no_name_is_refused(wrong: dict[str, Any]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(EquipoiseError, match=f"{name} is {value!r}"):
        partition(dataset(parts=False), **{"kind": "iid", "clients": 4, **wrong})


@pytest.mark.parametrize(
    ("kind", "params"), [("pathological", {}), ("pathological", {"deal": "order"}), ("lognormal", {})]
)
def test_nobody_holds_more_classes_than_there_are(kind: str, params: dict[str, object]) -> None:
    partition(dataset(classes=7), kind, clients=4, classes=7, **params)
    with pytest.raises(EquipoiseError, match=f"{kind}: classes is 8 per client, but toy has 7"):
        partition(dataset(classes=7), kind, clients=4, classes=8, **params)


def test_a_soft_label_counts_for_its_largest_share_and_a_regression_has_no_classes() -> None:
    y = torch.tensor([[0.7, 0.3, 0.0], [0.1, 0.4, 0.5], [0.2, 0.6, 0.2], [0.6, 0.4, 0.0]])
    splits = {name: Split.of([torch.tensor([0, 1]), torch.tensor([2, 3])]) for name in ("train", "validation", "test")}
    soft = Federation(Dataset("soft", torch.zeros(4, 2), y, 3), splits)
    assert soft.class_counts().tolist() == [[1, 0, 1], [1, 1, 0]]
    assert Federation(Dataset("real", torch.zeros(4, 2), y[:, 0], 0), splits).class_counts().shape == (2, 0)
