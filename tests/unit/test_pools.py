"""Max pools of a recorded step, replaced: the same numbers, most of them worked out at the small size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.func import grad, vmap
from torch.nn import functional as F

from equipoise.engine import convolutions, pools
from equipoise.engine.rewrite import aten, hasten, shape_of, simplify
from equipoise.engine.settings import Run, Train
from equipoise.engine.tape import taken_down
from equipoise.methods import fedavg
from equipoise.models import build
from equipoise.streams import Stream
from tests.small import federation, relative, simulation
from tests.unit import test_convolutions

CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if CUDA else []
POOL, BACKWARD = aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default
DERIVATIVES = (aten.threshold_backward.default, aten.tanh_backward.default)


def within(places: Tensor, width: int, size: Sequence[int]) -> Tensor:
    """Where in its window each maximum is, of where in its image torch says."""
    return (places // width % size[0] * size[1] + places % width % size[1]).to(torch.uint8)


def pool(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    y, places = F.max_pool2d(x, tuple(size), return_indices=True)
    return y, within(places, x.shape[-1], size)


def spread(g: Tensor, which: Tensor, shape: Sequence[int], size: Sequence[int]) -> Tensor:
    full = torch.zeros(tuple(shape))
    for q in range(math.prod(size)):
        part = full[..., q // size[1] :: size[0], q % size[1] :: size[1]][..., : g.shape[-2], : g.shape[-1]]
        part.copy_(torch.where(which == q, g, 0.0))
    return full


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with such kernels, which are torch's operations."""
    monkeypatch.setattr(pools, "pool", pool)
    monkeypatch.setattr(pools, "spread", spread)
    monkeypatch.setattr(pools, "_OURS", (pool, spread))
    monkeypatch.setattr(pools, "why_not", lambda device: None)


Step = Callable[..., list[Tensor]]


def played(step: Step, inputs: Sequence[Tensor]) -> tuple[Any, list[tuple[Any, tuple[int, ...] | None]]]:
    """The step as it is played back, and what is in it, each with the shape of what it takes first."""
    with torch.no_grad():
        module: Any = taken_down(step, [t.clone() for t in inputs])
    simplify(module.graph, torch.device("cpu"))
    module, why = pools.apart(module, torch.device("cpu"))
    assert why is None
    module.graph.lint()
    found = [(n.target, shape_of(n.args[0]) if n.args else None) for n in module.graph.nodes]
    hasten(module.graph)
    module.recompile()
    return module, found


def agree(module: Any, step: Step, inputs: Sequence[Tensor], near: bool = False) -> None:
    """On inputs that it was recorded with and on others; to the bit, unless sums are of numbers with many digits."""
    for by in (1.0, -0.5):
        mine, right = ([t.clone() * by for t in inputs] for _ in range(2))
        for a, b in zip(module(*mine), step(*right), strict=True):
            if near:
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
            else:
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def count(found: list[tuple[Any, tuple[int, ...] | None]], *targets: Any) -> int:
    return sum(target in targets for target, _ in found)


def size_of(found: list[tuple[Any, tuple[int, ...] | None]], *targets: Any) -> list[int]:
    """How many numbers each of these takes."""
    return [math.prod(shape or ()) for target, shape in found if target in targets]


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Few values, so that many are equal."""
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=g).to(dtype) / 2


def gradients(layer: Callable[[Tensor], Tensor], *shape: int) -> tuple[Step, list[Tensor]]:
    """By inputs and a bias, for each of three clients with three samples."""

    def loss(x: Tensor, b: Tensor) -> Tensor:
        y = layer(x + b)
        return ((y * y).sin() * torch.arange(1, y.numel() + 1).view(y.shape) / y.numel()).sum()

    planes, *sides = shape
    x, b = drawn(3, 3, planes, *sides), drawn(3, planes, *[1] * len(sides))
    return lambda x, b: list(vmap(grad(loss, (0, 1)))(x, b)), [x, b]


def _elsewhere(x: Tensor) -> Tensor:
    r = x.relu()
    return torch.cat([F.max_pool2d(r, 2).flatten(), r.cos().flatten()])


def _skipped(x: Tensor) -> Tensor:
    return F.max_pool2d(x.relu() + x.tanh(), 2)


BOTH, LINE = (2, 6, 8), (4, 9)
# the layer, the size of its inputs, and how many derivatives of ReLU or tanh, and sums, are left at full size
SMALL: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], int, int]] = {
    "relu": (lambda x: F.max_pool2d(x.relu(), 2), BOTH, 0, 0),
    "tanh": (lambda x: F.max_pool2d(x.tanh(), 2), BOTH, 0, 0),
    "nothing": (lambda x: F.max_pool2d(x, 2), BOTH, 0, 0),
    "relu behind": (lambda x: F.max_pool2d(x, 2).relu(), BOTH, 0, 0),
    "no multiple": (lambda x: F.max_pool2d(x.relu(), 3), (2, 8, 7), 0, 0),
    "no multiple of two": (lambda x: F.max_pool2d(x.relu(), 2), (2, 7, 9), 0, 0),
    "all of an image": (lambda x: F.max_pool2d(x.relu(), (6, 8)), BOTH, 0, 0),
    "not square": (lambda x: F.max_pool2d(x.relu(), (3, 2), (3, 2)), BOTH, 0, 0),
    "line": (lambda x: F.max_pool1d(x.relu(), 2), LINE, 0, 0),
    "flat before": (lambda x: F.max_pool2d(x.flatten().relu().view(x.shape), 2), BOTH, 0, 0),
    "read elsewhere": (_elsewhere, BOTH, 1, 1),
    "two activations": (_skipped, BOTH, 2, 1),
    "told by what went in": (lambda x: F.max_pool2d(F.threshold(x, 0.4, 0.1), 2), BOTH, 1, 1),
    "in place": (lambda x: F.max_pool2d(F.relu(x * 1, inplace=True), 2), BOTH, 1, 1),
    "leaky": (lambda x: F.max_pool2d(F.leaky_relu(x), 2), BOTH, 0, 1),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_same_gradients(able: None, name: str) -> None:
    layer, shape, told, summed = SMALL[name]
    step, inputs = gradients(layer, *shape)
    module, found = played(step, inputs)
    agree(module, step, inputs, near=True)
    assert count(found, POOL, BACKWARD) == 0 and count(found, pool) == count(found, spread) == 1
    whole = inputs[0].numel()
    assert size_of(found, *DERIVATIVES).count(whole) == told
    assert size_of(found, aten.sum.dim_IntList).count(whole) == summed


def test_two_pools_one_behind_the_other(able: None) -> None:
    step, inputs = gradients(lambda x: F.max_pool2d((F.max_pool2d(x.relu(), 2) * 2).tanh(), 2), 2, 9, 8)
    module, found = played(step, inputs)
    agree(module, step, inputs, near=True)
    assert count(found, POOL, BACKWARD) == 0 and count(found, pool) == count(found, spread) == 2
    assert sorted(size_of(found, *DERIVATIVES)) == [3 * 3 * 2 * 2 * 2, 3 * 3 * 2 * 4 * 4]


def _by_place(x: Tensor) -> Tensor:
    y, places = F.max_pool2d(x.relu(), 2, return_indices=True)
    return y * (places % 3)


def _overwritten(x: Tensor) -> Tensor:
    return F.max_pool2d(x.sin(), 2).mul_(2)


STAYS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "overlapping": (lambda x: F.max_pool2d(x.relu(), 3, 2), BOTH),
    "gaps": (lambda x: F.max_pool2d(x.relu(), 2, 3), BOTH),
    "padded": (lambda x: F.max_pool2d(x.relu(), 2, padding=1), BOTH),
    "padded on one side": (lambda x: F.max_pool2d(x.relu(), 2, padding=(0, 1)), BOTH),
    "dilated": (lambda x: F.max_pool2d(x.relu(), 2, dilation=2), BOTH),
    "sticking out": (lambda x: F.max_pool2d(x.relu(), 2, ceil_mode=True), (2, 7, 7)),
    "too many places": (lambda x: F.max_pool2d(x.relu(), (17, 16)), (2, 17, 16)),
    "indices looked at": (_by_place, BOTH),
    "written to": (_overwritten, BOTH),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_does_not_fit_stays(able: None, name: str) -> None:
    layer, shape = STAYS[name]
    step, inputs = gradients(layer, *shape)
    module, found = played(step, inputs)
    agree(module, step, inputs)
    assert count(found, POOL) == 1 and count(found, pool, spread) == 0


def test_doubles_stay(able: None) -> None:
    step, inputs = gradients(SMALL["relu"][0], *BOTH)
    inputs = [t.double() for t in inputs]
    module, found = played(step, inputs)
    agree(module, step, inputs)
    assert count(found, pool) == 0


def test_only_values(able: None) -> None:
    """Nobody asks for the gradient."""
    module, found = played(lambda x: [F.max_pool2d(x, 2) * 2], [drawn(3, 4, 6, 6)])
    agree(module, lambda x: [F.max_pool2d(x, 2) * 2], [drawn(3, 4, 6, 6)])
    assert count(found, pool) == 1 and count(found, POOL, spread) == 0


HOW = [[2, 2], [2, 2], [0, 0], [1, 1], False]


def _there(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r = x.relu()
    return r, *aten.max_pool2d_with_indices(r, *HOW[:2])


def _back(g: Tensor, r: Tensor, places: Tensor) -> Tensor:
    return aten.max_pool2d_with_indices_backward(g, r, *HOW, places)  # type: ignore[no-any-return]


def _two_readers(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    full = _back(g, r, places)
    return [y, aten.threshold_backward(full, r, 0), full * 2]


def _gradient_written(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    full = _back(g, r, places)
    full[:, 0].add_(1)
    return [y, aten.threshold_backward(full, r, 0)]


def _activation_written(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    r.view(-1).sub_(0.6)
    return [y, aten.threshold_backward(_back(g, r, places), r, 0)]


def _copy_pooled(x: Tensor, g: Tensor) -> list[Tensor]:
    """What was pooled is not what the derivative is told by any more."""
    r = x.relu()
    copy = r.clone()
    copy.view(-1).mul_(-1)
    y, places = aten.max_pool2d_with_indices(copy, *HOW[:2])
    return [y, aten.threshold_backward(_back(g, copy, places), r, 0)]


def _copy_told(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    copy = r.clone()
    copy.view(-1).sub_(0.6)
    return [y, aten.threshold_backward(_back(g, r, places), copy, 0)]


def _sum_written(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    total = _back(g, r, places).sum([0, 2, 3])
    total.view(-1).mul_(2)
    return [y, total]


def _result_written(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    found = aten.threshold_backward(_back(g, r, places), r, 0)
    before = found.sum([0, 2, 3])
    found.add_(1)
    return [y, before, found, found.sum([0, 2, 3])]


def _places_kept(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    return [y, places, aten.threshold_backward(_back(g, r, places), r, 0)]


def _places_written(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    places.fill_(3)
    return [y, _back(g, r, places)]


def _other_shapes(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    full = _back(g, r.view(-1).view(r.shape), places.view(-1, 4).view(places.shape))
    return [y, aten.threshold_backward(full.view(-1), r.clone().view(-1), 0)]


def _copied(x: Tensor, g: Tensor) -> list[Tensor]:
    r = x.transpose(0, 1).relu()
    y, places = aten.max_pool2d_with_indices(r.contiguous(), *HOW[:2])
    return [y, aten.threshold_backward(_back(g.transpose(0, 1).contiguous(), r, places), r, 0)]


def _given_written(x: Tensor, g: Tensor) -> list[Tensor]:
    """The sum was of the gradient as it was."""
    r, y, places = _there(x)
    full, g = _back(h := g * 1, r, places), g
    h.mul_(3)
    return [y, full * 1, full.sum([0, 2, 3]), h]


def _sums(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    full = _back(g, r, places)
    return [y, *(full.sum(dims) for dims in ([0, 1], [2], [3], [0, 3], [1, 2])), full.view(6, -1).sum(1)]


def _whole_sums(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    full = _back(g, r, places)
    wide = full.view(3, 1, 2, 6, 8)
    return [y, full.sum([2, 3]), full.sum([-1, 0, -2], True), wide.sum([]), wide.sum([1, 3, 4], dtype=torch.float64)]


def _two_backwards(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    return [y, _back(g, r, places), aten.threshold_backward(_back(g.cos(), r, places), r, 0)]


def _one_image(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x[0])
    return [y, aten.threshold_backward(_back(g[0], r, places), r, 0)]


def _channels_last(x: Tensor, g: Tensor) -> list[Tensor]:
    """Where it lies shows."""
    r, y, places = _there(x.to(memory_format=torch.channels_last))
    z = y * 2
    z.permute(0, 2, 3, 1).view(-1).add_(torch.arange(72))
    return [z, _back(g, r, places)]


def _by_strides(x: Tensor, g: Tensor) -> list[Tensor]:
    r, y, places = _there(x)
    return [y.as_strided((4,), (1,)).clone(), _back(g, r, places)]


def _another_window(x: Tensor, g: Tensor) -> list[Tensor]:
    """Indices of one pool, for the gradient of another."""
    r, y, places = _there(x[:, :, :5])
    return [y, aten.max_pool2d_with_indices_backward(g[:, :, :2], r, [3, 2], *HOW[1:], places)]


def _one_number_for_both(x: Tensor, g: Tensor) -> list[Tensor]:
    y, places = aten.max_pool2d_with_indices(x, [2], [2], [0], [1])
    return [y, aten.max_pool2d_with_indices_backward(g, x, [2], [], [0], [1], False, places)]


# the step; how many pools are replaced, and how many derivatives and sums are taken at full size
BY_HAND: dict[str, tuple[Step, int, int, int]] = {
    "two readers": (_two_readers, 1, 1, 0),
    "gradient written": (_gradient_written, 0, 1, 0),
    "activation written": (_activation_written, 1, 1, 0),
    "copy pooled": (_copy_pooled, 1, 1, 0),
    "copy told": (_copy_told, 1, 1, 0),
    "sum written": (_sum_written, 1, 0, 0),
    "result written": (_result_written, 1, 1, 2),
    "places kept": (_places_kept, 0, 1, 0),
    "places written": (_places_written, 0, 0, 0),
    "other shapes": (_other_shapes, 1, 0, 0),
    "copied": (_copied, 1, 0, 0),
    "given written": (_given_written, 1, 0, 0),
    "parts of sums": (_sums, 1, 0, 6),
    "whole sums": (_whole_sums, 1, 0, 0),
    "two backwards": (_two_backwards, 1, 0, 0),
    "one image": (_one_image, 1, 0, 0),
    "channels last": (_channels_last, 0, 0, 0),
    "by strides": (_by_strides, 0, 0, 0),
    "another window": (_another_window, 0, 0, 0),
    "one number for both": (_one_number_for_both, 1, 0, 0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_steps_that_do_awkward_things_with_a_pool(able: None, name: str) -> None:
    step, pooled, told, summed = BY_HAND[name]
    inputs = [drawn(3, 2, 6, 8), drawn(3, 2, 3, 4)]
    module, found = played(step, inputs)
    agree(module, step, inputs)
    whole = inputs[0].numel()
    assert count(found, pool) == pooled and count(found, POOL) == 1 - pooled
    assert size_of(found, *DERIVATIVES).count(whole) == told
    assert size_of(found, aten.sum.dim_IntList).count(whole) == summed


def test_nobody_reads_what_would_be_spread(able: None) -> None:
    def step(x: Tensor, g: Tensor) -> list[Tensor]:
        r, y, places = _there(x)
        return [y, aten.threshold_backward(_back(g, r, places), r, 0).sum([0, 2, 3])]

    inputs = [drawn(3, 2, 6, 8), drawn(3, 2, 3, 4)]
    module, found = played(step, inputs)
    agree(module, step, inputs, near=True)
    assert count(found, pool) == 1 and count(found, spread) == 0


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf, 0.0])
def test_numbers_that_are_none(able: None, odd: float) -> None:
    def step(x: Tensor, g: Tensor) -> list[Tensor]:
        r, y, places = _there(x)
        return [y, aten.threshold_backward(_back(g, r, places), r, 0)]

    x, g = drawn(3, 2, 6, 8), drawn(3, 2, 3, 4)
    x[0], x[1, :, ::2], x[2, 0, 0, 1], g[2, 1, 0] = odd, odd, odd, odd
    module, found = played(step, [x, g])
    agree(module, step, [x, g])
    assert count(found, pool) == 1 and size_of(found, *DERIVATIVES) == [g.numel()]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_whole_rounds(able: None, activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With convolutions replaced as well, as on a GPU."""
    ours = test_convolutions.forward, test_convolutions.of_inputs, test_convolutions.of_filters
    for function in ours:
        monkeypatch.setattr(convolutions, function.__name__, function)
    monkeypatch.setattr(convolutions, "_OURS", ours)
    monkeypatch.setattr(convolutions, "why_not", lambda device: None)
    apart, graphs = pools.apart, []

    def seen(module: Any, device: torch.device) -> tuple[Any, str | None]:
        found = apart(module, device)
        graphs.append(found[0].graph)
        return found

    monkeypatch.setattr(pools, "apart", seen)
    fed, moved = federation((20, 33, 16), shape=(1, 9, 8), classes=5), []
    for dtype, replay in (("float64", "off"), ("float32", "on")):
        how = {"channels": (3, 4), "kernel": 3, "hidden": (6,), "activation": activation}
        run = Run(executor="vmap", replay=replay, dtype=dtype, device="cpu")  # type: ignore[arg-type]
        net = build("cnn", (1, 9, 8), 5, Stream(1), **how)
        sim = simulation(fedavg(), fed, model=net, train=Train(batch=8, lr=0.05), run=run)
        for _ in range(2):
            sim.step()
        moved.append((sim.server.w - sim.simulator.w0).double())
        assert sim.remarks == []
    assert relative(moved[1], moved[0]) < 1e-5
    found = [(n.target, shape_of(n.args[0]) if n.args else None) for n in graphs[-1].nodes]
    assert count(found, pool) == count(found, spread) == 2 and count(found, POOL, BACKWARD) == 0
    assert count(found, test_convolutions.forward) == 2 and count(found, aten.clone.default) == 0
    assert not [shape for target, shape in found if target in DERIVATIVES and len(shape or ()) == 5]


def test_kernels_that_cannot_be_made_leave_everything_as_it_was(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Tensor:
        raise MemoryError("no room")

    monkeypatch.setattr(pools, "spread", broken)
    monkeypatch.setattr(pools, "_OURS", (pool, broken))
    module = taken_down(*gradients(SMALL["relu"][0], *BOTH))
    simplify(module.graph, torch.device("cpu"))
    assert pools.apart(module, torch.device("cpu")) == (module, "MemoryError: no room")


def test_other_devices_and_graphs_without_pools_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    module = taken_down(*gradients(SMALL["relu"][0], *BOTH))
    simplify(module.graph, torch.device("cpu"))
    assert pools.apart(module, torch.device("cpu")) == (module, None)
    monkeypatch.setattr(pools, "why_not", lambda device: "none here")
    assert pools.apart(module, torch.device("cuda")) == (module, "none here")
    monkeypatch.setattr(pools, "why_not", lambda device: pytest.fail("asked"))
    graph = fx.Graph()
    graph.output(graph.call_function(aten.relu.default, (graph.placeholder("x"),)))
    pools.apart(fx.GraphModule(nn.Module(), graph), torch.device("cuda"))


# the kernels themselves: on a GPU as they are, elsewhere interpreted


@pytest.fixture(scope="module")
def kernels() -> Any:
    pytest.importorskip("triton")
    from equipoise.engine import pool_kernels

    return pool_kernels


def as_torch(kernels: Any, x: Tensor, g: Tensor, size: tuple[int, int]) -> None:
    """To the bit: values, places, and the gradient."""
    x, g = (t.to("cuda" if CUDA else "cpu") for t in (x, g))
    y, places = F.max_pool2d(x.contiguous(), size, return_indices=True)
    found, which = kernels.pool(x, size)
    assert torch.equal(found.view(torch.int32), y.view(torch.int32))
    assert which.dtype is torch.uint8 and torch.equal(which, within(places, x.shape[-1], size))
    full = kernels.spread(g, which, x.shape, size)
    how = (list(size), list(size), [0, 0], [1, 1], False)
    right = aten.max_pool2d_with_indices_backward(g.contiguous(), x.contiguous(), *how, places)
    torch.testing.assert_close(full, right, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(full, F.max_unpool2d(g, places, size, output_size=x.shape[-2:]), equal_nan=True)


ODD = [-math.inf, math.inf, math.nan, -0.0, 0.0, 1.0, -1.0, 2.0]


@given(st.data())
def test_kernels_to_the_bit(kernels: Any, data: st.DataObject) -> None:
    """Values from a few, so that there are ties, and NaN more than once in a window."""
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    size = data.draw(st.integers(1, height)), data.draw(st.sampled_from([1, 2, 3, width]).filter(lambda n: n <= width))
    planes, seed = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 1 << 20))
    values = torch.tensor(ODD)[: data.draw(st.integers(1, len(ODD)))]
    drawing = torch.Generator().manual_seed(seed)
    x = values[torch.randint(len(values), (planes, 1, height, width), generator=drawing)]
    as_torch(kernels, x, torch.randn(planes, 1, height // size[0], width // size[1], generator=drawing), size)


# planes, height, width, size: more than one block of windows, in pairs and not, and windows with very many places
CASES = [(13, 14, 14, (2, 2)), (70, 9, 9, (2, 2)), (40, 9, 8, (2, 2)), (40, 8, 9, (2, 2)), (9, 20, 20, (3, 3))]
CASES += [(5, 1, 301, (1, 2)), (7, 1, 302, (1, 2)), (3, 33, 34, (16, 16)), (2, 40, 10, (9, 2)), (1, 33, 33, (1, 1))]


@pytest.mark.parametrize(("planes", "height", "width", "size"), CASES)
def test_kernels_of_many_blocks(kernels: Any, planes: int, height: int, width: int, size: tuple[int, int]) -> None:
    """Also of what does not lie in one piece."""
    x, g = torch.randn(2, planes, height, width), torch.randn(2, planes, height // size[0], width // size[1])
    as_torch(kernels, x, g, size)
    turned, g_turned = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in (x, g))
    as_torch(kernels, turned, g_turned, size)
    as_torch(kernels, x[0], g[0], size)


@pytest.mark.parametrize("value", ODD)
def test_the_same_place_as_torch_among_equals(kernels: Any, value: float) -> None:
    for size in ((2, 2), (3, 3), (1, 5)):
        x = torch.full((2, 3, 6, 10), value)
        as_torch(kernels, x, torch.randn(2, 3, 6 // size[0], 10 // size[1]), size)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("width", [2, 3])
def test_more_numbers_than_32_bits_can_count(kernels: Any, width: int) -> None:
    planes = (1 << 31) // (2 * width) + 300
    if torch.cuda.mem_get_info()[0] < 40 * planes * width:
        pytest.skip("needs more memory")
    x = torch.zeros(planes, 1, 2, width, device="cuda")
    x[-1, 0, 1, 1] = x[0, 0, 0, 1] = 5.0
    y, which = kernels.pool(x, (2, 2))
    assert y.sum() == 10 and y[-1] == 5 and which[-1] == 3 and which[0] == 1 and which.sum(dtype=torch.int64) == 4
    assert torch.equal(kernels.spread(y, which, x.shape, (2, 2)), x)
