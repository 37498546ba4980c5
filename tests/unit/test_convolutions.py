"""Grouped convolutions of a recorded step, replaced: the same numbers, and nothing grouped left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from equipoise.engine import convolutions, custom, record
from equipoise.engine.rewrite import aten, hasten, simplify
from equipoise.engine.settings import Run, Train
from equipoise.engine.tape import taken_down
from equipoise.methods import fedavg
from equipoise.models import build
from equipoise.streams import Stream
from tests.small import Of, federation, relative, simulation


def forward(x: Tensor, w: Tensor, pad: Sequence[int], bias: Tensor | None = None, relu: bool = False) -> Tensor:
    plain = F.conv2d if x.dim() == 5 else F.conv1d
    y = torch.stack([plain(a, b, padding=tuple(pad)) for a, b in zip(x, w, strict=True)])
    y = y if bias is None else y + bias
    return y.relu() if relu else y


def of_inputs(g: Tensor, w: Tensor, pad: Sequence[int]) -> Tensor:
    sizes = [n - 2 * p + k - 1 for n, p, k in zip(g.shape[3:], pad, w.shape[3:], strict=True)]
    x = torch.zeros(*g.shape[:2], w.shape[2], *sizes)
    return torch.func.vjp(lambda x: forward(x, w, pad), x)[1](g)[0]  # type: ignore[no-any-return]


def of_filters(g: Tensor, x: Tensor, w: Tensor, pad: Sequence[int]) -> Tensor:
    return torch.func.vjp(lambda w: forward(x, w, pad), torch.zeros(w.shape))[1](g)[0]  # type: ignore[no-any-return]


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with such kernels, which are torch's operations client by client."""
    for function in (forward, of_inputs, of_filters):
        monkeypatch.setattr(convolutions, function.__name__, function)
    monkeypatch.setattr(convolutions, "_OURS", (forward, of_inputs, of_filters))
    monkeypatch.setattr(convolutions, "why_not", lambda device: None)


def image(kind: str, shape: tuple[int, ...], **params: object) -> tuple[nn.Module, tuple[int, ...]]:
    return build(kind, shape, 5, Stream(1), **params), shape


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(3, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().amax(-1))  # type: ignore[no-any-return]


class Shared(nn.Module):
    """One convolution twice, looked at from both sides, without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.Linear(2, 5)

    def forward(self, x: Tensor) -> Tensor:
        once = self.conv(x)
        return self.head((torch.tanh(once) + self.conv(once)).mean((2, 3)))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "relu": partial(image, "cnn", (1, 8, 8), channels=(3, 4), kernel=3, hidden=(6,)),
    "valid": partial(image, "cnn", (2, 9, 9), channels=(3, 4), kernel=(3, 2), padding="valid", hidden=()),
    "tanh": partial(image, "cnn", (1, 8, 8), channels=(3, 4), kernel=3, hidden=(6,), activation="tanh", margin=1),
    "standardised": partial(image, "resnet", (3, 8, 8), widths=(4, 6), blocks=1),
    "depthwise": lambda: (
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)),
        (2, 6, 6),
    ),
    "line": lambda: (Line(), (3, 7)),
    "shared": lambda: (Shared(), (2, 5, 5)),
}
PLAIN = (aten.convolution.default, aten.convolution_backward.default)


def gradients(name: str, clients: int = 3, batch: int = 3) -> tuple[Callable[..., list[Tensor]], list[Tensor]]:
    """[C, D] gradients of C models; as many clients as samples, so that exchanged axes would go unseen by shape."""
    torch.manual_seed(0)
    module, shape = MODELS[name]()
    named = dict(module.named_parameters())
    rows = torch.stack([torch.cat([p.detach().flatten() for p in named.values()])] * clients)
    rows, sizes = rows + 0.1 * torch.randn_like(rows), [p.numel() for p in named.values()]
    x, y = torch.randn(clients, batch, *shape), torch.randint(5, (clients, batch))

    def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = {n: t.view(p.shape) for (n, p), t in zip(named.items(), w.split(sizes), strict=True)}
        return F.cross_entropy(functional_call(module, parts, (x,)), y)

    return lambda w, x: [vmap(grad(loss))(w, x, y)], [rows, x]


def played(step: Callable[..., list[Tensor]], inputs: list[Tensor]) -> tuple[Any, list[tuple[Any, Any]]]:
    module: Any = taken_down(step, inputs)
    simplify(module.graph, torch.device("cpu"))
    module, _ = convolutions.apart(module, torch.device("cpu"))
    nodes = [(n.target, n.args) for n in module.graph.nodes]
    hasten(module.graph)
    module.recompile()
    return module, nodes


@pytest.mark.parametrize("name", MODELS)
def test_the_same_gradients_with_nothing_grouped_left(able: None, name: str) -> None:
    step, inputs = gradients(name)
    module, nodes = played(step, inputs)
    targets = [target for target, _ in nodes]
    torch.testing.assert_close(module(*inputs)[0], step(*inputs)[0], rtol=1e-4, atol=1e-6)
    other = [t + 0.1 for t in inputs]
    torch.testing.assert_close(module(*other)[0], step(*other)[0], rtol=1e-4, atol=1e-6)
    if name != "standardised":  # some of its convolutions have a stride
        assert not {*PLAIN} & {*targets}
    assert targets.count(forward) and targets.count(of_filters)


@pytest.mark.parametrize(("name", "adds"), [("relu", False), ("valid", False), ("tanh", True)])
def test_bias_and_relu_are_taken_in_and_copies_left_out(able: None, name: str, adds: bool) -> None:
    nodes = played(*gradients(name))[1]
    targets = [target for target, _ in nodes]
    assert all(len(args) == 5 and args[4] is not adds for target, args in nodes if target is forward)
    assert aten.add.Tensor not in targets and (adds or targets.count(aten.relu.default) <= 1)
    assert aten.clone.default not in targets


@pytest.mark.parametrize("what", ["float64", "one client", "stride", "no kernels"])
def test_what_does_not_fit_stays(able: None, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "no kernels":
        monkeypatch.setattr(convolutions, "why_not", lambda device: "none here")
    if what == "stride":
        monkeypatch.setitem(
            MODELS, "relu", lambda: (nn.Sequential(nn.Conv2d(1, 2, 3, 2), nn.Flatten(), nn.Linear(18, 5)), (1, 8, 8))
        )
    step, inputs = gradients("relu", clients=1 if what == "one client" else 3)
    if what == "float64":
        inputs = [t.double() for t in inputs]
    module, nodes = played(step, inputs)
    targets = [target for target, _ in nodes]
    assert forward not in targets and {*PLAIN} & {*targets}
    torch.testing.assert_close(module(*inputs)[0], step(*inputs)[0])


def test_a_whole_step_that_overwrites_its_weights(able: None) -> None:
    """Filters are read where they lie, so every read must come before the step overwrites them."""
    step, (w, x) = gradients("relu")
    lr = torch.tensor(0.5, dtype=torch.float64)

    def down(w: Tensor, x: Tensor, lr: Tensor) -> list[Tensor]:
        return [torch.addcmul(w, step(w, x)[0], lr, value=-1)]

    made = record.record(down, [w, x, lr], [False, False, True])
    found = made.step(w.clone(), x, *made.ahead(lr))[0]
    torch.testing.assert_close(found, down(w, x, lr)[0], rtol=1e-4, atol=1e-6)


def _residual(of: Any, x: Tensor) -> Tensor:
    h = of.a(x)
    return of.head(of.c((h + of.b(h.relu())).relu()).flatten(1))  # type: ignore[no-any-return]


def _part_written(of: Any, x: Tensor) -> Tensor:
    y = of.a(x)
    y[:, 0].mul_(2)
    return of.head(of.c(y.tanh()).flatten(1))  # type: ignore[no-any-return]


def _conv(planes: int, filters: int, **how: Any) -> nn.Module:
    return nn.Conv2d(planes, filters, 3, **how)


def _of(function: Callable[[Any, Tensor], Tensor], bias: bool = True) -> nn.Module:
    parts = {"a": _conv(2, 3, padding=1, bias=bias), "b": _conv(3, 3, padding=1), "c": _conv(3, 4, stride=2)}
    return Of(function, **parts, head=nn.Linear(16, 5))


def _merged(of: Any, x: Tensor) -> Tensor:
    u = of.a(x)
    return of.head(of.c(u.flatten(0, 1).tanh().view(u.shape) + u.sin()).flatten(1))  # type: ignore[no-any-return]


def _merged_behind(of: Any, x: Tensor) -> Tensor:
    u = of.a(x)
    return of.head(of.c(u + (u.reshape(-1, 5) / 3).view(u.shape)).flatten(1))  # type: ignore[no-any-return]


def _filters_written(of: Any, x: Tensor) -> Tensor:
    t = of.a.weight * 1.5
    y = F.conv2d(x, t.detach(), padding=1)
    t.mul_(3)
    return of.head(of.c((y + of.a.bias[:, None, None]).relu()).flatten(1)) + t.sum() * of.head.bias  # type: ignore[no-any-return]


def _turned(of: Any, x: Tensor) -> Tensor:
    return of.head((of.p.permute(2, 1, 0) * of.a(x)).flatten(1))  # type: ignore[no-any-return]


AWKWARD: dict[str, Callable[[], nn.Module]] = {
    "in place": lambda: _of(lambda of, x: of.head(of.c(F.relu(of.a(x), inplace=True)).flatten(1))),
    "in place, no bias": lambda: _of(lambda of, x: of.head(of.c(F.relu(of.a(x), inplace=True)).flatten(1)), bias=False),
    "a part in place": lambda: _of(_part_written, bias=False),
    "residual": lambda: _of(_residual),
    "merged with the batch": lambda: _of(_merged),
    "merged, and itself": lambda: _of(_merged_behind),
    "filters written": lambda: _of(_filters_written),
    "some planes": lambda: _of(lambda of, x: of.head(of.c(of.a(x)[:, [2, 0, 1]]).flatten(1))),
    "twice": lambda: _of(lambda of, x: of.head(of.c((of.a(x) * 2).relu()).flatten(1))),
    "turned factor": lambda: Of(
        _turned, a=_conv(2, 3, padding=1, bias=False), p=nn.Parameter(torch.randn(5, 5, 3)), head=nn.Linear(75, 5)
    ),
    "wider bias": lambda: Of(
        lambda of, x: of.head((of.a(x) + of.p.double()[:, None, None]).exp().log().to(x.dtype).flatten(1)),
        a=_conv(2, 3, padding=1, bias=False),
        p=nn.Parameter(torch.randn(3)),
        head=nn.Linear(75, 5),
    ),
    "depthwise": lambda: nn.Sequential(
        *(_conv(2, 4, padding=1, groups=2), nn.Tanh(), _conv(4, 4, groups=4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5))
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_models_that_do_awkward_things_with_a_convolution(able: None, name: str) -> None:
    fed, moved = federation((20, 33, 16), shape=(2, 5, 5), classes=5), []
    for dtype, replay in (("float64", "off"), ("float32", "on")):
        torch.manual_seed(0)
        run = Run(executor="vmap", replay=replay, dtype=dtype, device="cpu")  # type: ignore[arg-type]
        sim = simulation(fedavg(), fed, model=AWKWARD[name](), train=Train(batch=8, lr=0.05), run=run)
        for _ in range(2):
            sim.step()
        moved.append((sim.server.w - sim.simulator.w0).double())
        assert sim.remarks == []
    assert relative(moved[1], moved[0]) < 1e-5


def test_arguments_for_another_number_of_dimensions(able: None) -> None:
    """torch takes one number for both sides of an image."""
    x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 2, 3, 3)

    def once(x: Tensor, w: Tensor) -> list[Tensor]:
        return [torch.convolution(x, w, None, [1], [1], [1], False, [0], 2)]

    torch.testing.assert_close(played(once, [x, w])[0](x, w)[0], once(x, w)[0])


def test_whoever_asks_for_strides_gets_those_that_were_recorded(able: None) -> None:
    x, w = torch.randn(3, 4, 5, 5), torch.randn(4, 2, 3, 3)

    def once(x: Tensor, w: Tensor) -> list[Tensor]:
        y = F.conv2d(x, w, padding=1, groups=2).view(3, 2, 2, 5, 5).transpose(0, 1)
        return [y.as_strided((2, 25), (50, 1)).clone()]

    torch.testing.assert_close(played(once, [x, w])[0](x, w)[0], once(x, w)[0])


def test_why_not_says_why() -> None:
    assert custom.why_not(torch.device("cpu")) == "they are for GPUs"


def test_a_kernel_that_cannot_be_made_leaves_everything_as_it_was(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Tensor:
        raise MemoryError("no room")

    monkeypatch.setattr(convolutions, "of_filters", broken)
    monkeypatch.setattr(convolutions, "_OURS", (forward, of_inputs, broken))
    step, inputs = gradients("relu")
    module, nodes = played(step, inputs)
    assert {*PLAIN} <= {target for target, _ in nodes}
    torch.testing.assert_close(module(*inputs)[0], step(*inputs)[0])
    run = Run(executor="vmap", replay="on", device="cpu")
    sim = simulation(fedavg(), federation((20, 33), shape=(2, 5, 5), classes=5), model=AWKWARD["twice"](), run=run)
    sim.step()
    assert sim.remarks == ["convolutions of SGD have no kernels of their own: MemoryError: no room"]


def test_graphs_without_convolutions_ask_for_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "why_not", lambda device: pytest.fail("asked"))
    graph = fx.Graph()
    graph.output(graph.call_function(aten.relu.default, (graph.placeholder("x"),)))
    convolutions.apart(fx.GraphModule({}, graph), torch.device("cuda"))
