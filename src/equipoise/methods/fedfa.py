"""Clients count by how surprising their accuracy and their presence are; the server's steps have momentum.

Huang, Li, Wang, Du, Zhang, "Fairness and accuracy in federated learning" (FedFa), 2020 (Information Sciences 589,
2022).

    A_k = -log2(acc_k / sum_j acc_j),  B_k = -log2(1 - c_k / sum_j c_j)        over the clients j of this round
    a_k = (1 - beta) A_k / sum_j A_j + beta B_k / sum_j B_j
    m   <- gamma m + sum_k a_k u_k
    w   <- w - m
    client:  v <- local_gamma v + grad F_k(w_k; b),  w_k <- w_k - lr * v       from v = 0, w_k = w

acc_k is k's accuracy on its training data with the model it received, c_k in how many rounds it has been, this one too.

Departures: the text of the paper could be checked only in its abstract and in summaries: weights made of the
information in accuracy and frequency, momentum on both sides ("double momentum"). The equations of A, B and a are those
of several public programs, none by the authors. They disagree on momentum; the default is what the program behind
FedLF's comparison (Pan and others, AAAI 2024) does: the server's with gamma = 0.9, none on clients. local_gamma = 0.9
is the second one; each makes steps up to 10 times as long. acc_k is taken from the first batch of the round: a client
rule has no accuracy over a whole split. Clients that report none count with exp(-F_k), the geometric mean of the
probabilities that they gave the right answers. Shares count as at least 1e-6, as in those programs; if A or B says
nothing (one client, all accuracies 0) it is the same for all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise import history
from equipoise.core import At, ClientRule, Cohort, Mean, Method, Objective, Outcome, ServerRule, State, normalised
from equipoise.losses import correct
from equipoise.methods._reweighting import EVERYONE, check_share, equal, recalled, reported

_LEAST = 1e-6


@dataclass(frozen=True)
class Accurate(ClientRule):
    """SGD that reports its accuracy. local_gamma: momentum within a round, from 0 up to (not including) 1; 0 is SGD."""

    local_gamma: float = 0.0
    objective: Objective = Mean()

    def __post_init__(self) -> None:
        check_share("fedfa", "local_gamma", self.local_gamma, "from 0 up to (not including) 1; 0 is SGD", below=True)

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        if not bool(at.size().any()):
            return {"accuracy": at.received.new_zeros(len(at.received))}  # there is no batch to look at
        right = correct(at.outputs(at.received), at.y) & at.mask
        return {"accuracy": right.sum(1).to(at.received.dtype) / at.mask.sum(1).clamp(min=1)}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return received, {"v": torch.zeros_like(received)} if self.local_gamma else {}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        if self.local_gamma == 0:
            return at.descend(w, at.grad(w)), state
        v = self.local_gamma * state["v"] + at.grad(w)
        return at.descend(w, v), {**state, "v": v}


@dataclass(frozen=True)
class FedFa(ServerRule):
    """beta: how much presence counts against accuracy, from 0 to 1. gamma: the server's momentum, from 0 up to (not
    including) 1; 0 is a weighted mean."""

    beta: float = 0.5
    gamma: float = 0.9
    per_client = True

    def __post_init__(self) -> None:
        check_share("fedfa", "beta", self.beta, "from 0 (accuracy alone) to 1 (presence alone)")
        check_share("fedfa", "gamma", self.gamma, "from 0 up to (not including) 1; 0 is no momentum", below=True)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"losses"})

    def init(self, w: Tensor) -> State:
        return {**history.blank(count=w.new_zeros((), dtype=torch.float64)), "m": torch.zeros_like(w)}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        count = 1 + recalled(state, "count", cohort.ids, 0.0)
        a = _parts(-_accuracy(cohort).clamp(min=_LEAST).log(), cohort)  # dividing by the sum makes any base the same
        b = _parts(-(1 - normalised(count)).clamp(min=_LEAST).log(), cohort)
        weights = (1 - self.beta) * a + self.beta * b
        m = self.gamma * state["m"] + weights.to(cohort.updates.dtype) @ cohort.updates
        after = history.remember(_memory(state), cohort.ids, cohort.round, EVERYONE, count=count)
        return Outcome(m, {**after, "m": m}, info={"weights": weights, "rounds": count})


def _memory(state: State) -> State:
    return {n: t for n, t in state.items() if n != "m"}


def _accuracy(cohort: Cohort) -> Tensor:
    """[m]: acc_k / sum_j acc_j."""
    told = cohort.signals.get("accuracy")
    if told is None:
        return torch.softmax(-reported(cohort, "fedfa"), 0)
    return _parts(told.to(torch.float64).clamp(0.0, 1.0), cohort)


def _parts(x: Tensor, cohort: Cohort) -> Tensor:
    return normalised(x) if bool(x.any()) else equal(cohort)


def fedfa(beta: float = 0.5, gamma: float = 0.9, *, local_gamma: float = 0.0) -> Method:
    return Method("fedfa", Accurate(local_gamma), FedFa(beta, gamma))
