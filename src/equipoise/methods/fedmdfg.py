"""Full gradients, a direction that no client has reason to oppose and that evens out losses, and a search along it.

Pan, Wang, Li, Wang, Tang, Zhao, "FedMDFG: federated learning with multi-gradient descent and fair guidance", AAAI 2023,
Algorithm 1.

    client:  u_k = lr g_k,  g_k the gradient over all of its data;  F_k, its loss at w
    hull:    all u_k; those of the last round's clients who are absent now; and, where the angle between F and 1 is
             above theta, u_P = sum_k h_k u_k,  h = cos(F, 1) F/||F|| - 1/sqrt(m) at length 1; all scaled to one length
    d:       the shortest vector of the hull, scaled to ||mean_k u_k||
    search:  a = 2^s, 2^(s-1) .. 2^-s; the first with  F_k(w) - F_k(w - a d) >= beta a g_k . d  for every online client
             and, with u_P in the hull, cos(F(w - a d), 1) > cos(F(w), 1)
    server:  w <- w - a d

The hull is FedLF's with the whole model as one layer (`methods/fedlf.py`). The clients are asked once in a round for
their losses at all 2s + 1 models; if no step is accepted the log says which was taken, and why. The server remembers
the updates of one round, m x d numbers, and makes (2s + 1) x d for the trials.

Departures: (1) the paper's text could not be checked for what happens when no step is accepted; here it is what its
authors' program does: the largest step that lowers the mean loss, or else the one with the lowest mean loss. If no
trial has finite losses the model stays as it is. (2) Losses must fall by + beta a g_k . d; the program has the other
sign, which allows small increases, and takes the gradients at one length there. (3) In rounds with absent clients the
program starts from a = 1, and it also uses u_P when some client's loss rose above its own average; here neither. (4)
Clients that sent a zero gradient are no row and are not asked for a decrease: by the letter, one of them could stop
everyone. (5) d is scaled to the mean of the gradients as they were sent; the program takes the mean of those of one
length. The search is over the scale anyway.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.core import Cohort, EquipoiseError, Method, Outcome, ServerRule, State
from equipoise.methods._directions import along
from equipoise.methods.fedlf import FedLF
from equipoise.methods.fedsgd import FedSGD

_ALL = 1 << 62  # clients to remember: everybody of the last round


@dataclass(frozen=True)
class FedMDFG(ServerRule):
    """theta: the angle between losses and 1 that is tolerated, in radians from 0 (always even out) to pi/2 (never). s:
    how many times a step may be doubled or halved, 0 or more; 0 tries one. beta: which share of the decrease that the
    gradients promise must come true, from 0 (any) up to (not including) 1."""

    theta: float = math.pi / 16
    s: int = 5
    beta: float = 1e-4
    per_client = True

    def __post_init__(self) -> None:
        if not 0 <= self.theta <= math.pi / 2:
            raise EquipoiseError(f"fedmdfg: theta is {self.theta}", "radians from 0, always even out, to pi/2, never")
        if not 0 <= self.s <= 30:
            raise EquipoiseError(f"fedmdfg: s is {self.s}", "from 0 to 30; steps from 2^s to 2^-s are tried")
        if not 0 <= self.beta < 1:
            raise EquipoiseError(f"fedmdfg: beta is {self.beta}", "from 0 up to (not including) 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses", "probe"})

    @property
    def hull(self) -> FedLF:
        return FedLF(layer="model", fair="fedmdfg", theta=self.theta, absent="last", cap=_ALL)

    def init(self, w: Tensor) -> State:
        return self.hull.init(w)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        if cohort.losses is None or cohort.probe is None:
            raise EquipoiseError("fedmdfg: the cohort has no losses to search with", "it needs losses and a probe")
        found = self.hull(cohort, state)
        info: dict[str, Any] = {n: found.info[n] for n in ("absent", "fair_row", "reason") if n in found.info}
        if "reason" in info:
            return Outcome(found.direction, found.state, info={**info, "step": 0.0, "accepted": False})
        d, steps = found.direction, 2.0 ** torch.arange(self.s, -self.s - 1, -1, device=cohort.start.device).double()
        trials = steps[:, None].to(d.dtype) * d
        losses = cohort.probe(cohort.start - trials).to(torch.float64)
        good = self._accepted(cohort, d, steps, losses, info["fair_row"])
        at, reason = _chosen(good, losses.mean(1), float(cohort.losses.to(torch.float64).mean()))
        info |= {"step": 0.0 if at is None else float(steps[at]), "accepted": not reason}
        info |= {"reason": reason} if reason else {}
        return Outcome(torch.zeros_like(d) if at is None else trials[at], found.state, info=info)

    def _accepted(self, cohort: Cohort, d: Tensor, steps: Tensor, losses: Tensor, fair: bool) -> Tensor:
        """[T]: which of the trials are good for every online client; NaN is good for nobody."""
        assert cohort.losses is not None
        before, asked = cohort.losses.to(torch.float64), cohort.updates.any(1)
        promised = along(cohort.updates, d) / cohort.lr
        enough = before - losses >= self.beta * steps[:, None] * promised
        good = (enough | ~asked).all(1)
        return good & (_evenness(losses) > _evenness(before)) if fair else good


def _evenness(losses: Tensor) -> Tensor:
    """[...]: the cosine of the losses [..., K] and 1, up to a factor; losses of zero are even."""
    largest = losses.amax(-1, keepdim=True)
    unit = torch.where(largest > 0, losses / torch.where(largest > 0, largest, 1.0), 1.0)
    return unit.sum(-1) / unit.square().sum(-1).sqrt()


def _chosen(good: Tensor, mean: Tensor, before: float) -> tuple[int | None, str]:
    """Which trial is taken, the largest step first, and a reason where it is not one of the good ones."""
    mean = torch.where(torch.isfinite(mean), mean, torch.inf)
    for fits, reason in ((good, ""), (mean < before, "no step suits everyone: the largest that lowers the mean loss")):
        if bool(fits.any()):
            return int(fits.int().argmax()), reason
    if not bool(torch.isfinite(mean).any()):
        return None, "no step has finite losses: the model stays as it is"
    return int(mean.argmin()), "no step lowers the mean loss: the one with the lowest"


def fedmdfg(theta: float = math.pi / 16, s: int = 5, *, beta: float = 1e-4) -> Method:
    return Method("fedmdfg", FedSGD(), FedMDFG(theta, s, beta))
