"""Mixes clients in random buckets before a robust rule sees them, so that what is rare is less mistaken for malicious.

Karimireddy, He, Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022, Algorithm 1.

    pi     = a random order of the m clients
    y_i    = mean of u_pi(k) over k = (i - 1) s + 1, ..., min(m, i s)    for i = 1, ..., ceil(m / s)

A filter: the rule behind it sees ceil(m / s) rows. A bucket claims the sum of its clients' sizes, the mean of their
losses and other signals, and goes by the lowest of their ids. One malicious client spoils one bucket, so f of them are
up to f of ceil(m / s) rows: give the rule behind the same f.

Departures: Algorithm 1 prints 1/s also for a last bucket that has fewer clients, which would shorten its mean; here it
is the mean of those in it. Clients count the same within a bucket, as in the paper, whatever sizes they report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.aggregators._rows import mixed
from equipoise.core import Cohort, EquipoiseError, Filter


@dataclass(frozen=True)
class Bucketing(Filter):
    """s: how many clients go into a bucket, 1 or more; 1 changes nothing. The paper advises 2."""

    s: int = 2
    keeps_rows = False
    by_id = True

    def __post_init__(self) -> None:
        if not isinstance(self.s, int) or self.s < 1:
            raise EquipoiseError(f"bucketing: s is {self.s}", "clients in a bucket, 1 or more; 1 changes nothing")

    def check(self, n: int) -> int:
        return -(-n // self.s)

    def __call__(self, cohort: Cohort) -> tuple[Cohort, Mapping[str, Any]]:
        row_of, lowest = self._buckets(cohort)
        sums = torch.zeros((len(lowest), len(cohort)), dtype=torch.float64, device=row_of.device)
        sums[row_of, torch.arange(len(cohort), device=row_of.device)] = 1.0
        means, probe = sums / sums.sum(1, keepdim=True), cohort.probe

        def of(scalars: Tensor) -> Tensor:
            return (scalars.double() @ means.T).to(scalars.dtype)

        merged = replace(
            cohort,
            ids=lowest,
            updates=mixed(means, cohort.updates),
            sizes=torch.zeros_like(cohort.sizes[: len(lowest)]).index_add(0, row_of, cohort.sizes),
            losses=None if cohort.losses is None else of(cohort.losses),
            signals={name: of(t) for name, t in cohort.signals.items()},
            probe=None if probe is None else lambda models: of(probe(models)),
        )
        return merged, {"row_of": row_of, "scale": torch.ones_like(means[0]), "rows": len(lowest)}

    def _buckets(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """The bucket of each client [m], and the lowest client id in each bucket, ascending."""
        order = cohort.rng.child("bucketing").bits(cohort.ids).argsort(stable=True)
        bucket = order.argsort() // self.s
        lowest = cohort.ids.new_zeros(self.check(len(order)))
        lowest, rank = lowest.scatter_reduce(0, bucket, cohort.ids, "amin", include_self=False).sort()
        return rank.argsort()[bucket], lowest
