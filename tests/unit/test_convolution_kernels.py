"""The GPU kernels for convolutions against torch in float64: on a GPU as they are, elsewhere interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if CUDA else []
# clients, batch, planes, filters, height, width, rows, columns, padding
CASES = [
    (2, 3, 1, 6, 9, 8, 3, 3, (0, 0)),
    (2, 2, 3, 5, 7, 7, 5, 5, (2, 2)),
    (3, 2, 4, 17, 6, 9, 3, 4, (1, 0)),
    (2, 2, 2, 3, 5, 5, 1, 3, (2, 3)),  # more padding than the filter is large
    (1, 5, 8, 20, 1, 12, 1, 3, (0, 0)),
    (2, 2, 33, 66, 6, 6, 4, 4, (1, 1)),
    (2, 2, 32, 48, 6, 5, 3, 2, (1, 0)),  # as many planes and filters as fill blocks: planes lie together
    (3, 1, 16, 64, 7, 7, 5, 5, (2, 2)),
]


@pytest.fixture(scope="module")
def kernels() -> Any:
    pytest.importorskip("triton")
    from equipoise.engine import convolution_kernels as kernels

    return kernels


def drawn(*shape: int) -> Tensor:
    """Rows that do not lie one behind the other."""
    t = torch.randn(shape[1], shape[0], *shape[2:], generator=torch.Generator().manual_seed(sum(shape)))
    return t.to("cuda" if CUDA else "cpu").transpose(0, 1)


def by_client(x: Tensor, w: Tensor, pad: tuple[int, int]) -> Tensor:
    return torch.stack([F.conv2d(a, b, padding=pad) for a, b in zip(x, w, strict=True)])


def near(found: Tensor, right: Tensor, within: float = 1e-6) -> bool:
    return found.shape == right.shape and float((found - right).norm()) <= within * float(right.norm())


@pytest.mark.parametrize("case", CASES)
def test_as_torch_in_float64(kernels: Any, case: tuple[Any, ...]) -> None:
    clients, batch, planes, filters, height, width, rows, columns, pad = case
    x, w = drawn(clients, batch, planes, height, width), drawn(clients, filters, planes, rows, columns)
    exact = x.double().requires_grad_(), w.double().requires_grad_()
    y = by_client(*exact, pad)
    g = drawn(*y.shape)
    by_x, by_w = torch.autograd.grad(y, exact, g.double())
    y = y.detach()
    assert near(kernels.forward(x, w, pad, "tf32x3"), y)
    assert near(kernels.of_inputs(g, w, pad, "tf32x3"), by_x)
    assert near(kernels.of_filters(g, x, w.shape, pad, "tf32x3"), by_w)
    bias = drawn(clients, filters)
    shifted = (y + bias.double()[:, None, :, None, None]).clamp(min=0)
    assert near(kernels.forward(x, w, pad, "tf32x3", bias, relu=True), shifted)
    assert near(kernels.forward(x, w, pad, "tf32"), y, within=2e-3)


def test_one_client_s_nan_stays_with_it(kernels: Any) -> None:
    x, w = drawn(2, 2, 3, 6, 6), drawn(2, 4, 3, 3, 3)
    x[0, 1, 0, 2, 2] = torch.nan
    found = kernels.forward(x, w, (1, 1), "tf32x3", drawn(2, 4), relu=True).isnan()
    assert found[0, 1].sum() == 4 * 9 and found.sum() == 4 * 9


def test_rows_that_lie_farther_apart_than_32_bits_can_say_are_copied(kernels: Any) -> None:
    for apart, same in ((1 << 29, True), (1 << 30, False)):
        t = torch.empty(0, device="meta").as_strided((2, 3, 1, 2, 2), (4, apart, 4, 2, 1))
        assert (kernels._planes_in_one_piece(t) is t) is same


def test_the_same_bits_every_time(kernels: Any) -> None:
    x, w, g = drawn(2, 9, 3, 8, 8), drawn(2, 4, 3, 3, 3), drawn(2, 9, 4, 6, 6)
    once, again = (kernels.of_filters(g, x, w.shape, (0, 0), "tf32x3") for _ in range(2))
    assert torch.equal(once, again)
