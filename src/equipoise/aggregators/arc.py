"""Shortens the longest updates to the length of the next longest one, as many as the number of attackers asks for.

Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan, "Adaptive gradient clipping for robust federated learning" (first as
"Boosting robustness by clipping gradients in distributed learning", 2024), ICLR 2025, Algorithm 2 (adaptive robust
clipping).

    k     = floor(2 (f / m) (m - f))
    bound = the (k + 1)-th largest of ||u_1||, ..., ||u_m||
    u_i  <- min(1, bound / ||u_i||) u_i

A filter: the rule behind it gives the guarantee, against the same f, and keeps it up to a constant. Needs m > 2f. It
does not depend on how large updates are in a round. Updates of length 0 stay; where the bound itself is 0, so is every
update, and the log has a "warning".

Departures: none. The paper has no default for f; ours is 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equipoise.aggregators._distances import norms
from equipoise.aggregators._rows import shortening
from equipoise.aggregators.krum import check_f
from equipoise.aggregators.nnm import check_minority
from equipoise.core import Cohort, Filter


@dataclass(frozen=True)
class ARC(Filter):
    """f: how many malicious clients to expect in a cohort, from 0 to less than half; 0 shortens nothing."""

    f: int = 1

    def __post_init__(self) -> None:
        check_f("arc", self.f)

    def check(self, n: int) -> int:
        check_minority("arc", n, self.f)
        return n

    def __call__(self, cohort: Cohort) -> tuple[Cohort, Mapping[str, Any]]:
        m = self.check(len(cohort))
        length = norms(cohort.updates)
        bound = length.sort(descending=True).values[2 * self.f * (m - self.f) // m]
        scale = shortening(length, bound)
        info: dict[str, Any] = {"bound": float(bound), "clipped": int((scale < 1).sum()), "scale": scale}
        if info["clipped"] == 0:
            return cohort, info
        if bound == 0:
            info["warning"] = f"only {info['clipped']} updates are not zero: they were scaled to 0"
        return cohort.with_updates(cohort.updates * scale.to(cohort.updates.dtype)[:, None]), info
