"""The point from which the distances to all updates add up to least.

Pillutla, Kakade, Harchaoui, "Robust aggregation for federated learning", IEEE Transactions on Signal Processing 70,
2022, Algorithm 2 (smoothed Weiszfeld).

    z = the coordinate-wise median of u_1, ..., u_m; then, until it stands still:
    beta_k = p_k / max(nu, ||z - u_k||)    z <- sum_k beta_k u_k / sum_k beta_k
    w <- w - z

All of it happens in float64 on the inner products [m, m] of the updates' differences from the coordinate-wise median,
which are computed once: after the first step z is a mean of updates, so that only its weights change. It stands still
when a step is below `tolerance` times the median distance from z to the updates. With p_k = 1/m (uniform) it holds as
long as more than half of the clients are honest, as published; capped for a quarter in place of half; size for none if
sizes may be false. Under "weights" are those of the mean that z is.

Departures: the paper starts from the mean, which one update of 1e30 carries away, weighs by size, and stops after a
few steps for the sake of communication that is not needed here. A distance is exact to 1e-8 of the length of the longer
of z and u_k, seen from the coordinate-wise median. Updates so long that their squares overflow float64 are left out.
Large float32 cohorts are first measured in float32, starting from the mean of the half in their midst; that stands if
every distance from z is certainly exact to 1e-3 (as a rule it is to 1e-6), else all is done again as above.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.aggregators import _rough
from equipoise.aggregators._distances import inner_products
from equipoise.aggregators._order import ascending, middle
from equipoise.aggregators._rows import mixed
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.errors import not_negative, positive, require
from equipoise.weighting import Weights, check_weights, normalised, shares

_NEAR = 2e-3  # of a squared distance: a thousandth of the distance itself


@dataclass(frozen=True)
class GeometricMedian(ServerRule):
    """nu: the shortest distance that counts, above 0. iterations: at most so many steps. tolerance: a step below this
    share of the median distance to the updates is the last, 0 or more; with 0 it goes on until nothing moves.
    """

    nu: float = 1e-6
    iterations: int = 100
    tolerance: float = 1e-6
    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        if not positive(self.nu):
            raise EquipoiseError(f"geometric-median: nu is {self.nu}", "the shortest distance that counts, above 0")
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise EquipoiseError(f"geometric-median: iterations is {self.iterations}", "steps to take, 1 or more")
        ok = not_negative(self.tolerance)
        require(ok, "geometric-median: tolerance", self.tolerance, "0 or more; 0: until nothing moves")
        check_weights("geometric-median", self.weights)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        p = shares(cohort.sizes, self.weights)
        found = self._in_float32(cohort.updates, p) if _rough.worth_it(cohort.updates) else None
        if found is not None:
            weights, steps = found
            info: dict[str, Any] = {"weights": weights, "iterations": steps, "left_out": 0}
            return Outcome(weights.to(cohort.updates.dtype) @ cohort.updates, state, info=info)
        gram = inner_products(cohort.updates, lambda piece: median_of(cohort.updates[:, piece]))
        seen = torch.isfinite(gram.diagonal())
        p = normalised(torch.where(seen, p, 0.0))
        weights, steps, _ = self.weiszfeld(torch.where(seen & seen[:, None], gram, 0.0), p, torch.zeros_like(p))
        info = {"weights": weights, "iterations": steps, "left_out": int((~seen).sum())}
        few = {} if p.sum() > 0 else {"warning": "no update is short enough to be measured: no step was taken"}
        return Outcome(mixed(weights, cohort.updates), state, info={**info, **few})

    def _in_float32(self, updates: Tensor, p: Tensor) -> tuple[Tensor, int] | None:
        """The weights and the steps, or None if it does not come to rest or float32 leaves a distance in doubt."""
        rough = _rough.inner_products(updates)
        inner = rough.lengths.argsort(stable=True)[: len(p) // 2 + 1]
        start = torch.zeros_like(p).index_fill(0, inner, 1.0 / len(inner))
        weights, steps, apart = self.weiszfeld(rough.gram, p, start)
        near = bool((rough.error_from(weights) <= _NEAR * apart.square()).all())  # false of NaN as well
        return (weights, steps) if near and steps < self.iterations else None

    def weiszfeld(self, gram: Tensor, p: Tensor, c: Tensor) -> tuple[Tensor, int, Tensor]:
        """The weights of the geometric median from c on, how many steps they took, and the last distances measured."""
        steps, apart = 0, c
        while steps < self.iterations:
            product = gram @ c
            apart = (gram.diagonal() - 2 * product + c @ product).clamp(min=0).sqrt()
            new = normalised(p / apart.clamp(min=self.nu))
            moved, c, steps = new - c, new, steps + 1
            if bool((moved @ gram @ moved).clamp(min=0).sqrt() <= self.tolerance * apart.median()):
                break
        return c, steps, apart


def median_of(rows: Tensor) -> Tensor:
    """The coordinate-wise median, in float64."""
    low, high = middle(ascending(rows))
    return (low.double() + high.double()) / 2
