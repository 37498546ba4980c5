"""A step that is played back is the step, however unusual: models of products of parameters, rules that write to their
own temporaries, look at w in odd ways, or make constants and shapes of numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.at import At
from equipoise.core import SGD, ClientRule, Method, State
from equipoise.engine import replay as replaying
from equipoise.engine.record import record
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Run, Train
from tests.small import federation, simulation

SIZES = (7, 25, 0, 12, 25)  # clients of 6 features, 3 classes: a linear model has 21 numbers


def after(method: Method, replay: str, executor: str, **more: Any) -> Simulation:
    run = Run(dtype="float64", executor=executor, replay=replay, device="cpu")  # type: ignore[arg-type]
    train = Train(batch=5, lr=0.1, lr_decay=0.5)
    sim = simulation(method, run=run, train=train, **{"fed": federation(SIZES), **more})
    for _ in range(2):
        sim.step()
    return sim


def compare(make: Callable[[], Method], executor: str, **more: Any) -> None:
    first, second = (after(make(), replay, executor, **more).dump() for replay in ("off", "on"))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.3)


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = parameter(6, 4), parameter(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a @ self.b)


class Adapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.a, self.b = parameter(3, 6), parameter(3, 2), parameter(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.w + self.a @ self.b)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("model", [LowRank, Adapter])
def test_models_with_products_of_parameters(model: type[nn.Module], executor: str) -> None:
    compare(Method, executor, model=model())


class Own(ClientRule):
    def __init__(self, name: str) -> None:
        self.does = RULES[name]

    def init(self, w: Tensor) -> State:
        return {"m": torch.zeros_like(w), "n": torch.ones_like(w)}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return self.does(w, state, at)


def overwrites_part_of_a_gradient(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    g = at.grad(w)
    g[:, :6] = torch.zeros_like(w[:, :6])
    return at.descend(w, g), s


def shares_a_temporary(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    h, g = at.grad(w), torch.empty_like(w)
    t = h[:, :6] * 2
    g[:, :6] = t
    t.mul_(3)
    g[:, 6:12], g[:, 12:] = t, h[:, 12:]
    return at.descend(w, g), s


def descends_along_other_parts_of_w(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    g = torch.empty_like(w)
    g[:, :6], g[:, 6:12], g[:, 12:] = w[:, 6:12], w[:, :6], w[:, 12:]
    return at.descend(w, g), s


def has_a_rate_for_every_client(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    rate = torch.as_tensor(at.lr, dtype=w.dtype) * at.size().to(w.dtype)[:, None] * 0.01
    return torch.addcmul(w, at.grad(w), rate, value=-1), s


def reads_chunks_of_w_afterwards(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    chunks = w.chunk(3, 1)
    new = at.descend(w, at.grad(w))
    return new, {**s, "m": torch.cat(chunks, 1)}


def lays_what_it_received_flat(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    return at.descend(w, at.grad(w) + 0.1 * (w.reshape(-1) - at.received.reshape(-1)).view_as(w)), s


def makes_a_tensor_of_the_step_size(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    return w - at.grad(w) * torch.tensor([at.lr], dtype=w.dtype), s


def counts_by_the_mask(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    return at.descend(w, at.grad(w, lambda seen: seen.losses[at.mask].sum()[None])), s


def sums_over_everything(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    return at.descend(w, at.grad(w)), {**s, "m": s["m"] + 0 * at.mask.to(w.dtype).sum(dim=None, keepdim=True).view(1)}


def keeps_the_model_before(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    return at.descend(w, at.grad(w)), {**s, "m": w}


def exchanges_its_states(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    return at.descend(w, at.grad(w) + 0.01 * s["m"]), {"m": s["n"], "n": s["m"]}


def returns_a_model_twice(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    new = at.descend(w, at.grad(w))
    return new, {**s, "m": new}


def returns_what_it_received(w: Tensor, s: State, at: At) -> tuple[Tensor, State]:
    return at.received, {**s, "m": at.grad(w), "n": at.received}


def by_hand(w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
    p = w.detach().requires_grad_()
    return at.descend(w, torch.autograd.grad(at.loss(p).sum(), p)[0]), state


RULES = {f.__name__: f for f in (
    overwrites_part_of_a_gradient, shares_a_temporary, descends_along_other_parts_of_w, has_a_rate_for_every_client,
    reads_chunks_of_w_afterwards, lays_what_it_received_flat, makes_a_tensor_of_the_step_size, counts_by_the_mask,
    sums_over_everything, keeps_the_model_before, exchanges_its_states, returns_a_model_twice,
    returns_what_it_received, by_hand,
)}  # fmt: skip


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("name", RULES)
def test_unusual_rules(name: str, executor: str) -> None:
    compare(lambda: Method("own", Own(name)), executor)


class Again:
    """What a captured graph does, without a GPU: to capture is to make room for what comes ahead, and not to do it."""

    def __init__(self, captured: replaying.Captured, work: Callable[[], None]) -> None:
        self.replay = work
        work()
        if work == captured._ahead:
            captured.known = [self._room(t) if isinstance(t, Tensor) else t for t in captured.known]

    @staticmethod
    def _room(t: Tensor) -> Tensor:
        return ~t if t.dtype == torch.bool else torch.full_like(t, 100)


@pytest.fixture
def in_fixed_places(monkeypatch: pytest.MonkeyPatch) -> None:
    before = replaying.Replay.__init__
    monkeypatch.setattr(replaying.Captured, "_capture", lambda self, work, trials=2: Again(self, work))
    always = lambda self, clients, batch, capture, relay=False: before(self, clients, batch, True, relay)  # noqa: E731
    monkeypatch.setattr(replaying.Replay, "__init__", always)


FIXED: dict[str, ClientRule] = {
    "usual": SGD(),
    **{name: Own(name) for name in ("keeps_the_model_before", "exchanges_its_states", "returns_a_model_twice")},
}


@pytest.mark.usefixtures("in_fixed_places")
@pytest.mark.parametrize("sizes", [SIZES, (25, 25), (9, 7, 95, 9, 50, 7)], ids=["some rest", "none rest", "in legs"])
@pytest.mark.parametrize("name", FIXED)
def test_with_everything_in_fixed_places(name: str, sizes: tuple[int, ...]) -> None:
    compare(lambda: Method("own", FIXED[name]), "vmap", fed=federation(sizes))


class Placed(nn.Module):
    """Looks its places up: what they are follows from no input, so it comes ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.last = nn.Embedding(6, 2), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x[..., None] * self.place(torch.arange(6))).flatten(-2))  # type: ignore[no-any-return]


@pytest.mark.usefixtures("in_fixed_places")
def test_what_comes_ahead_is_there_before_the_first_step() -> None:
    torch.manual_seed(0)
    compare(Method, "vmap", model=Placed())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rule_may_take_gradients_of_its_own(workers: int) -> None:
    run = Run(dtype="float64", executor="loop", workers=workers, replay="off", device="cpu")
    ours, theirs = (simulation(Method("own", rule), run=run) for rule in (Own("by_hand"), SGD()))
    ours.step()
    theirs.step()
    torch.testing.assert_close(ours.server.w, theirs.server.w)


K, D = 3, 12


def turned_after_a_factor_changed(w: Tensor, x: Tensor, h: Tensor) -> list[Tensor]:
    factor = w.view(K, 4, 3) * 1
    product = x @ factor
    factor.mul_(2)
    return [w * 2, product.mT + 0, factor]


def added_after_what_a_factor_shows_changed(w: Tensor, x: Tensor, h: Tensor) -> list[Tensor]:
    factor = w * 1
    product = x @ factor.view(K, 4, 3)
    factor.mul_(2)
    return [w * 2, product + h[..., None], factor]


def turned_and_laid_flat(w: Tensor, x: Tensor, h: Tensor) -> list[Tensor]:
    return [w * 2, (x @ w.view(K, 4, 3)).mT.permute(0, 2, 1).reshape(K, -1)]


def ones_laid_flat(w: Tensor, x: Tensor, h: Tensor) -> list[Tensor]:
    return [w * 2, torch.ones_like(x.mT).mT.reshape(K, -1) * x.reshape(K, -1)]


STEPS = (turned_after_a_factor_changed, added_after_what_a_factor_shows_changed, turned_and_laid_flat, ones_laid_flat)


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_recorded_steps(step: Callable[..., list[Tensor]]) -> None:
    g = torch.Generator().manual_seed(3)
    w, x, h = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((K, D), (K, 5, 4), (K, 5)))
    recorded = record(step, [w, x, h], [False, False, True])
    for found, expected in zip(recorded.step(w, x, *recorded.ahead(h)), step(w, x, h), strict=True):
        torch.testing.assert_close(found, expected)
