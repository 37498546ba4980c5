"""Models of many clients that are asked: the same answers, with convolutions in kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from equipoise.engine import asked, convolutions
from equipoise.engine.net import Net
from equipoise.engine.settings import Run
from equipoise.methods import ditto
from tests.small import federation, simulation
from tests.unit.test_convolutions import MODELS, forward


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device with such kernels, which are torch's operations client by client; how many clients each call had."""
    made: list[int] = []

    def counted(x: Tensor, w: Tensor, pad: Sequence[int], bias: Tensor | None = None) -> Tensor:
        made.append(len(x))
        return forward(x, w, pad, None if bias is None else bias.view(*bias.shape[:1], 1, -1, *[1] * (x.dim() - 3)))

    monkeypatch.setattr(convolutions, "forward", counted)
    monkeypatch.setattr(asked, "why_not", lambda device: None)
    return made


def answers(module: nn.Module, shape: tuple[int, ...], clients: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of other models for every client, which depend on the seed alone."""
    net, g = Net(module, 5, "cross-entropy", torch.device("cpu"), dtype), torch.Generator().manual_seed(0)
    first = net.initial()
    rows = first + 0.1 * torch.randn(clients, len(first), generator=g).to(dtype)
    x, y = torch.randn(clients, 4, *shape, generator=g).to(dtype), torch.randint(5, (clients, 4), generator=g)
    return net.forward(rows, x, y, vectorised=True)[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_same_answers(calls: list[int], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, shape = MODELS[name]()
    ours = answers(module, shape)
    assert (calls and set(calls) == {3}) or name == "depthwise"  # which has groups of its own
    monkeypatch.setattr(asked, "why_not", lambda device: "none")
    before = len(calls)
    torch.testing.assert_close(ours, answers(module, shape), rtol=1e-4, atol=1e-6)
    assert len(calls) == before


class Odd(nn.Module):
    """A convolution that `convolutions` leaves alone, as a user may write it."""

    def __init__(self, **how: object) -> None:
        super().__init__()
        self.w, self.how = nn.Parameter(torch.randn(4, 1, 3, 3)), how

    def forward(self, x: Tensor) -> Tensor:
        return torch.conv2d(x, self.w, None, **self.how).flatten(1)[:, :5]  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("how", [{"stride": 2}, {"dilation": (2, 2)}, {"padding": "same"}, {"stride": [1, 2]}])
def test_what_kernels_cannot_do_stays(calls: list[int], how: dict[str, object]) -> None:
    torch.manual_seed(0)
    module = Odd(**how)
    answers(module, (1, 8, 8))
    assert not calls


@pytest.mark.parametrize(
    "how",
    [{}, {"stride": 1, "padding": 1}, {"stride": (1, 1), "padding": (0, 1)}, {"padding": (1,), "dilation": [1]}],
)
def test_however_it_is_written(calls: list[int], how: dict[str, object]) -> None:
    torch.manual_seed(0)
    answers(Odd(**how), (1, 8, 8))
    assert calls == [3]


def test_filters_that_all_clients_share_stay(calls: list[int]) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.head = torch.randn(4, 1, 3, 3), nn.Linear(144, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.conv2d(x, self.w).flatten(1))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    assert answers(Fixed(), (1, 8, 8)).isfinite().all() and not calls


def test_other_numbers_than_float32_stay(calls: list[int]) -> None:
    module, shape = MODELS["relu"]()
    answers(module, shape, dtype=torch.float64)
    assert not calls


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_all_clients_share_is_asked_as_one_client_s(
    calls: list[int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, shape = MODELS[name]()
    x, y = torch.randn(3, 4, *shape), torch.randint(5, (3, 4))

    def shared() -> Tensor:
        net = Net(module, 5, "cross-entropy", torch.device("cpu"), torch.float32)
        return net.forward(net.initial().expand(3, -1), x, y, vectorised=True)[0]

    ours = shared()
    assert (calls and set(calls) == {1}) or name == "depthwise"
    monkeypatch.setattr(asked, "why_not", lambda device: "none")
    torch.testing.assert_close(ours, shared(), rtol=1e-4, atol=1e-6)


class Steep(nn.Module):
    """Takes derivatives by itself, in one way or another, or maps by itself."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.w, self.how = nn.Parameter(torch.randn(4, 1, 3, 3)), how

    def forward(self, x: Tensor) -> Tensor:
        def total(x: Tensor) -> Tensor:
            return torch.conv2d(x, self.w, padding=1).tanh().sum()

        if self.how == "grad":
            found = torch.func.grad(total)(x)
        else:
            found = torch.vmap(lambda w: torch.conv2d(x, w[None]))(self.w)
            return found.transpose(0, 1).flatten(1)[:, :5]
        return found.flatten(1)[:, :5]


@pytest.mark.parametrize("how", ["grad", "vmap"])
def test_models_that_transform_by_themselves(calls: list[int], how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Steep(how)
    ours = answers(module, (1, 8, 8))
    assert not calls
    monkeypatch.setattr(asked, "why_not", lambda device: "none")
    torch.testing.assert_close(ours, answers(module, (1, 8, 8)))


def test_one_client_after_the_other_is_left_alone(calls: list[int]) -> None:
    module, shape = MODELS["relu"]()
    net = Net(module, 5, "cross-entropy", torch.device("cpu"), torch.float32)
    net.forward(net.initial()[None], torch.randn(1, 4, *shape), torch.zeros(1, 4, dtype=torch.int64), vectorised=False)
    assert not calls


def test_planes_that_do_not_match_are_torch_s_to_refuse(calls: list[int]) -> None:
    with pytest.raises(RuntimeError, match="channels"):
        answers(Odd(), (2, 8, 8))
    assert not calls


@pytest.mark.parametrize(("error", "tries"), [(MemoryError("no room"), 1), (torch.OutOfMemoryError("full"), 2)])
def test_where_kernels_cannot_be_made_torch_answers(
    calls: list[int], monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int
) -> None:
    """For good, unless there was no room for what was asked just then."""
    module, shape = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(180, 5)), (1, 8, 8)
    net = Net(module, 5, "cross-entropy", torch.device("cpu"), torch.float32)
    given = torch.randn(3, len(net.initial())), torch.randn(3, 4, *shape), torch.zeros(3, 4, dtype=torch.int64)
    right = net.forward(*given, vectorised=True)[0]
    calls.clear()

    def broken(*_: object) -> Tensor:
        calls.append(0)
        raise error

    monkeypatch.setattr(convolutions, "forward", broken)
    for _ in range(2):
        torch.testing.assert_close(net.forward(*given, vectorised=True)[0], right, rtol=1e-4, atol=1e-6)
    assert len(calls) == tries
    assert net.asked.reason == ("MemoryError: no room" if tries == 1 else "")


def test_a_run_says_why(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Tensor:
        raise MemoryError("no room")

    monkeypatch.setattr(convolutions, "forward", broken)
    fed = federation((6, 6, 6), shape=(1, 8, 8), classes=5)
    sim = simulation(
        ditto(), fed, model="cnn", channels=(3, 4), kernel=3, hidden=(6,), run=Run(dtype="float32", executor="vmap")
    )
    sim.step()
    sim.evaluate("test")
    assert sim.remarks == ["convolutions of models that are asked have no kernels of their own: MemoryError: no room"]
