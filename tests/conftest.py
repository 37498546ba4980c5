"""What every test may rely on: one thread, and hypothesis runs that repeat."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from equipoise import registry

torch.set_num_threads(1)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def no_parts_left_behind() -> Iterator[None]:
    """A method file that one test loads is not there in the next."""
    yield
    registry._OWN.clear()
