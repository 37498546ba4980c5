"""What every test may rely on: one thread, hypothesis runs that repeat, no waiting for the disk, no need of a GPU."""

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from equipoise import registry
from equipoise.at import Stop
from equipoise.engine.clients import Executor

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # GPU kernels step by step, in Python; read when torch first imports Triton
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def nobody_pulls_the_plug() -> Iterator[None]:
    """What was written is there, also for whoever comes after a killed process; only a machine that dies needs more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(autouse=True)
def no_parts_left_behind() -> Iterator[None]:
    """A method file that one test loads is not there in the next."""
    yield
    registry._OWN.clear()


@pytest.fixture
def one_epoch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that train alone do so for one epoch: for tests of equality, not of convergence."""
    fit: Callable[..., torch.Tensor] = Executor.fit_alone

    def short(self: Executor, *args: object) -> torch.Tensor:
        return fit(self, *(Stop(window=1, cap=1) if isinstance(a, Stop) else a for a in args))

    monkeypatch.setattr(Executor, "fit_alone", short)
