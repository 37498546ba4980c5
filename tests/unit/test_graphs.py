"""Work that is done again and again, on a pretended GPU: a graph for every kind of it, and the same numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.engine import graphs
from equipoise.engine.graphs import Repeated
from tests.unit.test_questions import Far


class Replayed:
    """Like a graph it writes where it wrote the first time."""

    def __init__(self, work: Callable[[], None]) -> None:
        closed = (cell.cell_contents for cell in work.__closure__ or ())
        self.work, self.ready = work, next(c for c in closed if isinstance(c, graphs.Ready))
        work()
        self.places = self.ready._found

    def replay(self) -> None:
        self.work()
        for place, t in zip(self.places, self.ready._found, strict=True):
            place.copy_(t)
        self.ready._found = self.places


def scaled(kind: float, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return kind * x, y + x.sum()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    """The graphs that were made."""
    found: list[Replayed] = []

    def captured(work: Callable[[], None]) -> Replayed:
        found.append(Replayed(work))
        return found[-1]

    monkeypatch.setattr(graphs, "captured", captured)
    monkeypatch.setattr(graphs, "OFTEN", 1)
    return found


def given(n: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.arange(float(n)) + seed
    return x.as_subclass(Far), (x + 1).as_subclass(Far)


def test_what_comes_again_becomes_a_graph_of_its_kind_and_gives_the_same(made: list[Replayed]) -> None:
    work = Repeated(scaled)
    kept, untouched = [], []
    for seed, (kind, n) in enumerate([(1.0, 3), (1.0, 3), (2.0, 3), (1.0, 4), (1.0, 3), (2.0, 3), (2.0, 3)]):
        x, y = given(n, seed)
        untouched.append((x, x.clone()))
        kept.append((work(kind, x, y), scaled(kind, x, y)))
    assert len(made) == 2  # (1.0, 3) and (2.0, 3); the other came once
    assert all(torch.equal(a, b) for found, wanted in kept for a, b in zip(found, wanted, strict=True))
    assert all(torch.equal(a, b) for a, b in untouched)


def test_another_type_is_another_kind(made: list[Replayed]) -> None:
    work, x = Repeated(scaled), torch.arange(3.0)
    for t in (x, x, x.double(), x.double()):
        found = work(1.0, t.as_subclass(Far), t.as_subclass(Far))
        assert found[0].dtype == t.dtype
    assert len(made) == 2


def test_what_is_here_or_large_is_simply_done(made: list[Replayed]) -> None:
    work = Repeated(scaled, most=7 * 8)
    for _ in range(4):
        work(1.0, torch.ones(2), torch.ones(2))
        work(1.0, *given(8, 0))
    assert not made


def test_what_a_graph_cannot_hold_is_done_without_and_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def captured(work: Callable[[], None]) -> Replayed:
        tried.append(work)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "captured", captured)
    work = Repeated(scaled)
    for seed in range(graphs.OFTEN + 4):
        x, y = given(3, seed)
        assert torch.equal(work(2.0, x, y)[0], 2 * x)
    assert len(tried) == 1


def test_what_got_no_graph_leaves_room_for_others(made: list[Replayed]) -> None:
    work = Repeated(scaled, most=100)
    for n in [*range(20, 20 + 2 * graphs._KINDS), 3]:
        for seed in range(3):
            work(1.0, *given(n, seed))
    assert len(made) == 1 and not work._came


def test_work_that_is_new_each_time_is_not_kept() -> None:
    again = graphs.Again()
    for n in range(3 * graphs._WORKS):
        assert again(lambda kind, x, n=n: (x + n,), None, torch.ones(2))[0].tolist() == [1.0 + n] * 2
    assert len(again._works) == graphs._WORKS


def test_there_are_no_more_graphs_than_a_few(made: list[Replayed]) -> None:
    work = Repeated(scaled)
    for n in range(1, 30):
        work(1.0, *given(n, 0))
        work(1.0, *given(n, 0))
    assert len(made) == graphs._KINDS
