"""Scales updates that are longer than most down to the median length, so that no client can shout.

Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", 2019, "norm thresholding of updates", with
a fixed bound. The median of the round as bound is the "clipping" that is compared in Li, Hu, Beirami, Smith, "Ditto:
fair and robust federated learning through personalization", ICML 2021, section 4.1.

    u_k <- min(1, bound / ||u_k||) u_k    with bound = the median of ||u_1||, ..., ||u_m|| if none is given

A filter: the rule behind it decides what becomes of the updates, and sees the sizes and losses as they were. Updates of
length 0 stay. If most of a cohort sends nothing, the median is 0 and so is every update: the log says so.

Departures: Ditto's text names the defence without its bound; the median of the round is what its experiments used. Of
an even number of clients it is the mean of the two middle lengths.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equipoise.aggregators._distances import norms
from equipoise.aggregators._rows import median, shortening
from equipoise.core import Cohort, EquipoiseError, Filter
from equipoise.errors import positive


@dataclass(frozen=True)
class Clip(Filter):
    """bound: the longest update that passes unchanged, above 0; left out: the median length of the round."""

    bound: float | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and not positive(self.bound):
            raise EquipoiseError(f"clip: bound is {self.bound}", "above 0; left out: the median length of the round")

    def __call__(self, cohort: Cohort) -> tuple[Cohort, Mapping[str, Any]]:
        length = norms(cohort.updates)
        bound = median(length) if self.bound is None else length.new_tensor(self.bound)
        scale = shortening(length, bound)
        info: dict[str, Any] = {"bound": float(bound), "clipped": int((scale < 1).sum()), "scale": scale}
        if bound == 0:
            info["warning"] = "the median length is 0: every update was scaled to 0"
        if info["clipped"] == 0:
            return cohort, info
        return cohort.with_updates(cohort.updates * scale.to(cohort.updates.dtype)[:, None]), info
