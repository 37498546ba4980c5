"""Conflicts are taken out of the clients' updates before they are averaged, so that large updates drown out nobody.

Wang, Fan, Qi, Wen, Wang, Yu, "Federated learning with fair averaging", IJCAI 2021, Algorithms 1 to 3.

    order:     the m clients by the loss F_k at w, ascending, equal losses by client id
    internal:  p_i = u_i;  for j != i in that order:  if p_i . u_j < 0:  p_i <- p_i - (p_i . u_j / ||u_j||^2) u_j
               not for the alpha m clients (rounded up) with the largest losses: p_i = u_i
               d = mean_i p_i
    external:  from round t >= tau on, for r = t - tau .. t - 1:  c = the sum of the u_k that were sent in round r by
               clients not heard since, with d . u_k < 0;  if d . c < 0:  d <- d - (d . c / ||c||^2) c
    server:    w <- w - d ||mean_k u_k|| / ||d||

Everything is decided on the products of the updates, so the loop over pairs costs m^3 numbers and does not touch their
d coordinates. The server remembers the updates of tau rounds: up to tau x m x d numbers.

Departures: (1) the paper leaves open how many alpha m clients are if it is no whole number: here it is rounded up, and
alpha = 0 is nobody. (2) Where all updates cancel in the end, to 1e-6 of what they are made of, the model stays as it
is; the paper would divide by zero. (3) The authors' program counts the present round as the first of the tau, so that
with tau = 1 it looks at no earlier round; here it is the text that is followed. That text could be checked only in
part: the order of the external rounds and the condition t >= tau are from memory and that program.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from equipoise import history
from equipoise.core import SGD, Cohort, EquipoiseError, Method, Outcome, ServerRule, State
from equipoise.methods._directions import contributions, length, mixture, told
from equipoise.questions import near


@dataclass(frozen=True)
class FedFV(ServerRule):
    """alpha: the share of clients, those with the largest losses, whose updates stay as they are; from 0 to 1, where 1
    takes out no internal conflict. tau: rounds that are remembered for clients who are absent; 0 is none."""

    alpha: float = 0.1
    tau: int = 1
    per_client = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise EquipoiseError(f"fedfv: alpha is {self.alpha}", "a share, from 0 to 1; 1 leaves updates as they are")
        if self.tau < 0:
            raise EquipoiseError(f"fedfv: tau is {self.tau}", "a number of rounds, 0 or more; 0 remembers nothing")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses"})

    def init(self, w: Tensor) -> State:
        gram = torch.empty((0, 0), dtype=torch.float64)
        return {**history.blank(), "rows": w.new_empty((0, *w.shape)), "gram": gram}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        if cohort.losses is None:
            raise EquipoiseError("fedfv: the cohort has no losses", "it orders clients by their losses")
        m, state = len(cohort), {name: t if name == "rows" else t.cpu() for name, t in state.items()}
        mean = torch.linalg.vector_norm(cohort.updates.mean(0), dtype=torch.float64)
        gram, losses, size = told(cohort.updates, state["rows"], state["gram"], cohort.losses, mean)
        order, ids = losses.argsort(stable=True), near(cohort.ids)
        projected, internal = _projected(gram[:m, :m], order, kept=ceil(self.alpha * m * (1 - 1e-12)))
        weights = torch.cat([projected.mean(0), gram.new_zeros(len(gram) - m)])
        weights, external = self._external(weights, gram, cohort.round, ids, state)
        after = self._remembered(cohort, ids, state, gram)
        info: dict[str, Any] = {"internal": internal, "external": external}
        if size == 0 or float(length(weights, gram)) == 0:
            info |= {"weights": gram.new_zeros(m), "reason": "the updates cancel each other: there is no direction"}
            return Outcome(torch.zeros_like(cohort.start), after, info=info)
        d = mixture(weights, cohort.updates, state["rows"])
        scale = float(size) / torch.linalg.vector_norm(d, dtype=torch.float64)
        return Outcome(d * scale, after, info={**info, "weights": contributions(weights, gram)[:m]})

    def _external(self, weights: Tensor, gram: Tensor, now: int, ids: Tensor, state: State) -> tuple[Tensor, int]:
        """The weights without conflicts with absent clients, round by round, and how many of those there were."""
        m, found = len(ids), 0
        absent = history.absent(state, ids)
        for r in range(now - self.tau, now) if now >= self.tau else ():
            against = absent & (state["rounds"] == r) & (gram[m:] @ weights < 0)
            c = torch.cat([torch.zeros_like(weights[:m]), against.to(weights.dtype)])
            found += int(against.sum())
            if float(length(c, gram)) > 0:
                weights = weights - (c @ gram @ weights) / (c @ gram @ c) * c
        return weights, found

    def _remembered(self, cohort: Cohort, ids: Tensor, state: State, gram: Tensor) -> State:
        """This round's updates and those that are still needed in the next, with their products."""
        everyone, since = len(gram), cohort.round + 1 - self.tau
        at = history.kept(state, ids, cohort.round, everyone, since)
        memory = history.moved(state, ids, cohort.round, at, rows=cohort.updates)
        return {**memory, "gram": gram[at][:, at]}


def _projected(gram: Tensor, order: Tensor, kept: int) -> tuple[Tensor, int]:
    """[m, m]: row i holds the weights that make p_i of the updates; and how many conflicts were taken out."""
    weights, found = torch.eye(len(gram), dtype=gram.dtype, device=gram.device), 0
    may = torch.ones_like(order, dtype=torch.bool)
    may[order[len(order) - kept :]] = False
    for j in order.tolist():
        dot = weights @ gram[:, j]
        hit = may & (dot < 0)
        hit[j] = False
        weights[hit, j] -= dot[hit] / gram[j, j]
        found += int(hit.sum())
    return weights, found


def fedfv(alpha: float = 0.1, tau: int = 1) -> Method:
    return Method("fedfv", SGD(), FedFV(alpha, tau))
