"""FedAvg that listens more to clients whose loss is further above what they reach alone, so that these gaps even out.

Erraji, Perrot, Bellet, "Loss gap parity for fairness in heterogeneous federated learning" (EAGLE), 2026, Algorithm 1,
the gradient below Equation 4, and section 3.2 for the optima and the normalisation.

    before round 0:  L*_k = validation loss of the model that client k trains alone until it stops improving
    client:  r_k = L_k^val(w) - L*_k  at the received w;   w_k <- w_k - lr * a_k * grad L_k(w_k; b)
    server:  w <- mean_k w_k;   a_k = 1 + 4 lam K/(K-1) (r_k - mean r)  for the next round, 1 for the first
             divided by ||a||_2 (scale "norm"), by ||a||_2 / sqrt(K) ("sqrt_k"), or not at all ("none")

(1/K) sum_k a_k grad L_k is the gradient of mean_k L_k + lam/(K(K-1)) sum_{k,j} (r_k - r_j)^2, which is mean_k L_k plus
2 lam times the gaps' sample variance. The weights sum to K; a negative one is kept, and its client climbs.

Departures: the paper prints the objective as the mean plus V (Equation 3) and as the pairs above (Equation 4); they
differ by the factor 2 lam, and its algorithm's weights belong to the second. It has every client in every round. With
fewer, each client's last known gap is kept, the mean and the norm are taken over all clients, and those not heard of
yet count with the mean gap, that is with weight 1 before scaling; "norm" then divides by the weights' root mean square
times the square root of the number drawn, which is ||a||_2 when all are drawn. A client without validation data, or
whose training alone diverged, counts with the mean gap too: its training loss would be no gap in the paper's sense.
"sqrt_k" is ours: with it lam = 0 is FedAvg with a plain mean, while with "norm" all steps are also about sqrt(K) times
shorter, so that lam and the step size are confounded. Alone a client trains until its curve of losses flattens
(Appendix B.1); where it has spikes, the model of the lowest training loss is kept. The paper has a cap on that too, and
does not name it; ours is for small experiments.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.core import (
    At,
    ClientRule,
    Cohort,
    EquipoiseError,
    Mean,
    Method,
    Objective,
    Outcome,
    ServerRule,
    State,
    Stop,
    WeightedMean,
)
from equipoise.errors import not_negative, require

Scale = Literal["norm", "sqrt_k", "none"]
_HUGE = 1e100  # gaps are cut here: squares of what a client may claim must not overflow


@dataclass(frozen=True)
class EAGLE(ClientRule):
    """stop: when training alone counts as converged, or has gone on for long enough (the paper names no cap)."""

    stop: Stop = Stop()
    objective: Objective = Mean()
    needs = frozenset({"validation"})

    def __post_init__(self) -> None:
        if not 0 <= self.stop.tolerance < 1:
            raise EquipoiseError(f"eagle: tolerance is {self.stop.tolerance}", "from 0 up to (not including) 1")
        if self.stop.window < 1 or self.stop.cap < 1:
            found = f"window is {self.stop.window}, cap is {self.stop.cap}"
            raise EquipoiseError(f"eagle: {found}", "numbers of epochs, 1 or more")

    def init(self, w: Tensor) -> State:
        return {"optimum": w.new_zeros(len(w)), "measured": w.new_zeros(len(w))}

    def prepare(self, state: State, at: At) -> State:
        has = at.size("validation") > 0
        if not bool(has.any()):
            return state  # nothing to measure on: spare the training
        optimum = at.risk(at.fit_alone(self.stop), "validation")
        measured = has & torch.isfinite(optimum)
        return {
            "optimum": torch.where(measured, optimum, torch.zeros_like(optimum)),
            "measured": measured.to(optimum.dtype),
        }

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        gap = at.risk(at.received, "validation") - state["optimum"]
        return {"gap": gap, "measured": state["measured"] > 0}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        if "weight" not in at.message:
            raise EquipoiseError("eagle: the server sent no weight", "its clients need the server rule GapWeights")
        return received, {}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.message["weight"].to(w.dtype)[:, None] * at.grad(w)), state


@dataclass(frozen=True)
class GapWeights(ServerRule):
    """lam: strength of the pull towards equal gaps, 0 or more; 0 is FedAvg (up to `scale`). The paper: 0.1 to 5.
    scale: what weights are divided by: "norm", their length, as published; "sqrt_k", their root mean square, with which
    lam = 0 is FedAvg; or "none"."""

    lam: float = 1.0
    scale: Scale = "norm"
    per_client = True

    def __post_init__(self) -> None:
        require(not_negative(self.lam), "eagle: lam", self.lam, "0 or more; 0 is FedAvg")
        if self.scale not in get_args(Scale):
            raise EquipoiseError(f"eagle: scale is {self.scale!r}", f"one of {', '.join(get_args(Scale))}")

    def init(self, w: Tensor) -> State:
        """The clients heard of, ascending, their last gaps and whether they could measure one; how many there are."""
        ids = torch.empty(0, dtype=torch.int64, device=w.device)
        none = ids.to(torch.bool)
        return {"ids": ids, "gap": ids.to(torch.float64), "measured": none, "clients": ids.new_zeros(())}

    def plan(self, ids: Tensor, state: State) -> dict[str, Tensor]:
        n, known, gap = int(state["clients"]), state["ids"][state["measured"]], state["gap"][state["measured"]]
        n = max(n, 1)  # before the first round nobody is known
        own = 1 + 4 * self.lam * n / max(n - 1, 1) * (gap - gap.mean())
        first, last = torch.searchsorted(known, ids), torch.searchsorted(known, ids, right=True)
        weight = torch.ones(len(ids), dtype=own.dtype, device=own.device)
        weight[last > first] = own[first[last > first]]
        if self.scale == "none":
            return {"weight": weight}
        square = (own.square().sum() + (n - len(own))) / n  # never below 1: the weights of all n clients sum to n
        return {"weight": weight / square.sqrt() / (sqrt(len(ids)) if self.scale == "norm" else 1.0)}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        if "gap" not in cohort.signals:
            raise EquipoiseError("eagle: clients report no gap", "GapWeights needs the client rule EAGLE")
        gap = cohort.signals["gap"].to(torch.float64)
        measured = cohort.signals.get("measured", torch.ones_like(gap)).to(torch.bool)
        old = ~torch.isin(state["ids"], cohort.ids)
        ids, order = torch.cat([cohort.ids, state["ids"][old]]).sort()
        new = {
            "ids": ids,
            "gap": torch.cat([gap.clamp(-_HUGE, _HUGE), state["gap"][old]])[order],
            "measured": torch.cat([measured, state["measured"][old]])[order],
            "clients": torch.tensor(max(cohort.n_clients, len(ids)), device=ids.device),
        }
        reason = {} if bool(new["measured"].any()) else {"reason": "no client with validation data yet: equal weights"}
        info = {"gap": gap, "measured": measured.to(torch.int64), **reason}
        return Outcome(WeightedMean("uniform").combine(cohort), new, info=info)


def eagle(
    lam: float = 1.0, *, scale: Scale = "norm", tolerance: float = 1e-4, window: int = 100, cap: int = 500
) -> Method:
    """tolerance: the share by which a client's loss must still change in a window for it to go on training alone, from
    0 up to (not including) 1. window: the epochs of a window, 1 or more. cap: the most epochs of training alone, 1 or
    more."""
    return Method("eagle", EAGLE(Stop(tolerance, window, cap)), GapWeights(lam, scale))
