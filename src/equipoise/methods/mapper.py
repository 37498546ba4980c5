"""Every client fits a model of its own on top of the central one, and picks how much of it to mix in.

Mansour, Mohri, Ro, Suresh, "Three approaches for personalization with applications to federated learning", 2020,
section 5 (model interpolation), Algorithm Mapper.

    client:  for each lam of `lams`, from h = own_k:  h <- h - lr * lam grad F_k(lam h + (1 - lam) w; b)     w fixed
             own_k, lam_k <- the h and lam with the lowest training loss F_k(lam h + (1 - lam) w)
             u_k = lr * (1 - lam_k) grad F_k(lam_k own_k + (1 - lam_k) w; b)     one gradient in w: this alone is sent
    server:  as FedAvg:  w <- w - sum_k n_k u_k / sum_k n_k
    after:   every client fits own_k and lam_k once more, to the final w;   it uses lam_k own_k + (1 - lam_k) w

Departures: the paper minimises over own model and lam; here lam is one of a few and own models take a round's local
steps, from where the client's last one ended, as in the program that Ditto's authors released (with lams 0.25, 0.5,
0.75). The gradient that is sent is that of the last local step, taken just before own_k moved, on that step's batch.
The final fit is ours: w has moved since a client was last drawn (Ditto's authors finetune the mixture instead). Until
its first round, and without data, a client uses w. The paper's text could not be looked up again: from memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.core import At, ClientRule, Mean, Method, Objective, ServerRule, State, WeightedMean
from equipoise.errors import require


@dataclass(frozen=True)
class Mapper(ClientRule):
    """lams: shares of the own model to choose from, each above 0 and at most 1; (1,) is local training, and w stays
    as it was. Towards 0 it becomes FedSGD."""

    lams: tuple[float, ...] = (0.25, 0.5, 0.75)
    objective: Objective = Mean()
    personalised = True

    def __post_init__(self) -> None:
        good = len(self.lams) > 0 and all(0 < lam <= 1 for lam in self.lams)
        require(good, "mapper: lams", list(self.lams), "one or more shares, each above 0 and at most 1")

    def init(self, w: Tensor) -> State:
        return {"own": w.clone(), "lam": w.new_zeros(len(w))}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        trials = state["own"][:, None].expand(-1, len(self.lams), -1)
        return received, {"trials": trials, "grads": torch.zeros_like(trials)}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        grads = at.grad(self._mixed(state["trials"], w))
        trials = at.descend(state["trials"], w.new_tensor(self.lams)[:, None] * grads)
        return w, {**state, "trials": trials, "grads": grads}

    def _mixed(self, trials: Tensor, w: Tensor) -> Tensor:
        """[K, C, d]: lam h + (1 - lam) w for each trial."""
        lams = w.new_tensor(self.lams)[:, None]
        return lams * trials + (1 - lams) * w[:, None]

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        risks = at.risk(self._mixed(state["trials"], w))
        best = torch.nan_to_num(risks, nan=torch.inf).argmin(1)  # the first of equals
        rows = torch.arange(len(w), device=w.device)
        lam = torch.where(at.size() > 0, w.new_tensor(self.lams)[best], state["lam"])
        kept = {**state, "own": state["trials"][rows, best], "lam": lam}
        return at.descend(w, (1 - lam[:, None]) * state["grads"][rows, best]), kept

    def finish(self) -> ClientRule | None:
        return self

    def personal(self, w: Tensor, state: State) -> Tensor:
        lam = state["lam"][:, None]
        return lam * state["own"] + (1 - lam) * w


def mapper(lams: tuple[float, ...] = (0.25, 0.5, 0.75), *, server: ServerRule = WeightedMean()) -> Method:
    return Method("mapper", Mapper(tuple(lams)), server)
