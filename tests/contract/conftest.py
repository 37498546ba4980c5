"""The contract is about equality, not about convergence."""

import pytest


@pytest.fixture(autouse=True)
def _quick(one_epoch_alone: None) -> None: ...
