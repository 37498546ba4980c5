"""A recorded step is the step, whatever is taken out of it, joined, written over or worked out ahead."""

import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from equipoise.engine import tape
from equipoise.engine.record import Recorded, Unrecordable, record
from equipoise.engine.settings import Run
from equipoise.errors import EquipoiseError
from tests.small import simulation

K, D = 3, 12
Step = Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]


def inputs() -> list[Tensor]:
    """w and x, which move, and h, which holds."""
    g = torch.Generator().manual_seed(3)
    return [torch.randn(s, generator=g, dtype=torch.float64) for s in ((K, D), (K, 5, 4), (K, 5))]


def made(step: Step) -> Recorded:
    return record(step, inputs(), [False, False, True])


def played(recorded: Recorded, w: Tensor, x: Tensor, h: Tensor) -> Sequence[Tensor]:
    return recorded.step(w, x, *recorded.ahead(h))


def operations(run: object) -> list[str]:
    graph = run.__self__.graph  # type: ignore[attr-defined]
    return [str(n.target) for n in graph.nodes if n.op in ("call_function", "call_method")]


def weights(w: Tensor) -> Tensor:
    return w.view(K, 4, 3)


STEPS: dict[str, Step] = {
    "a product plus another": lambda w, x, h: [w * 2, x @ weights(w) + h[..., None]],
    "twice the same product": lambda w, x, h: [w * 2, (p := x @ weights(w)) + p],
    "a product that is read again": lambda w, x, h: [w * 2, (p := x @ weights(w)) + h[..., None], p * 2],
    "relu over a product": lambda w, x, h: [w * 2, (x @ weights(w)).relu()],
    "relu over what is read again": lambda w, x, h: [w * 2, (p := x @ weights(w)).relu(), p],
    "relu over an input": lambda w, x, h: [w * 2, x.relu()],
    "relu over what came ahead": lambda w, x, h: [w * 2, (2 * h).relu() + x[..., 0], h * 3],
    "sums": lambda w, x, h: [w * 2, x.sum(1, keepdim=True).view(K, 4), x.sum((0, 2), keepdim=True).view(5)],
    "a sum that is read again": lambda w, x, h: [w * 2, (s := x.sum(1, keepdim=True)).view(K, 4), s],
    "views of views": lambda w, x, h: [w * 2, x.view(K, 20).view(K, 2, 10).view(60)],
    "arguments in an order of their own": lambda w, x, h: [w * 2, torch.where(x > 0, x, h[..., None])],
    "names that tensors have of their own": lambda w, x, h: [w * 2, *x.split(2, 2), torch.linalg.vector_norm(x, dim=2)],
    "several answers": lambda w, x, h: [w * 2, *x.max(1)[:1], x.std(1), *x.sort(2)],
    "looking things up": lambda w, x, h: [w * 2, x[torch.tensor([2, 0])], x[torch.arange(K), torch.arange(K)]],
    "other numbers": lambda w, x, h: [w * 2, (x > 0).to(x.dtype), x.pow(2), 1 - x, x.clamp(min=0.1), 2 / x.abs()],
    "putting together": lambda w, x, h: [torch.cat([w[:, :6], w[:, 6:] * 2], 1), torch.stack([x, x + 1])],
    "nothing but what came ahead": lambda w, x, h: [w * 2, h, h.softmax(1)],
    "softmax": lambda w, x, h: [w * 2, torch.log_softmax(x, 2), torch.softmax(h, 1)],
}


@pytest.mark.parametrize("name", STEPS)
def test_a_recorded_step_is_the_step_and_changes_nothing_that_it_is_given(name: str) -> None:
    step, recorded = STEPS[name], made(STEPS[name])
    given = [t + 1 for t in inputs()]  # not what it was recorded with
    for _ in range(2):
        expected = step(*(t.clone() for t in given))
        after = [t.clone() for t in given]
        found = played(recorded, *after)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
        assert all(torch.equal(a, b) for a, b in zip(after, given, strict=True))


def test_what_follows_from_inputs_that_hold_is_worked_out_ahead_and_nothing_else_is() -> None:
    recorded = made(lambda w, x, h: [w * 2, h.exp().cos()[..., None] + x.sin()])
    ahead, late = operations(recorded.ahead), operations(recorded.step)
    assert {"exp", "cos_"} <= set(ahead) and not {"sin", "mul"} & set(ahead)
    assert {"sin", "mul"} <= set(late) and not {"exp", "cos_"} & set(late)


def collects(w: Tensor, x: Tensor, h: Tensor) -> Sequence[Tensor]:
    total = torch.zeros(K, 5, dtype=w.dtype) + h
    total[:, 1:].add_(x[..., 0][:, 1:])
    return [w * 2, total]


def test_what_a_step_writes_to_is_made_anew_in_every_step() -> None:
    recorded, (w, x, h) = made(collects), inputs()
    known = recorded.ahead(h)
    for _ in range(3):
        assert torch.equal(recorded.step(w, x, *known)[1], collects(w, x, h)[1])


def test_chance_is_not_worked_out_ahead() -> None:
    recorded, (w, x, h) = made(lambda w, x, h: [w * 2, torch.rand_like(h)]), inputs()
    known = recorded.ahead(h)
    assert not torch.equal(recorded.step(w, x, *known)[1], recorded.step(w, x, *known)[1])


def changes_its_mind(w: Tensor, x: Tensor, h: Tensor) -> Sequence[Tensor]:
    factor = weights(w) * 1
    product = x @ factor
    factor.mul_(2)
    return [w * 2, product + h[..., None], factor]


def test_a_product_is_not_put_off_until_its_factors_have_changed() -> None:
    for found, expected in zip(played(made(changes_its_mind), *inputs()), changes_its_mind(*inputs()), strict=True):
        torch.testing.assert_close(found, expected)


def descends(w: Tensor, x: Tensor, lr: Tensor) -> Sequence[Tensor]:
    """A gradient put together from a product and something else, as the engine does, and a step along it."""
    grad = torch.empty_like(w)
    grad[:, 0:8].view(K, 4, 2).copy_(x.mT @ (x @ w[:, 0:8].view(K, 4, 2)))
    grad[:, 8:D].copy_(w[:, 8:D] * x[:, 0, :1])
    return [torch.addcmul(w, grad, lr, value=-1)]


def test_a_descent_writes_straight_into_w_with_the_step_size_of_the_day() -> None:
    w, x, _ = inputs()
    recorded = record(descends, [w, x, torch.tensor(0.1, dtype=torch.float64)], [False, False, True])
    assert recorded.apart is not None and recorded.apart.places == (slice(0, 8), slice(8, D))
    assert sum("baddbmm_" in o for o in operations(recorded.step)) == 1
    for rate in (0.1, 0.7):
        lr, mine = torch.tensor(rate, dtype=torch.float64), w.clone()
        (end,) = played(recorded, mine, x, lr)
        assert end is mine
        torch.testing.assert_close(end, descends(w, x, lr)[0], rtol=1e-13, atol=1e-13)


def gradient(rows: Tensor, x: Tensor, into: Tensor, at: int = 8) -> None:
    """A gradient by rows [k, D] of x [k, 5, 4], put together in place."""
    into[:, 0:8].view(-1, 4, 2).copy_(x.mT @ (x @ rows[:, 0:8].view(-1, 4, 2)))
    into[:, at:D].copy_((rows[:, 8:D] * x[:, 0, :1])[:, at - 8 :] if at >= 8 else rows[:, at:D])


def apart(v: Tensor, x: Tensor, at: int = 8) -> Tensor:
    """Of several models of each client [K, C, D], one model after the other, as clients one by one do."""
    grad = torch.empty_like(v)
    for model, place in zip(v.unbind(1), grad.unbind(1), strict=True):
        gradient(model, x, place, at)
    return grad


def together(v: Tensor, x: Tensor) -> Tensor:
    """All at once, as rows do."""
    grad = torch.empty_like(v.flatten(0, 1))
    gradient(v.flatten(0, 1), x.repeat_interleave(v.shape[1], 0), grad)
    return grad.view(v.shape)


def one(v: Tensor, x: Tensor) -> Tensor:
    gradient(v, x, grad := torch.empty_like(v))
    return grad


def whole(v: Tensor) -> Tensor:
    """Of a model of one tensor, without a slice."""
    grad = torch.empty_like(v)
    grad.view(K, 4, 3).copy_(v.view(K, 4, 3).sin())
    return grad


def pulled(v: Tensor, w: Tensor) -> Tensor:
    return torch.lerp(v, w if v.dim() == 2 else w[:, None], 0.25)


Pulls = Callable[[Tensor, Tensor, Tensor, Tensor], Sequence[Tensor]]
OWN: dict[str, Pulls] = {
    "a model": lambda w, v, x, lr: [w * 2, torch.addcmul(pulled(v[:, 0], w), one(v[:, 0], x), lr, value=-1)],
    "several, one by one": lambda w, v, x, lr: [w * 2, torch.addcmul(pulled(v, w), apart(v, x), lr, value=-1)],
    "several at once": lambda w, v, x, lr: [w * 2, torch.addcmul(pulled(v, w), together(v, x), lr, value=-1)],
}
LEFT: dict[str, Pulls] = {
    "the base is read again": lambda w, v, x, lr: [
        *(w * 2, torch.addcmul(base := pulled(v, w), apart(v, x), lr, value=-1), base)
    ],
    "the base is an input": lambda w, v, x, lr: [w * 2, torch.addcmul(v, apart(v, x), lr, value=-1)],
    "the gradient is read again": lambda w, v, x, lr: [
        *(w * 2, torch.addcmul(pulled(v, w), grad := apart(v, x), lr, value=-1), grad)
    ],
    "the gradients at once are read again": lambda w, v, x, lr: [
        *(w * 2, torch.addcmul(pulled(v, w), grad := together(v, x), lr, value=-1), grad)
    ],
    "a part of the gradient is read again": lambda w, v, x, lr: [
        *(w * 2, torch.addcmul(pulled(v, w), grad := apart(v, x), lr, value=-1), grad.unbind(1)[0][:, :8] * 2)
    ],
    "the gradient is one piece": lambda w, v, x, lr: [
        *(w * 2, torch.addcmul(pulled(v[:, 0], w), whole(v[:, 0]), lr, value=-1))
    ],
    "places overlap": lambda w, v, x, lr: [w * 2, torch.addcmul(pulled(v, w), apart(v, x, 6), lr, value=-1)],
    "the base is spread out": lambda w, v, x, lr: [
        *(w * 2, torch.addcmul(pulled(v[:, :1], w), apart(v, x), lr, value=-1))
    ],
}


def own(step: Pulls) -> tuple[Recorded, list[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """A step of models [K, 2, D] beside w: recorded, of these inputs, what it gives and what it should."""
    w, x, _ = inputs()
    v, lr = torch.stack([w.sin(), w.cos()], 1), torch.tensor(0.1, dtype=torch.float64)
    recorded = record(step, [w, v, x, lr], [False, False, False, True])
    given = [w.clone(), v + 0.5, x, lr]
    found = recorded.step(*(t.clone() for t in given[:3]), *recorded.ahead(torch.tensor(0.7, dtype=torch.float64)))
    return recorded, given, found, step(*given[:3], torch.tensor(0.7, dtype=torch.float64))


@pytest.mark.parametrize("name", OWN)
def test_what_a_step_has_just_made_is_descended_in_place_too(name: str) -> None:
    recorded, _, found, expected = own(OWN[name])
    told = operations(recorded.step)
    assert not any("empty_like" in o or "addcmul" in o for o in told) and any("baddbmm_" in o for o in told)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", LEFT)
def test_but_not_where_that_would_show(name: str) -> None:
    recorded, given, found, expected = own(LEFT[name])
    assert any("addcmul" in o for o in operations(recorded.step)), "it is descended in place all the same"
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)
    assert torch.equal(given[0], inputs()[0])


def test_operations_are_called_by_name() -> None:
    recorded = made(lambda w, x, h: [w * 2, torch.log_softmax(x, 2)[torch.tensor([1])].relu() + h[1, :, None]])
    graph: fx.Graph = recorded.step.__self__.graph  # type: ignore[attr-defined]
    assert not [n for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


def test_a_number_that_follows_from_no_input_is_one_like_any_other() -> None:
    recorded = made(lambda w, x, h: [w * 2, x * torch.tensor(3.0).item()])
    w, x, h = inputs()
    torch.testing.assert_close(played(recorded, w, x + 1, h)[1], (x + 1) * 3)


@pytest.mark.parametrize("asks", [lambda x: float(x.sum()), lambda x: torch.equal(x, x), lambda x: bool(x.any())])
def test_a_number_that_follows_from_an_input_is_not(asks: Callable[[Tensor], float]) -> None:
    with pytest.raises(Unrecordable, match="asks for a number"):
        made(lambda w, x, h: [w * 2, x * asks(x * 2)])


def test_what_is_written_to_is_seen_by_whoever_looks_at_it_later() -> None:
    def step(w: Tensor, x: Tensor, h: Tensor) -> list[Tensor]:
        y = x * 2
        y[:, 0].add_(1)
        return [w * 2, y * 3, y]

    recorded = made(step)
    w, x, h = inputs()
    for found, expected in zip(played(recorded, w.clone(), x + 1, h), step(w, x + 1, h), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_recording_does_not_wait_for_torchs_compilers_to_be_imported() -> None:
    code = """
import sys, torch
from equipoise.engine.record import record
step = lambda w, x: [w * 2, torch.vmap(torch.mv)(w.view(2, 2, 2), x)]
record(step, [torch.ones(2, 4), torch.ones(2, 2)], [False, False])
assert not {"torch._dynamo", "torch._inductor", "sympy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def also() -> list[Tensor]:
    return [t + 1 for t in inputs()]


def test_a_tensor_that_is_lost_sight_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches the operations takes it for a constant."""
    name, step = tape._Tape.name, lambda w, x, h: [w - 0.01 * x.sum((1, 2))[:, None], x]

    def forgets_products(self: tape._Tape, tensor: Tensor, node: fx.Node, moving: bool) -> None:
        if node.target is not torch.ops.aten.mul.Tensor:
            name(self, tensor, node, moving)

    record(step, inputs(), [False, False, True], also)
    monkeypatch.setattr(tape._Tape, "name", forgets_products)
    with pytest.raises(Unrecordable, match="constant of an input"):
        record(step, inputs(), [False, False, True], also)


@pytest.mark.parametrize(
    "takes",
    [
        *(lambda x: torch.tensor(x.sum(1).tolist(), dtype=x.dtype), lambda x: torch.from_numpy(x.numpy().sum(1))),
        *(lambda x: x * float(x.numpy().max()), lambda x: x * float(np.asarray(x).max())),
        *(lambda x: (y := x * 1, y.numpy().__imul__(2))[0], lambda x: x * float(np.from_dlpack(x).max())),
    ],
    ids=["a list", "an array", "a number", "asarray", "written to", "dlpack"],
)
def test_numbers_that_leave_torch_are_noticed(takes: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(Unrecordable, match=r"out of torch|something else"):
        record(lambda w, x, h: [w * 2, takes(x)], inputs(), [False, False, True], also)


def test_operations_that_write_and_give_nothing_back_are_written_down() -> None:
    def step(w: Tensor, x: Tensor, h: Tensor) -> list[Tensor]:
        y = x * 1
        torch._foreach_mul_([y], [0.5])
        torch._foreach_add_([y, y], [0.25, 0.5])
        return [w * 2, y]

    recorded, (w, x, h) = made(step), inputs()
    assert torch.equal(played(recorded, w, x + 1, h)[1], step(w, x + 1, h)[1])


def test_what_is_written_elsewhere_is_written_there() -> None:
    def step(w: Tensor, x: Tensor, h: Tensor) -> list[Tensor]:
        y = torch.empty_like(x)
        torch.mul(x, 0.5, out=y)
        return [w * 2, y]

    recorded, (w, x, h) = made(step), inputs()
    assert torch.equal(played(recorded, w, x + 1, h)[1], step(w, x + 1, h)[1])


class Strided(nn.Module):
    """Weights looked at by where they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(0.3 * torch.randn(60)), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a.as_strided((4, 6), (1, 1))), self.b)


def test_weights_looked_at_by_where_they_lie_are_those_of_one_client_at_a_time() -> None:
    torch.manual_seed(0)
    model, ends = Strided(), []
    for replay in ("on", "off"):
        sim = simulation(model=model, run=Run(dtype="float64", replay=replay))  # type: ignore[arg-type]
        assert not sim.vectorised
        sim.step()
        ends.append(sim.server.w)
    torch.testing.assert_close(*ends)
    with pytest.raises(EquipoiseError, match="as_strided says where in memory numbers lie"):
        simulation(model=model, run=Run(executor="vmap"))
