"""Partitions: nothing lost, nothing shared, everything repeatable, and the published splits to the number."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise.data.partitioners import (
    IID,
    PARTITIONS,
    Attribute,
    ByShares,
    ClassImbalance,
    Dirichlet,
    LogNormal,
    Partitioner,
    Pathological,
    PowerLaw,
)
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream

torch.set_num_threads(1)

ANY_DATA: list[ByShares] = [
    IID(min_size=0),
    Dirichlet(0.3, min_size=0),
    Dirichlet(0.01, min_size=0),
    Pathological(2, min_size=0),
    Pathological(3, min_size=0),
    PowerLaw(min_size=0),
    PowerLaw(0.2, min_size=0),
    ClassImbalance(min_size=0),
]
NEED_COVER: list[ByShares] = [
    Pathological(2, "order", min_size=0),
    Pathological(9, "order", min_size=0),
    LogNormal(min_size=0),
    LogNormal(2, min_size=0),
]


def sizes(parts: list[Tensor]) -> list[int]:
    return [len(p) for p in parts]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def class_counts(parts: list[Tensor], y: Tensor) -> Tensor:
    return torch.stack([torch.bincount(y[p], minlength=int(y.max()) + 1) for p in parts])


@st.composite
def pools(draw: st.DrawFn) -> tuple[Tensor, int, Stream]:
    """Labels in any order, with class ids that may be missing; clients, possibly more than samples; a stream."""
    ids = draw(st.lists(st.integers(0, 12), min_size=1, max_size=8, unique=True))
    labels = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=150))
    return torch.tensor(labels), draw(st.integers(1, 40)), Stream(draw(st.integers(0, 2**40)))


def covered(kind: ByShares, n_clients: int, classes: int) -> bool:
    if isinstance(kind, LogNormal):
        return n_clients + min(kind.classes, classes) - 1 >= classes
    assert isinstance(kind, Pathological)
    return n_clients * min(kind.classes, classes) >= classes


# ------------------------------------------------------------------------------------------------- every kind


@pytest.mark.parametrize("kind", ANY_DATA, ids=repr)
@settings(max_examples=25, deadline=None)
@given(pool=pools())
def test_every_sample_goes_to_exactly_one_client(kind: ByShares, pool: tuple[Tensor, int, Stream]) -> None:
    labels, n_clients, stream = pool
    parts = kind.parts(labels, n_clients, stream)
    assert len(parts) == n_clients
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))
    assert same(parts, kind.parts(labels.clone(), n_clients, Stream(stream.key)))


@pytest.mark.parametrize("kind", NEED_COVER, ids=repr)
@settings(max_examples=25, deadline=None)
@given(pool=pools())
def test_kinds_with_fixed_classes_deal_everything_or_say_who_is_left_out(
    kind: ByShares, pool: tuple[Tensor, int, Stream]
) -> None:
    labels, n_clients, stream = pool
    present = labels.unique()
    if not covered(kind, n_clients, len(present)):
        with pytest.raises(EquipoiseError, match="to nobody"):
            kind.parts(labels, n_clients, stream)
        return
    parts = kind.parts(labels, n_clients, stream)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))
    k = min(kind.classes, len(present))  # type: ignore[attr-defined]
    step = 1 if isinstance(kind, LogNormal) else k
    for u, p in enumerate(parts):
        may_hold = {int(present[(u * step + j) % len(present)]) for j in range(k)}
        assert set(labels[p].tolist()) <= may_hold


@pytest.mark.parametrize("kind", [IID, Dirichlet, PowerLaw], ids=lambda k: k.kind)
@settings(max_examples=25, deadline=None)
@given(pool=pools(), least=st.integers(1, 5))
def test_minimum_size_is_honoured_or_there_are_too_few_samples(
    kind: type[ByShares], pool: tuple[Tensor, int, Stream], least: int
) -> None:
    labels, n_clients, stream = pool
    partitioner = kind(min_size=least)  # type: ignore[call-arg]
    if len(labels) < n_clients * least:
        with pytest.raises(EquipoiseError, match="min_size"):
            partitioner.parts(labels, n_clients, stream)
        return
    parts = partitioner.parts(labels, n_clients, stream)
    assert min(sizes(parts)) >= least
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))


@pytest.mark.parametrize("kind", [Pathological(), Pathological(2, "order"), LogNormal(), ClassImbalance()], ids=repr)
@settings(max_examples=25, deadline=None)
@given(pool=pools())
def test_kinds_with_fixed_classes_never_fall_below_the_minimum_in_silence(
    kind: ByShares, pool: tuple[Tensor, int, Stream]
) -> None:
    labels, n_clients, stream = pool
    try:
        parts = kind.parts(labels, n_clients, stream)
    except EquipoiseError:
        return
    assert min(sizes(parts)) >= 1
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))


def test_a_top_up_takes_from_the_largest_and_leaves_the_rest_alone() -> None:
    before = sizes(PowerLaw(min_size=0).parts(torch.zeros(2000), 30, Stream(3)))
    after = sizes(PowerLaw(min_size=40).parts(torch.zeros(2000), 30, Stream(3)))
    level = min(a for a, b in zip(after, before, strict=True) if a < b)
    assert min(before) < 40
    assert level > 80
    for a, b in zip(after, before, strict=True):
        assert a == 40 if b < 40 else a == b or level <= a <= level + 1


def test_a_top_up_never_shrinks_a_client_below_the_minimum_nor_grows_one_above_it() -> None:
    labels = torch.arange(2000) % 4
    before = sizes(Dirichlet(0.05, min_size=0).parts(labels, 30, Stream(3)))
    after = sizes(Dirichlet(0.05, min_size=20).parts(labels, 30, Stream(3)))
    assert min(before) < 20
    assert all(a == 20 if b < 20 else 20 <= a <= b for a, b in zip(after, before, strict=True))


def test_a_top_up_stays_within_the_classes_of_the_client() -> None:
    labels = torch.arange(3000) % 10
    bare, topped = LogNormal(3, min_size=0), LogNormal(3, min_size=6)
    assert min(sizes(bare.parts(labels, 300, Stream(1)))) < 6
    parts = topped.parts(labels, 300, Stream(1))
    assert min(sizes(parts)) >= 6
    for u, p in enumerate(parts):
        assert set(labels[p].tolist()) <= {u % 10, (u + 1) % 10, (u + 2) % 10}


@pytest.mark.parametrize("kind", [k for k in PARTITIONS if k != "attribute"])
def test_another_seed_deals_another_hand(kind: str) -> None:
    labels = torch.arange(1000) % 10
    deals = [PARTITIONS[kind]().parts(labels, 20, Stream(seed)) for seed in (0, 1)]
    assert not same(*deals)


@pytest.mark.parametrize("kind", [k for k in PARTITIONS if k != "attribute"])
@pytest.mark.parametrize(("n", "n_clients", "classes"), [(50, 1, 10), (50, 10, 1), (10, 10, 1), (1, 1, 1)])
def test_one_client_and_one_class_work(kind: str, n: int, n_clients: int, classes: int) -> None:
    if kind == "lognormal" and n_clients == 1 < classes:
        pytest.skip("one client cannot hold ten classes, five at a time")
    least = {"min_size": 0} if kind in ("lognormal", "pathological") else {}
    parts = PARTITIONS[kind](**least).parts(torch.arange(n) % classes, n_clients, Stream(0))
    assert sum(sizes(parts)) == n


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "class-imbalance", "lognormal"])
@pytest.mark.parametrize("labels", [torch.rand(20), torch.rand(20, 3), torch.empty(0, dtype=torch.int64)])
def test_classes_are_asked_for_where_they_are_needed(kind: str, labels: Tensor) -> None:
    with pytest.raises(EquipoiseError, match=r"deals classes.*\n.*iid"):
        PARTITIONS[kind]().parts(labels, 2, Stream(0))


@pytest.mark.parametrize("kind", ["iid", "powerlaw"])
def test_regression_data_can_be_dealt(kind: str) -> None:
    parts = PARTITIONS[kind]().parts(torch.rand(100, 2), 7, Stream(0))
    assert torch.cat(parts).sort().values.tolist() == list(range(100))


EVERY = [*(p() for p in PARTITIONS.values()), Pathological(2, "order"), Dirichlet(0.01), PowerLaw(samples=5)]


@pytest.mark.parametrize("kind", EVERY, ids=repr)
def test_work_grows_with_the_clients_and_not_with_their_square(kind: Partitioner) -> None:
    def calls(clients: int) -> int:
        count = [0]
        labels = torch.arange(6 * clients) // 6 if isinstance(kind, Attribute) else torch.arange(6 * clients) % 10

        def one_more(frame: object, event: str, arg: object) -> None:
            count[0] += event.endswith("call")

        sys.setprofile(one_more)
        try:
            parts = kind.parts(labels, clients, Stream(0))
        finally:
            sys.setprofile(None)
        assert len(parts) == clients
        return count[0]

    assert calls(4000) < 6 * calls(1000)


# ------------------------------------------------------------------------------------------------- kind by kind


def test_iid_sizes_differ_by_one_at_most() -> None:
    assert sorted(set(sizes(IID().parts(torch.zeros(1003), 10, Stream(0))))) == [100, 101]


def test_iid_deals_exactly_the_samples_asked_for() -> None:
    parts = IID(samples=60).parts(torch.zeros(1003), 10, Stream(0))
    assert sizes(parts) == [60] * 10
    assert len(torch.cat(parts).unique()) == 600
    assert max(int(p.max()) for p in parts) > 900  # from the whole pool, not its beginning
    with pytest.raises(EquipoiseError, match="at most 100 per client"):
        IID(samples=101).parts(torch.zeros(1003), 10, Stream(0))


def test_dirichlet_with_a_large_alpha_is_nearly_uniform() -> None:
    labels = torch.arange(20_000) % 10
    counts = class_counts(Dirichlet(1e6).parts(labels, 20, Stream(0)), labels)
    assert counts.min() >= 98
    assert counts.max() <= 102


def test_rounding_does_not_favour_the_same_clients_in_every_class() -> None:
    labels = torch.arange(5000) % 10
    dealt = torch.tensor(sizes(Pathological(10, "order", min_size=0).parts(labels, 1000, Stream(0))))
    assert int(dealt.min()) > 0  # half a sample per client and class: 5 expected, and not 0 for half of them
    assert int(dealt.max()) < 10


def test_dirichlet_with_a_small_alpha_gives_nearly_one_class_per_client() -> None:
    labels = torch.arange(20_000) % 100
    counts = class_counts(Dirichlet(0.01, min_size=0).parts(labels, 10, Stream(0)), labels)
    assert (counts.max(0).values / counts.sum(0)).mean() > 0.9  # a class has one holder
    labels = torch.arange(20_000) % 10
    many = class_counts(Dirichlet(0.001, min_size=0).parts(labels, 100, Stream(0)), labels)
    assert many.max(1).values.sum() / many.sum() > 0.85  # and a client one class


def test_dirichlet_proportions_have_the_right_spread() -> None:
    labels = torch.arange(100_000) % 100
    share = class_counts(Dirichlet(0.5, min_size=0).parts(labels, 5, Stream(0)), labels) / 1000.0
    # Var of one component of Dirichlet(a, ..., a) over N: (1/N)(1 - 1/N) / (N a + 1)
    assert float(share.var()) == pytest.approx(0.2 * 0.8 / 3.5, rel=0.15)


def test_shards_are_equal_and_hold_few_classes() -> None:
    labels = torch.arange(60_000) % 10
    parts = Pathological(2).parts(labels, 100, Stream(0))
    assert set(sizes(parts)) == {600}
    held = (class_counts(parts, labels) > 0).sum(1)
    assert held.max() <= 2
    assert (held == 2).sum() > 50


def test_dealing_in_order_gives_consecutive_classes_shared_equally() -> None:
    labels = torch.arange(10_000) % 10
    counts = class_counts(Pathological(2, "order").parts(labels, 20, Stream(0)), labels)
    for u in range(20):
        assert counts[u].nonzero()[:, 0].tolist() == [2 * u % 10, 2 * u % 10 + 1]
    assert set(counts[counts > 0].tolist()) == {250}


def test_powerlaw_has_the_published_sizes() -> None:
    parts = PowerLaw(samples=600).parts(torch.arange(60_000) % 10, 10, Stream(0))
    assert sizes(parts) == [71, 189, 306, 424, 542, 659, 777, 895, 1012, 1130]
    assert len(torch.cat(parts).unique()) == 6005
    assert (class_counts(parts, torch.arange(60_000) % 10)[-1] > 80).all()  # iid classes


def test_powerlaw_without_a_surplus_in_the_pool_deals_what_there_is() -> None:
    for kind in (PowerLaw(), PowerLaw(samples=600)):
        dealt = sizes(kind.parts(torch.zeros(6000), 10, Stream(0)))
        published = [71, 189, 306, 424, 542, 659, 777, 895, 1012, 1130]
        assert sum(dealt) == 6000
        assert all(abs(a - b) <= 1 for a, b in zip(dealt, published, strict=True))


def test_a_smaller_exponent_is_more_unequal() -> None:
    spread = [sizes(PowerLaw(a).parts(torch.zeros(6000), 10, Stream(0))) for a in (0.8, 1.66, 100.0)]
    assert spread[0][0] < spread[1][0] < spread[2][0]
    assert spread[0][-1] > spread[1][-1] > spread[2][-1]
    assert spread[2][0] > 580


def test_class_imbalance_has_the_published_class_numbers() -> None:
    labels = torch.arange(60_000) % 10
    for n_clients, held in ((5, [1, 3, 5, 7, 10]), (10, list(range(1, 11)))):
        counts = class_counts(ClassImbalance(samples=600).parts(labels, n_clients, Stream(0)), labels)
        assert (counts > 0).sum(1).tolist() == held
        assert counts.sum(1).tolist() == [600] * n_clients
        assert all(c[c > 0].max() - c[c > 0].min() <= 1 for c in counts)
        whole = class_counts(ClassImbalance().parts(labels, n_clients, Stream(0)), labels)
        assert (whole > 0).sum(1).tolist() == held


def test_a_subset_larger_than_the_pool_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="pool has 100"):
        PowerLaw(samples=11).parts(torch.zeros(100), 10, Stream(0))
    with pytest.raises(EquipoiseError, match="needs 27 of class number 0, which has 10"):
        ClassImbalance(samples=10).parts(torch.arange(100) % 10, 10, Stream(0))


def test_lognormal_sizes_are_as_drawn_and_very_unequal() -> None:
    labels = torch.arange(60_000) % 10
    parts = LogNormal().parts(labels, 500, Stream(0))
    drawn = (3.0 + Stream(0).child("shares").child("sizes").normal(torch.arange(500))).exp() + 10
    expected = drawn / drawn.sum() * 60_000
    assert (torch.tensor(sizes(parts)) - expected).abs().max() < 6  # five classes, each less than one off
    held = [len(labels[p].unique()) for p in parts]
    assert max(held) == 5
    assert held.count(5) > 450  # a rare class of a small client rounds to nothing
    assert max(sizes(parts)) > 8 * sorted(sizes(parts))[250]


def test_attribute_makes_a_client_of_every_value_with_enough_samples() -> None:
    writers = torch.tensor([7, 3, 7, 9, 3, 7, 5, 5, 3])
    assert [p.tolist() for p in Attribute(min_samples=2).parts(writers, 0, Stream(0))] == [[1, 4, 8], [6, 7], [0, 2, 5]]
    drawn = {tuple(len(p) for p in Attribute(max_clients=2).parts(writers, 0, Stream(s))) for s in range(20)}
    assert all(len(d) == 2 for d in drawn)
    assert len(drawn) > 2
    with pytest.raises(EquipoiseError, match="min_samples = 4"):
        Attribute(min_samples=4).parts(writers, 0, Stream(0))
    with pytest.raises(EquipoiseError, match="makes 4 clients"):
        Attribute().parts(writers, 3, Stream(0))
