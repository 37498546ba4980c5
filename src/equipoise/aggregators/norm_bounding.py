"""Shortens updates to a fixed length, and adds a little noise to the step if asked to.

Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", 2019, section 4 (norm thresholding of
updates; weak differential privacy).

    u_k <- min(1, bound / ||u_k||) u_k + sigma z    with z ~ N(0, I), the same for all clients of a round

A filter. Without noise it is `Clip(bound)`. The paper adds the noise to the mean: the same z on every row is that, for
this and every other rule that follows its rows when they are shifted. Amounts of noise that would give privacy are far
larger; nothing is claimed about privacy here.

Departures: the paper tries several bounds and amounts of noise on one data set and recommends none; bound = 3 is of the
order it found to work there, and could not be checked. sigma = 0 is its defence without noise. The right bound is a
matter of model and step size: the log says how many were clipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from equipoise.aggregators.clip import Clip
from equipoise.core import Cohort, EquipoiseError, Filter
from equipoise.errors import not_negative, positive, require


@dataclass(frozen=True)
class NormBounding(Filter):
    """bound: the longest update that passes unchanged, above 0. sigma: standard deviation of the noise, 0 is none."""

    bound: float = 3.0
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not positive(self.bound):
            raise EquipoiseError(f"norm-bounding: bound is {self.bound}", "the longest update to let pass, above 0")
        require(not_negative(self.sigma), "norm-bounding: sigma", self.sigma, "0 or more; 0 is no noise")

    def __call__(self, cohort: Cohort) -> tuple[Cohort, Mapping[str, Any]]:
        bounded, info = Clip(self.bound)(cohort)
        if self.sigma == 0:
            return bounded, info
        which = torch.arange(cohort.updates.shape[1], device=cohort.updates.device)
        noise = self.sigma * cohort.rng.child("norm-bounding").normal(which)
        return bounded.with_updates(bounded.updates + noise.to(bounded.updates.dtype)), {**info, "sigma": self.sigma}
