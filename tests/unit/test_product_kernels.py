"""The GPU kernels for products of matrices against torch in float64: on a GPU as they are, elsewhere interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if CUDA else []
# clients, m, n, k
CASES = [
    (3, 5, 7, 3),  # smaller than any block
    (2, 16, 64, 128),  # blocks that are full
    (2, 10, 20, 200),  # lines of multiples of four
    (2, 33, 21, 67),  # of none
    (2, 70, 40, 20),  # a short sum
    (2, 1, 17, 90),
    (2, 19, 1, 1),
]


@pytest.fixture(scope="module")
def kernels() -> Any:
    pytest.importorskip("triton")
    from equipoise.engine import product_kernels

    return product_kernels


def drawn(*shape: int, turned: bool = False, within: bool = False) -> Tensor:
    """Numbers whose columns lie in one piece, if `turned`; `within` longer rows, one for each client."""
    clients, m, n = shape
    numbers = torch.Generator().manual_seed(sum(shape))
    rows = torch.randn(clients, m * n + 5 * within, generator=numbers).to("cuda" if CUDA else "cpu")
    rows = rows[:, 3 : 3 + m * n] if within else rows
    return rows.view(clients, n, m).mT if turned else rows.view(clients, m, n)


def near(found: Tensor, right: Tensor, within: float = 1e-6) -> bool:
    return found.shape == right.shape and float((found - right).norm()) <= within * float(right.norm())


def rate(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(0.3, dtype=dtype, device="cuda" if CUDA else "cpu")


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(("a_turned", "b_turned"), [(False, True), (False, False), (True, False), (True, True)])
@pytest.mark.parametrize("case", CASES[:4])
def test_as_torch_in_float64(kernels: Any, case: tuple[int, ...], a_turned: bool, b_turned: bool, within: bool) -> None:
    clients, m, n, k = case
    a, b = drawn(clients, m, k, turned=a_turned, within=within), drawn(clients, k, n, turned=b_turned, within=within)
    assert near(kernels.product(a, b, "tf32x3"), a.double() @ b.double())


@pytest.mark.parametrize("case", CASES)
def test_bias_relu_and_rougher_products(kernels: Any, case: tuple[int, ...]) -> None:
    clients, m, n, k = case
    a, b, bias = drawn(clients, m, k), drawn(clients, k, n, turned=True), drawn(clients, 1, n, within=True)
    y = a.double() @ b.double()
    assert near(kernels.product(a, b, "tf32x3", bias), y + bias)
    assert near(kernels.product(a, b, "tf32x3", bias, relu=True), (y + bias).relu())
    assert near(kernels.product(a, b, "tf32x3", relu=True), y.relu())
    assert near(kernels.product(a, b, "tf32"), y, within=2e-3)
    shared = drawn(1, 1, n).expand(clients, 1, n)
    assert near(kernels.product(a, b, "tf32x3", shared), y + shared)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_steps_down(kernels: Any, case: tuple[int, ...], dtype: torch.dtype) -> None:
    clients, m, n, k = case
    a, b, lr = drawn(clients, m, k, turned=True), drawn(clients, k, n), rate(dtype)
    whole = drawn(clients, 1, m * n + 5)[:, 0]
    right = whole.double()
    place = whole[:, 3:-2].view(clients, m, n)
    right[:, 3:-2] -= 0.3 * (a.double() @ b.double()).flatten(1)
    kernels.descend(place, a, b, lr, "tf32x3")
    assert near(whole, right)  # what lies beside it included


@pytest.mark.parametrize("programs", [0, 6, 1 << 20])
def test_parts_of_a_sum(kernels: Any, programs: int) -> None:
    """None, some of which the last is shorter, and as many as there may be: to the same numbers, and the same bits."""
    a, b, bias, place = drawn(2, 10, 1397), drawn(2, 1397, 20, turned=True), drawn(2, 1, 20), drawn(2, 10, 20)
    blocks, exact = kernels.Blocks(16, 32, 16, 4, 2, programs), a.double() @ b.double()
    once, again = (kernels.product(a, b, "tf32x3", bias, True, blocks) for _ in range(2))
    assert near(once, (exact + bias).relu()) and torch.equal(once, again)
    right = place.double() - 0.3 * exact
    kernels.descend(place, a, b, rate(), "tf32x3", blocks)
    assert near(place, right)


def test_rougher_products_are_of_rounded_numbers(kernels: Any) -> None:
    """Not of numbers with their last digits cut off, as a tensor core takes them by itself: all would be too small."""
    a, b = drawn(2, 16, 300).abs() + 1, drawn(2, 300, 20).abs() + 1
    found, exact = kernels.product(a, b, "tf32").double(), a.double() @ b.double()
    assert near(found, rounded(a) @ rounded(b)) and not near(found, exact)
    assert abs(float(((found - exact) / exact).mean())) < 3e-5  # cut off, -7e-4


def rounded(t: Tensor) -> Tensor:
    """To 10 binary digits behind the point, written out."""
    mantissa, exponent = torch.frexp(t.double())
    return torch.ldexp((mantissa * 2**11).round(), exponent - 11)


ODD_NAN = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
"""Rounded as if it were a number, it would be one."""


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's: infinity less infinity
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
@pytest.mark.parametrize("k", [30, 300])
def test_what_is_not_finite_stays_with_its_client_and_sample_and_never_becomes_a_number(
    kernels: Any, k: int, precision: str
) -> None:
    """Also where a sum has parts. Of an infinity, whose rest is no number when it is cut in two, NaN may come."""
    a, b, bias, place = drawn(2, 5, k), drawn(2, k, 9), drawn(2, 1, 9), drawn(2, 5, 9)
    a[0, 1, 2], a[0, 3, 2] = ODD_NAN, torch.inf
    b[0, 2] = b[0, 2].abs()  # a ReLU would make 0 of minus infinity
    kernels.descend(place, a, b, rate(), precision)
    for found in (kernels.product(a, b, precision, bias, relu=True), place):
        lost = ~found.isfinite()
        assert found[0, 1].isnan().all() and lost[0, 3].all() and lost.sum() == 2 * 9


def test_neither_rows_nor_columns_in_one_piece(kernels: Any) -> None:
    a, b = drawn(2, 10, 24)[:, ::2, ::2], drawn(2, 1, 9).expand(2, 12, 9)
    assert near(kernels.product(a, b, "tf32x3"), a.double() @ b.double())


def test_lines_that_lie_farther_apart_than_32_bits_can_say_are_copied(kernels: Any) -> None:
    for apart, same in ((1 << 29, True), (1 << 30, False)):
        t = torch.empty(0, device="meta").as_strided((2, 3, 4), (4, apart, 1))
        assert (kernels._in_lines(t) is t) is same


@pytest.mark.parametrize(
    ("shape", "stride", "unit"),
    [((2, 4, 8), (32, 8, 1), 4), ((2, 4, 8), (33, 8, 1), 1), ((2, 4, 8), (40, 9, 1), 1), ((2, 4, 6), (32, 8, 1), 1)],
)
def test_four_at_once_only_where_every_line_allows_it(
    kernels: Any, shape: tuple[int, ...], stride: tuple[int, ...], unit: int
) -> None:
    t = torch.empty_strided(shape, stride, device="meta")
    assert kernels._unit(t, shape[2], stride[1]) == unit


def test_blocks_are_no_larger_than_a_product_and_no_smaller_than_a_tensor_core_takes(kernels: Any) -> None:
    for m, n, k in ((16, 1024, 3136), (50, 200, 784), (1024, 3136, 16), (10, 10, 10), (200, 10, 50), (2000, 62, 784)):
        for b_along in (True, False):
            cut = kernels.chosen(m, n, k, b_along)
            assert all(16 <= c <= max(16, 2 * size) for c, size in zip(cut[:3], (m, n, k), strict=True))
            assert cut.m * cut.n <= 4096
