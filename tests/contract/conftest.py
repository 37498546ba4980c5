"""Clients that train alone do so for one epoch here: the contract is about equality, not about convergence."""

from collections.abc import Callable

import pytest
import torch

from equipoise.at import Stop
from equipoise.engine.clients import Executor


@pytest.fixture(autouse=True)
def one_epoch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fit: Callable[..., torch.Tensor] = Executor.fit_alone

    def short(self: Executor, *args: object) -> torch.Tensor:
        return fit(self, *(Stop(window=1, cap=1) if isinstance(a, Stop) else a for a in args))

    monkeypatch.setattr(Executor, "fit_alone", short)
