"""Models of many clients that are asked: the same answers, with convolutions in kernels of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from equipoise.engine import asked, convolutions
from equipoise.engine.net import Net
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
    monkeypatch.setattr(asked, "_given_up", set())
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


@pytest.mark.parametrize("how", [{}, {"stride": 1, "padding": 1}, {"stride": (1, 1), "padding": (0, 1)}])
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


@pytest.mark.parametrize("what", ["float64", "one client"])
def test_what_does_not_fit_stays(calls: list[int], what: str) -> None:
    module, shape = MODELS["relu"]()
    answers(module, shape, 1 if what == "one client" else 3, torch.float64 if what == "float64" else torch.float32)
    assert not calls


def test_where_kernels_cannot_be_made_torch_answers_from_then_on(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Tensor:
        calls.append(0)
        raise MemoryError("no room")

    module, shape = MODELS["relu"]()
    right = answers(module, shape)
    calls.clear()
    monkeypatch.setattr(convolutions, "forward", broken)
    for _ in range(2):
        torch.testing.assert_close(answers(module, shape), right, rtol=1e-4, atol=1e-6)
    assert calls == [0]
