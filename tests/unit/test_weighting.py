"""How much clients count by their sizes, and how weights of merged rows go back to clients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import registry
from equipoise.core import Cohort, WeightedMean
from equipoise.errors import EquipoiseError
from equipoise.weighting import WAYS, Weights, shares, spread

SIZES = st.lists(st.integers(0, 10**12), min_size=1, max_size=12).map(torch.tensor)


@given(sizes=SIZES, way=st.sampled_from(WAYS))
def test_shares_sum_to_one_and_are_never_negative(sizes: torch.Tensor, way: Weights) -> None:
    given = shares(sizes, way)
    assert abs(float(given.sum()) - 1) < 1e-12 and float(given.min()) >= 0


@given(sizes=SIZES, f=st.integers(0, 6), claim=st.integers(1, 10**15))
def test_capped_sizes_leave_f_liars_at_most_two_f_of_m(sizes: torch.Tensor, f: int, claim: int) -> None:
    f = min(f, len(sizes))
    lied = torch.cat([torch.full((f,), claim), sizes.clamp(min=1)[f:]])
    assert float(shares(lied, "capped")[:f].sum()) <= 2 * f / len(lied) + 1e-12


def test_one_big_claim_owns_the_mean_by_size_and_not_the_capped_one() -> None:
    sizes = torch.tensor([10**9, 40, 50, 60])
    assert float(shares(sizes, "size")[0]) > 0.999
    assert shares(sizes, "capped").tolist() == torch.tensor([50, 40, 50, 50]).double().div(190).tolist()
    assert shares(sizes, "uniform").tolist() == [0.25] * 4


def test_where_nobody_has_a_sample_all_count_the_same() -> None:
    for way in WAYS:
        assert shares(torch.zeros(4, dtype=torch.int64), way).tolist() == [0.25] * 4


def test_weights_of_merged_rows_go_to_their_clients_in_equal_parts() -> None:
    given = spread(torch.tensor([0.6, 0.4]), torch.tensor([0, 1, 0, -1, 0]))
    assert torch.allclose(given, torch.tensor([0.2, 0.4, 0.2, 0.0, 0.2]))


def test_the_mean_knows_three_ways_and_no_other() -> None:
    cohort = Cohort(torch.arange(3), torch.zeros(1), torch.tensor([[0.0], [3.0], [9.0]]), torch.tensor([1, 2, 9]))
    found = [float(WeightedMean(way).combine(cohort)) for way in WAYS]
    assert torch.allclose(torch.tensor(found), torch.tensor([4.0, 87 / 12, 24 / 5]))
    with pytest.raises(EquipoiseError, match="'sizes'") as caught:
        WeightedMean("sizes")
    assert "capped" in caught.value.hint


def test_every_part_with_weights_says_which_ways_there_are() -> None:
    entries = [e for kind in registry.OWN for e in registry.entries(kind).values()]
    found = {e.name: p.type for e in entries for p in e.parameters if p.name == "weights"}
    assert len(found) > 10 and set(found.values()) == {Weights}
