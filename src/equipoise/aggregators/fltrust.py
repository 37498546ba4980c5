"""Trusts clients as far as their updates point the way of the server's own, and gives all of them its length.

Cao, Fang, Liu, Gong, "FLTrust: Byzantine-robust federated learning via trust bootstrapping", NDSS 2021, Algorithm 2 and
Equations 2 to 4.

    u_0 = the server's own update, from a small clean data set, trained as a client would
    t_k = max(0, cos(u_k, u_0))
    w  <- w - 1/(sum_k t_k) sum_k t_k (||u_0|| / ||u_k||) u_k

Holds against any number of malicious clients, as far as the server's data can be relied on. `[data] root = 100` keeps
100 samples for the server. If no update points its way, or its own is zero, the model stays as it is, and the round has
a `reason`: the server's own update is no part of the step. Under "weights" are the t_k, divided by their sum.

Departures: none. The paper's global learning rate is 1, as everywhere here.
"""

from dataclasses import dataclass

import torch

from equipoise.aggregators._distances import norms
from equipoise.aggregators._rows import cosines, mixed
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.weighting import normalised


@dataclass(frozen=True)
class FLTrust(ServerRule):
    """Nothing to set; needs data of the server's own."""

    robust = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"root"})

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        if cohort.root is None:
            raise EquipoiseError("fltrust: the server has no data of its own", "[data] root = 100 keeps 100 samples")
        root = cohort.root[None]
        trust = cosines(cohort.updates, root)[:, 0].clamp(min=0.0)
        weights, length = normalised(trust), norms(cohort.updates)
        scale = torch.where(trust > 0, norms(root) / torch.where(length > 0, length, 1.0), 0.0)
        info = {"weights": weights, "trust": trust}
        if not bool(trust.any()):
            why = "no update points the way of the server's own" if bool(root.any()) else "the server's update is zero"
            return Outcome(
                torch.zeros_like(cohort.updates[0]), state, info={**info, "reason": f"{why}: the model stays"}
            )
        return Outcome(mixed(weights * scale, cohort.updates), state, info=info)
