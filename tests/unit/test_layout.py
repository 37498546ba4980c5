"""A model as one vector: `layout`."""

import math

import pytest
import torch

from equipoise.layout import finite_rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_rows_are_finite_whatever_they_sum_up_to(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    rows = torch.tensor([[most, most, most], [-most, -most, 1.0], [0.0, 1.0, 2.0]], dtype=dtype)
    assert finite_rows(rows).tolist() == [True, True, True]
    inf, nan = math.inf, math.nan
    rows = torch.tensor([[inf, -inf, 0.0], [nan, 0.0, 1.0], [most, most, -inf], [most, most, most]], dtype=dtype)
    assert finite_rows(rows).tolist() == [False, False, False, True]
    assert finite_rows(rows[:, None].expand(-1, 2, -1), 2).tolist() == [[False] * 2] * 3 + [[True] * 2]
