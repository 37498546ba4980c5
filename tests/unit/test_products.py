"""Products of matrices in a recorded step, replaced: the same numbers, and who may not be replaced stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.engine import precision, products, record
from equipoise.engine.descent import descend_in_place
from equipoise.engine.rewrite import aten, hasten, simplify
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Run, Train
from equipoise.engine.tape import taken_down
from equipoise.methods import ditto, fedavg
from equipoise.models import build
from equipoise.streams import Stream
from tests.small import Of, federation, relative, simulation

CPU = torch.device("cpu")
PLAIN = {aten.bmm.default, aten.baddbmm.default, aten.baddbmm_.default}


class Seen:
    """What has been put into graphs, and how the tensors lay that the stand-ins were called with."""

    def __init__(self) -> None:
        self.graphs: list[list[tuple[Any, tuple[Any, ...]]]] = []
        self.calls: list[object] = []

    @property
    def targets(self) -> list[Any]:
        return [target for graph in self.graphs for target, _ in graph]

    @property
    def endings(self) -> list[tuple[bool, bool]]:
        """Whether a product has a bias, and a ReLU."""
        return [(args[2] is not None, args[3]) for graph in self.graphs for target, args in graph if target is product]


SEEN = Seen()


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    SEEN.calls.append([(t.shape, t.stride()) for t in (a, b)])
    y = torch.stack([x @ z for x, z in zip(a, b, strict=True)])
    y = y if bias is None else y + bias
    return y.relu() if relu else y


def descend(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> Tensor:
    SEEN.calls.append([(t.shape, t.stride()) for t in (place, a, b, lr)])
    return place.sub_(lr * product(a, b))


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """A device with such kernels, which are torch's operations client by client, and whose steps are a GPU's."""
    SEEN.__init__()  # type: ignore[misc]
    put = products.put

    def watched(graph: Any, device: torch.device) -> str | None:
        why = put(graph, device)
        SEEN.graphs.append([(n.target, n.args) for n in graph.nodes])
        SEEN.calls.append("put")
        return why

    for function in (product, descend):
        monkeypatch.setattr(products, function.__name__, function)
    monkeypatch.setattr(products, "put", watched)
    monkeypatch.setattr(products, "why_not", lambda device: None)
    monkeypatch.setattr(record, "descend_in_place", lambda graph, _: descend_in_place(graph, torch.device("cuda")))
    return SEEN


def flat(function: Callable[[Any, Tensor], Tensor], **parts: Any) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Of(function, **parts))


def weights(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.3 * torch.randn(shape))


def _residual(of: Any, x: Tensor) -> Tensor:
    h = of.a(x)
    return of.head(h + of.b(h.relu()))  # type: ignore[no-any-return]


def _in_place(of: Any, x: Tensor) -> Tensor:
    return of.head(F.relu(of.b(of.a(x)), inplace=True))  # type: ignore[no-any-return]


SHAPE = (2, 3, 3)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: build("mlp", SHAPE, 5, Stream(1), hidden=(8, 6)),
    "cnn": lambda: build("cnn", SHAPE, 5, Stream(1), channels=(4,), kernel=3, hidden=(6,)),
    "no bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(18, 6, bias=False), nn.ReLU(), nn.Linear(6, 5, bias=False)
    ),
    "used twice": lambda: flat(
        lambda of, x: of.head(of.b(of.b(of.a(x)).relu()).tanh()),
        **{"a": nn.Linear(18, 6), "b": nn.Linear(6, 6), "head": nn.Linear(6, 5)},
    ),
    "a bias for two": lambda: flat(
        lambda of, x: F.linear(F.linear(x, of.a, of.c).relu(), of.b, of.c)[:, :5],
        **{"a": weights(6, 18), "b": weights(6, 6), "c": weights(6)},
    ),
    "in place": lambda: flat(_in_place, a=nn.Linear(18, 6), b=nn.Linear(6, 6), head=nn.Linear(6, 5)),
    "residual": lambda: flat(_residual, a=nn.Linear(18, 6), b=nn.Linear(6, 6), head=nn.Linear(6, 5)),
    "two matrices as one": lambda: flat(lambda of, x: x @ (of.a @ of.b), a=weights(18, 3), b=weights(3, 5)),
    "turned": lambda: flat(lambda of, x: (of.b @ (of.a @ x.T).relu()).T, a=weights(6, 18), b=weights(5, 6)),
}


def trained(name: str, dtype: str, replay: str, method: Any = None) -> tuple[Simulation, Tensor]:
    torch.manual_seed(0)
    run = Run(executor="vmap", replay=replay, dtype=dtype, device="cpu")  # type: ignore[arg-type]
    fed = federation((20, 33, 16), shape=SHAPE, classes=5)
    sim = simulation(method or fedavg(), fed, model=MODELS[name](), train=Train(batch=8, lr=0.05), run=run)
    for _ in range(2):
        sim.step()
    return sim, (sim.server.w - sim.simulator.w0).double()


@pytest.mark.parametrize("name", MODELS)
def test_whole_steps_come_out_the_same(able: Seen, name: str) -> None:
    """They overwrite their weights: every read of them must come before that."""
    right = trained(name, "float64", "off")[1]
    sim, moved = trained(name, "float32", "on")
    assert sim.remarks == []
    assert relative(moved, right) < 1e-5
    left = [target for target in able.targets if target in PLAIN]
    assert left == ([aten.baddbmm_.default] if name == "used twice" else [])  # one gradient is added to another
    assert product in able.targets
    assert (descend in able.targets) is (
        name != "two matrices as one"
    )  # both of its gradients read what is overwritten


def test_a_method_with_a_model_for_each_client_too(able: Seen) -> None:
    right = trained("mlp", "float64", "off", ditto())[1]
    sim, moved = trained("mlp", "float32", "on", ditto())
    assert sim.remarks == [] and relative(moved, right) < 1e-5
    assert not PLAIN & {*able.targets} and product in able.targets


@pytest.mark.parametrize(
    ("name", "endings"),
    [
        ("mlp", [(True, True), (True, True), (True, False)]),
        ("no bias", [(False, True), (False, False)]),
        ("used twice", [(True, False), (True, True), (True, False), (True, False)]),
        ("residual", [(True, False), (True, False), (True, False)]),  # others look at what goes into the ReLU
        ("in place", [(True, False), (True, True)]),  # torch adds the last bias: what it is added to is written to
    ],
)
def test_bias_and_relu_are_taken_in(able: Seen, name: str, endings: list[tuple[bool, bool]]) -> None:
    trained(name, "float32", "on")
    assert able.endings[: len(endings)] == endings
    assert not any(relu or bias for bias, relu in able.endings[len(endings) :])


def test_kernels_are_tried_on_tensors_that_lie_as_those_of_a_step_do(able: Seen) -> None:
    """Weights apart from each other, not within a long row: another kernel may be needed for that."""
    trained("mlp", "float32", "on")
    ready = able.calls.index("put")
    tried, done = able.calls[:ready], able.calls[ready + 1 :]
    assert tried and done and all(lying in tried for lying in done)
    assert ((3, 8, 18), (144, 18, 1)) in [tuple(of) for call in done for of in call]  # type: ignore[attr-defined]


def test_steps_that_look_at_the_whole_model_have_them_too(able: Seen) -> None:
    """No parts then: the step takes w as it is."""
    w, x, y = torch.randn(3, 18 * 5), torch.randn(3, 4, 18), torch.randn(3, 4, 5)
    lr = torch.tensor(0.5, dtype=torch.float64)

    def step(w: Tensor, x: Tensor, y: Tensor, lr: Tensor) -> list[Tensor]:
        return [w - lr * (x.mT @ (x @ w.view(3, 18, 5) - y)).view(3, -1).sin() * w.norm()]

    made = record.record(step, [w, x, y, lr], [False, False, False, True])
    assert made.apart is None and able.targets.count(product) == 2
    found = made.step(w.clone(), x, y, *made.ahead(lr))[0]
    torch.testing.assert_close(found, step(w, x, y, lr)[0], rtol=1e-4, atol=1e-4)


def played(step: Callable[..., list[Tensor]], inputs: list[Tensor]) -> tuple[list[Tensor], list[Any]]:
    """What comes out, and the operations."""
    module: Any = taken_down(step, [t.clone() for t in inputs])
    simplify(module.graph, CPU)
    products.look(module.graph, CPU)
    whys: list[str | None] = []
    hasten(module.graph, lambda graph: whys.append(products.put(graph, CPU)))
    module.recompile()
    assert whys == [None]
    return module(*(t.clone() for t in inputs)), SEEN.targets


def numbers(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def _multiplied(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    return [torch.bmm(a, b) + c]


A, B, LR = (3, 4, 7), (3, 7, 5), ()


@pytest.mark.parametrize(
    ("shapes", "dtype", "fits"),
    [
        ((A, B, (3, 1, 5)), torch.float32, True),
        ((A, B, (3, 1, 5)), torch.float64, False),
        (((1, 4, 7), (1, 7, 5), (1, 1, 5)), torch.float32, False),
        ((A, B, (3, 4, 5)), torch.float32, False),
        ((A, B, (1, 1, 5)), torch.float32, False),
        ((A, B, (3, 4, 1)), torch.float32, False),
        ((A, B, (5,)), torch.float32, False),
        (((3, 4, 0), (3, 0, 5), (3, 1, 5)), torch.float32, False),
    ],
)
def test_which_sums_fit(able: Seen, shapes: Any, dtype: torch.dtype, fits: bool) -> None:
    inputs = numbers(*shapes, dtype=dtype)
    found, targets = played(_multiplied, inputs)
    torch.testing.assert_close(found, _multiplied(*inputs))
    assert (product in targets) is fits


def test_the_rule_is_about_the_shortest_side(able: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = numbers(A, B, (3, 1, 5))
    for bound, fits in ((3, False), (4, True)):
        able.graphs.clear()
        monkeypatch.setattr(products, "_SKINNY", bound)
        assert (product in played(_multiplied, inputs)[1]) is fits


def _down(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    return [place.baddbmm_(a * lr, b, alpha=-1)]


def _changed_between(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    scaled = a * lr
    a.add_(1)
    return [place.baddbmm_(scaled, b, alpha=-1), a]


def _rate_changed(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    scaled = a * lr
    lr.add_(1)
    return [place.baddbmm_(scaled, b, alpha=-1)]


def _looked_at_between(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    scaled = a * lr
    before = place.clone()
    return [place.baddbmm_(scaled, b, alpha=-1), before]


def _of_itself(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    return [place.baddbmm_(place[:, :, :4] * lr, b[:, :4], alpha=-1)]


def _read_twice(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    scaled = a * lr
    return [place.baddbmm_(scaled, b, alpha=-1), scaled + 1]


def _up(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    return [place.baddbmm_(a * lr, b)]


def _fading(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    return [place.baddbmm_(a * lr, b, alpha=-1, beta=0.5)]


def _by_a_number(place: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
    return [place.baddbmm_(a * 0.5, b, alpha=-1) * lr]


@pytest.mark.parametrize(
    ("step", "rate", "dtype", "fits"),
    [
        (_down, (), torch.float32, True),
        (_down, (), torch.float64, True),
        (_down, (), torch.float16, False),
        (_down, (3, 1, 1), torch.float32, False),
        (_looked_at_between, (), torch.float32, True),
        (_changed_between, (), torch.float32, False),
        (_rate_changed, (), torch.float32, False),
        (_of_itself, (), torch.float32, False),
        (_read_twice, (), torch.float32, False),
        (_up, (), torch.float32, False),
        (_fading, (), torch.float32, False),
        (_by_a_number, (), torch.float32, False),
    ],
)
def test_which_steps_down_fit(able: Seen, step: Any, rate: Any, dtype: torch.dtype, fits: bool) -> None:
    inputs = [*numbers((3, 4, 5), A, B), *numbers(rate, dtype=dtype)]
    found, targets = played(step, inputs)
    torch.testing.assert_close(found, step(*(t.clone() for t in inputs)))
    assert (descend in targets) is fits


def test_a_view_that_is_written_to_stays_a_view(able: Seen) -> None:
    """Nobody can see that `descend` writes; a copy of the place would be written instead, and be lost."""

    def step(w: Tensor, a: Tensor, b: Tensor, lr: Tensor) -> list[Tensor]:
        w.view(3, 4, 5).baddbmm_(a * lr, b, alpha=-1)
        return [w]

    inputs = [*numbers((3, 20), A, B), torch.tensor(0.5)]
    module: Any = taken_down(step, [t.clone() for t in inputs])
    products.look(module.graph, CPU)
    hasten(module.graph, lambda graph: products.put(graph, CPU) and None)
    module.recompile()
    assert descend in able.targets
    assert [n.target for n in module.graph.nodes if n.op == "call_method"] == ["view"]


def test_a_place_whose_rows_do_not_lie_in_one_piece_is_torch_s() -> None:
    place, a, b, lr = *numbers((3, 4, 5), A, B), torch.tensor(0.5, dtype=torch.float64)
    right = place - 0.5 * (a @ b)
    turned = place.mT.contiguous().mT
    assert products.descend(turned, a, b, lr) is turned
    torch.testing.assert_close(turned, right)


@pytest.mark.parametrize("reason", ["RuntimeError: none here", "MemoryError: no room"])
def test_kernels_that_cannot_be_made_leave_everything_as_it_was(
    able: Seen, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    kind, words = reason.split(": ")

    def broken(*_: object) -> Tensor:
        raise {"RuntimeError": RuntimeError, "MemoryError": MemoryError}[kind](f"{words}\nand more")

    right = trained("mlp", "float64", "off")[1]
    monkeypatch.setattr(products, "descend", broken)
    sim, moved = trained("mlp", "float32", "on")
    assert sim.remarks == [f"products of SGD have no kernels of their own: {reason}"]
    assert relative(moved, right) < 1e-5
    assert {aten.baddbmm.default, aten.baddbmm_.default} <= {*able.targets} and product not in able.targets


@pytest.mark.parametrize(("device", "remark"), [("cuda", "none here"), ("cpu", None)])
def test_why_there_are_none_is_said_of_a_gpu_only(
    monkeypatch: pytest.MonkeyPatch, device: str, remark: str | None
) -> None:
    monkeypatch.setattr(products, "why_not", lambda device: "none here")
    module: Any = taken_down(_multiplied, numbers(A, B, (3, 1, 5)))
    before = [n.target for n in module.graph.nodes]
    assert products.put(module.graph, torch.device(device)) == remark
    assert [n.target for n in module.graph.nodes] == before


def test_graphs_without_products_ask_for_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "why_not", lambda device: pytest.fail("asked"))
    module: Any = taken_down(lambda x: [x.relu()], numbers(A))
    assert products.put(module.graph, torch.device("cuda")) is None


def test_as_rough_as_torch_is_told_to_be() -> None:
    assert products._precision() == "tf32x3"
    with precision.steps_in("tf32"):
        assert products._precision() == "tf32"
