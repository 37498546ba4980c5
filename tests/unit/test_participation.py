"""Participation: who is drawn, and that the draw has the right law."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.engine.participation import Participants
from equipoise.engine.settings import Participation
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream

NOBODY = torch.zeros(40, dtype=torch.bool)


def participants(sizes: torch.Tensor | None = None, **settings: object) -> Participants:
    return Participants(Participation(**settings), torch.ones(40) if sizes is None else sizes, Stream(1))  # type: ignore[arg-type]


@given(st.integers(1, 40), st.integers(0, 500), st.sets(st.integers(0, 39), max_size=35))
def test_a_draw_is_distinct_sorted_free_and_as_large_as_it_can_be(k: int, round: int, out: set[int]) -> None:
    excluded = NOBODY.clone()
    excluded[list(out)] = True
    ids = participants(per_round=k).draw(round, excluded).tolist()
    assert ids == sorted(set(ids)) and not out & set(ids)
    assert len(ids) == min(k, 40 - len(out))


@given(
    st.integers(1, 40),
    st.sets(st.integers(0, 44), max_size=40),
    st.sets(st.integers(0, 44)),
    st.sampled_from(["uniform", "size"]),
)
def test_who_is_not_drawn_makes_no_difference_by_being_excluded(
    k: int, out: set[int], more: set[int], sampling: str
) -> None:
    """The server keeps the draw of the next round unless somebody in it has been excluded."""
    settings = Participation(per_round=k, sampling=sampling)  # type: ignore[arg-type]
    p = Participants(settings, torch.arange(40.0) + 1, Stream(1), added=5)
    excluded = torch.zeros(45, dtype=torch.bool)
    excluded[list(out)] = True
    before = p.draw(7, excluded)
    excluded[list(more - set(before.tolist()))] = True
    assert torch.equal(p.draw(7, excluded), before)


@pytest.mark.parametrize(
    ("k", "sampling", "out", "drawn"),
    [
        (8, "uniform", range(0), [11, 15, 16, 17, 19, 20, 31, 37, 43, 49, 51, 15, 19, 51]),
        (8, "size", range(5, 20), [29, 31, 32, 33, 34, 36, 37, 39, 43, 49, 51, 32, 39, 51]),
        (4, "size", range(1, 37), [0, 37, 38, 39, 49, 51, 39, 51]),
        (4, "uniform", range(38), [38, 39, 49, 51, 39, 51]),
    ],
)
def test_draws_are_those_that_results_were_measured_with(k: int, sampling: str, out: range, drawn: list[int]) -> None:
    settings = Participation(per_round=k, sampling=sampling, dropout=0.5)  # type: ignore[arg-type]
    p = Participants(settings, torch.arange(40) ** 3, Stream(1), added=15)
    excluded = torch.zeros(55, dtype=torch.bool)
    excluded[[*out, 41, 44]] = True
    ids = p.draw(7, excluded)
    assert [*ids.tolist(), *p.answering(7, ids).tolist()] == drawn


def test_everyone_by_default() -> None:
    assert participants().draw(0, NOBODY).tolist() == list(range(40))


def test_uniform_draws_are_uniform_and_size_draws_follow_the_sizes() -> None:
    sizes = torch.arange(40.0)
    uniform, by_size = torch.zeros(40), torch.zeros(40)
    alike, sized = participants(per_round=1), participants(sizes, per_round=1, sampling="size")
    for r in range(4000):
        uniform[alike.draw(r, NOBODY)] += 1
        by_size[sized.draw(r, NOBODY)] += 1
    assert float((uniform / 4000 - 1 / 40).abs().max()) < 0.01
    assert float((by_size / 4000 - sizes / sizes.sum()).abs().max()) < 0.012


def test_drawing_a_few_of_a_million_looks_at_few() -> None:
    p = Participants(Participation(per_round=5), torch.ones(1_000_000), Stream(1))
    assert len(p.draw(3, torch.zeros(1_000_000, dtype=torch.bool))) == 5


def test_dropouts_happen_at_the_given_rate_and_are_the_clients_own() -> None:
    p = participants(dropout=0.3)
    ids = torch.arange(40)
    rate = sum(len(p.answering(r, ids)) for r in range(500)) / (500 * 40)
    assert rate == pytest.approx(0.7, abs=0.01)
    some = p.answering(7, ids)
    assert torch.equal(p.answering(7, ids[5:20]), some[(some >= 5) & (some < 20)])


def test_a_trace_says_who_can_be_drawn(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("client,from,to\n3,0,9\n5,4,6\n3,12,12\n")
    p = participants(per_round=2, trace=str(trace))
    assert [p.draw(r, NOBODY).tolist() for r in (0, 5, 9, 11, 12)] == [[3], [3, 5], [3], [], [3]]


@pytest.mark.parametrize("text", ["", "client,from\n1,2\n", "client,from,to\na,b,c\n", "client,from,to\n99,0,1\n"])
def test_a_bad_trace_is_named(tmp_path: Path, text: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    with pytest.raises(EquipoiseError, match=r"trace\.csv"):
        participants(trace=str(trace))


def test_more_per_round_than_clients_is_an_error_that_names_both() -> None:
    with pytest.raises(EquipoiseError, match=r"41.*40"):
        participants(per_round=41)
