"""The GPU kernel for shortest vectors against the solver in host memory: on a GPU as it is, elsewhere interpreted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise import solvers
from equipoise.solvers import min_norm, min_norm_unasked, solves_there
from tests.unit.test_solvers import ROWS, kkt_error, normal, uniform

CUDA = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu] if CUDA else []
WHERE = torch.device("cuda" if CUDA else "cpu")


@pytest.fixture(scope="module")
def kernels() -> Any:
    pytest.importorskip("triton")
    from equipoise import hull_kernels

    return hull_kernels


def found(kernels: Any, gram: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    mask = torch.ones(gram.shape[:2], dtype=torch.bool) if mask is None else mask
    w, error = kernels.shortest(gram.to(WHERE), mask.to(WHERE))
    return w.cpu(), error.cpu()


LOOSE = {"on an arc", "whole numbers"}  # more rows than dimensions: not always exact, which is said


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("kind", sorted({*ROWS} - {"nearly equal"}))
def test_it_finds_the_vector_that_is_found_in_host_memory(kernels: Any, kind: str, n: int) -> None:
    x = ROWS[kind](n, n)
    gram = x @ x.mT
    w, error = found(kernels, gram)
    assert (w >= 0).all() and torch.allclose(w.sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12)
    assert (error < 1e-12).all() or kind in LOOSE
    away = ((w - min_norm(gram))[:, None] @ x)[:, 0].norm(dim=-1) / x.norm(dim=-1).amin(-1)
    assert ((error >= 1e-12) | ((kkt_error(gram, w) < 1e-11) & (away <= 1e-9))).all()


def test_rows_that_are_nearly_equal_are_solved_or_said_not_to_be(kernels: Any) -> None:
    for seed in range(5):
        x = ROWS["nearly equal"](seed, 12)
        w, error = found(kernels, x @ x.mT)
        assert ((kkt_error(x @ x.mT, w) < 1e-8) | ~(error < 1e-12)).all()


def test_as_many_rows_as_there_may_be(kernels: Any) -> None:
    x = ROWS["one made of others"](3, solvers._THERE)[:2]
    w, error = found(kernels, x @ x.mT)
    assert (error < 1e-12).all() and ((w - min_norm(x @ x.mT))[:, None] @ x).norm() < 1e-9


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_rows_that_are_not_there_get_nothing(kernels: Any, share: float) -> None:
    x = ROWS["one made of others"](5, 20)
    mask = uniform(2, 3, 20) < share
    w, error = found(kernels, x @ x.mT, mask)
    assert (w[~mask] == 0).all() and (error < 1e-12).all()
    assert ((w - min_norm(x @ x.mT, mask))[:, None] @ x).norm() < 1e-10


def test_of_rows_that_are_zero_the_first_gets_all(kernels: Any) -> None:
    x = ROWS["random"](1, 6)
    x[0, 2] = x[0, 4] = x[2, 5] = 0.0
    w, error = found(kernels, x @ x.mT)
    assert w[0].tolist() == [0, 0, 1, 0, 0, 0] and w[2].tolist() == [0, 0, 0, 0, 0, 1] and (error < 1e-12).all()


def test_opposites_cancel(kernels: Any) -> None:
    x = ROWS["random"](1, 2)
    x[:, 1] = -2 * x[:, 0]
    w, _ = found(kernels, x @ x.mT)
    assert torch.allclose(w, torch.tensor([2 / 3, 1 / 3], dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_ends_and_is_not_exact(kernels: Any, bad: float) -> None:
    x = ROWS["random"](1, 5)
    x[1, 3, 2] = bad
    w, error = found(kernels, x @ x.mT)
    assert not error[1] < 1e-12 and (error[[0, 2]] < 1e-12).all() and w[[0, 2]].isfinite().all()


def test_to_find_nothing_is_no_answer(kernels: Any) -> None:
    """Products that no rows have, to 1e-6, can make weights cancel; that is not called exact."""
    for seed in range(60):
        x = normal(seed, 4, 3, 1)
        noise = normal(seed + 1000, 4, 3, 3)
        w, error = found(kernels, (x @ x.mT) * (1 + 1e-6 * (noise + noise.mT) / 2))
        assert ((w.sum(-1) > 0.5) | error.isnan()).all()


def test_in_host_memory_nobody_need_be_asked() -> None:
    x = ROWS["random"](4, 9)
    w, exact = min_norm_unasked(x @ x.mT, torch.ones(3, 9, dtype=torch.bool))
    assert torch.equal(w, min_norm(x @ x.mT)) and exact.all() and solves_there(torch.device("cpu"), 10**6)


@pytest.mark.skipif(not CUDA, reason="no CUDA device")
def test_a_gpu_takes_so_many_rows() -> None:
    assert solves_there(WHERE, 128) and not solves_there(WHERE, 129)
    x = ROWS["one made of others"](3, 90).to(WHERE)
    w, exact = min_norm_unasked(x @ x.mT, torch.ones(3, 90, dtype=torch.bool, device=WHERE))
    assert w.is_cuda and exact.all()
