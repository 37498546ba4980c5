"""The risk of a model that clients share, worked out at fixed places, as a CUDA graph does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from equipoise.core import At, ClientRule, Method, State
from equipoise.engine import graphs
from equipoise.engine.risk import Risks, risk
from equipoise.engine.settings import Run
from equipoise.engine.view import World
from tests.small import federation, relative, simulation


class Again:
    """What a captured graph does, without a GPU."""

    def __init__(self, work: Callable[[], None], before: Callable[[], object] = lambda: None) -> None:
        self.replay = work
        work()


def worlds(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]) -> tuple[World, World]:
    monkeypatch.setattr(graphs, "captured", Again)
    sim = simulation(fed=federation(sizes)).simulator
    plain = sim.executor().world
    sim.risks = Risks({2})
    return plain, sim.executor().world


def test_it_is_the_risk_of_whichever_clients_and_whichever_model(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fixed = worlds(monkeypatch, (20, 25, 30, 21))
    assert fixed.risks is not None
    w = plain.net.initial()
    for ids, model in [([0, 1], w), ([2, 3], w), ([1, 3], 2 * w), ([0, 1], w)]:
        some, rows = torch.tensor(ids), model.expand(2, -1)
        torch.testing.assert_close(risk(fixed, some, rows, "train"), risk(plain, some, rows, "train"))
    assert fixed.risks.graph(fixed, torch.tensor([0, 1]), w, "train") is not None


@pytest.mark.parametrize("sizes", [(20, 25, 30, 21), (5, 5, 5, 300)], ids=["three of them", "very unequal"])
def test_where_a_graph_does_not_fit_there_is_none(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    _, fixed = worlds(monkeypatch, sizes)
    assert fixed.risks is not None
    ids = torch.arange(3 if max(sizes) < 100 else 2)
    assert fixed.risks.graph(fixed, ids, fixed.net.initial(), "train") is None


def test_models_of_their_own_are_not_taken_for_one_that_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fixed = worlds(monkeypatch, (20, 25, 30, 21))
    ids, rows = torch.tensor([0, 1]), torch.stack([plain.net.initial(), 2 * plain.net.initial()])
    assert torch.equal(risk(fixed, ids, rows, "train"), risk(plain, ids, rows, "train"))


class Several(ClientRule):
    """Asks about three models of every client at once, and about each by itself."""

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        models = torch.stack([w, 2 * w, 0.5 * w], 1)
        one_by_one = [at.grad(m) for m in models.unbind(1)]
        assert relative(at.grad(models), torch.stack(one_by_one, 1)) < 1e-12
        for split in ("train", "validation"):
            risks = [at.risk(m, split) for m in models.unbind(1)]
            assert relative(at.risk(models, split), torch.stack(risks, 1)) < 1e-12
        return at.descend(w, one_by_one[0]), state


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_several_models_of_every_client_are_asked_at_once(executor: str) -> None:
    run = Run(executor=executor, dtype="float64", replay="off")  # type: ignore[arg-type]
    fed = federation((20, 25, 7))
    sim = simulation(Method(client=Several()), fed, model="mlp", hidden=(6,), dropout=(0.0, 0.4), run=run)
    sim.step()
