"""Drops the f longest updates of a round.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, section 4.2
("k-norm": the updates with the largest norms are filtered out; k is the expected number of malicious clients).

    keep the m - f clients k with the smallest ||u_k||; of equal ones the lowest client ids

A filter: the rule behind it sees the clients that are kept, as they were. With the plain mean behind it,
`chain(KNorm(f), WeightedMean("uniform"))`, it is the defence of the paper. It stops those who shout, and nobody who
sends a wrong update of an ordinary length. Needs f < m; f = 0 keeps everyone.

Departures: none; the paper's k is called f, as everywhere here, and defaults to 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.aggregators._distances import norms
from equipoise.aggregators.krum import check_f
from equipoise.core import Cohort, EquipoiseError, Filter


@dataclass(frozen=True)
class KNorm(Filter):
    """f: how many updates to drop, from 0 (none) to m - 1."""

    f: int = 1
    keeps_rows = False

    def __post_init__(self) -> None:
        check_f("k-norm", self.f)

    def check(self, n: int) -> int:
        check_left("k-norm", n, self.f)
        return n - self.f

    def __call__(self, cohort: Cohort) -> tuple[Cohort, Mapping[str, Any]]:
        left = self.check(len(cohort))
        length = norms(cohort.updates)
        kept = length.argsort(stable=True)[:left].sort().values
        row_of = torch.full_like(cohort.ids, -1, dtype=torch.int64)
        row_of[kept] = torch.arange(left, device=kept.device)
        info = {"scale": (row_of >= 0).double(), "dropped": self.f, "row_of": row_of, "lengths": length}
        return only(cohort, kept), info


def only(cohort: Cohort, rows: Tensor) -> Cohort:
    """The cohort of these rows alone, also where the clients are asked for their losses."""
    probe = cohort.probe
    return replace(
        cohort,
        ids=cohort.ids[rows],
        updates=cohort.updates[rows],
        sizes=cohort.sizes[rows],
        losses=None if cohort.losses is None else cohort.losses[rows],
        signals={name: signal[rows] for name, signal in cohort.signals.items()},
        probe=None if probe is None else lambda models: probe(models)[:, rows],
    )


def check_left(name: str, m: int, f: int) -> None:
    if m - f < 1:
        told = f"{name}: m = {m} clients in the cohort and f = {f} to drop leave {m - f}"
        raise EquipoiseError(told, f"f = {f} needs {f + 1} clients or more in a round")
