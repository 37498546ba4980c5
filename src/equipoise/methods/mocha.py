"""Every client has a model of its own; how closely models are held together is learned, pair by pair.

Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NeurIPS 2017, Algorithm 1 and Equation 1, with the
relations of Zhang, Yeung, "A convex formulation for learning task relationships in multi-task learning", UAI 2010.

    min over W, S:  sum_k F_k(w_k) + lam/2 tr(W S^-1 W')      W = [w_1 .. w_n], S >= 0, tr S = 1;  S = I/n at first
    client:  w_k <- w_k - lr * grad F_k(w_k)                  `steps` times, over all of its data, from its own model
    server:  W   <- argmin_X  ||X - W||^2 / (2 steps lr) + lam/2 tr(X S^-1 X')       = W (I + steps lr lam S^-1)^-1
             S   <- (W'W + eps m I)^(1/2) / tr(...)           every `every` rounds;   m: mean eigenvalue of W'W
             w_k goes back to client k alone;   the global model is the mean of all w_k

A round is one step of the proximal gradient method on the problem in W: for convex F_k, steps = 1 and lr at most one
over the largest curvature of any F_k, it converges to the W that is best for S, as MOCHA does. With more steps it gets
near faster, and to a point that is off by the order of steps * lr. Absent clients' models count as they are, and stay.
The server holds everyone's model, and inverts a matrix as wide as there are clients in every round.

Departures: MOCHA solves the dual problem, by coordinate ascent on one variable per sample (SDCA); this is the primal. A
client's state here has the same size for all clients and is made before it is known how many samples they hold, and a
rule sees losses but not their conjugates, which SDCA needs. F_k is the client's mean loss, where the paper has the sum:
its lam is n_k times ours. eps is ours, as in Argyriou, Evgeniou, Pontil, "Convex multi-task feature learning", 2008:
without it models that were once equal could never part again. The paper's nodes start from 0, here from the run's
initial model. A client that comes late is unrelated to all others until S is next learned. The paper is about linear
models; others run, without any guarantee and with a `reason` in the log: models = "convex" refuses them.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from equipoise.core import At, Cohort, EquipoiseError, Method, Outcome, Schedule, ServerRule, State, Stream
from equipoise.errors import positive, require
from equipoise.methods._personal import require_strength
from equipoise.methods.local import Alone

Models = Literal["any", "convex"]


@dataclass(frozen=True)
class OwnTask(Alone):
    """Gradient steps on a model of one's own, which becomes what the server makes of it. A round without an answer is
    forgotten. steps: how many gradient steps a round has, 1 or more; 1 is exact. models: "any", or "convex", which
    refuses models with hidden layers."""

    steps: int = 1
    models: Models = "any"

    def __post_init__(self) -> None:
        require(self.steps >= 1, "mocha: steps", self.steps, "1 or more; 1 is exact")
        require(self.models in get_args(Models), "mocha: models", self.models, 'use "any" or "convex"')
        self.__dict__.update(features=2 if self.models == "convex" else 0)

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return Schedule(steps=self.steps, batch=None)

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        if self.models == "convex" and len(at.features(w)) > 1:
            hint = 'use the model "linear", or models = "any" to run without a guarantee'
            raise EquipoiseError("mocha: the model has hidden layers, so that its loss is not convex", hint)
        return super().step(w, state, at)

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, state

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        # From the old model, not from `end`: the server's copy and the client's stay the same to the bit.
        return {**state, "own": state["own"] + download}


@dataclass(frozen=True)
class Relations(ServerRule):
    """lam: strength of the coupling, 0 or more; 0 is local training, towards infinity all models go to 0.

    every: rounds between two looks at who is related, 1 or more. eps: how related even the unrelated are, above 0.
    steps: local steps of the clients in a round.
    """

    lam: float = 1e-3
    every: int = 10
    eps: float = 1e-3
    steps: int = 1
    per_client = True

    def __post_init__(self) -> None:
        require_strength("mocha", self.lam, "local training")
        require(self.every >= 1, "mocha: every", self.every, "a number of rounds, 1 or more")
        require(positive(self.eps), "mocha: eps", self.eps, "above 0, such as 1e-3")
        require(self.steps >= 1, "mocha: steps", self.steps, "1 or more; 1 is exact")

    def init(self, w: Tensor) -> State:
        """The clients heard of, ascending, their models and relations; and the model that newcomers start from."""
        none = w.new_empty((0, 0), dtype=torch.float64)
        ids = torch.empty(0, dtype=torch.int64, device=w.device)
        return {"ids": ids, "models": w.new_empty((0, len(w))), "relations": none, "initial": w.clone()}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        ids, models, relations = _enrolled(state, cohort.ids)
        here = torch.searchsorted(ids, cohort.ids)
        old = models[here]
        coupled = self._coupled(models.to(torch.float64), old - cohort.updates, here, relations, cohort.lr)
        downloads = coupled.to(old.dtype) - old
        models = models.index_copy(0, here, old + downloads)
        looks = (cohort.round + 1) % self.every == 0
        mean = models.mean(0, dtype=torch.float64).to(old.dtype)
        kept = {"ids": ids, "models": models, "initial": state["initial"]}
        kept["relations"] = related(models, self.eps) if looks else relations
        info = {"relations": "learned" if looks else "kept", **_doubt(len(cohort.layout.layers()))}
        return Outcome(cohort.start - mean, kept, downloads, info=info)

    def _coupled(self, models: Tensor, new: Tensor, here: Tensor, relations: Tensor, lr: float) -> Tensor:
        """[K, d]: the proximal step of the cohort's models, with all others where they are."""
        inverse = self.steps * lr * self.lam * torch.linalg.inv(relations)[here]
        absent = models.index_fill(0, here, 0.0)
        rest = new.to(torch.float64) - inverse @ absent
        eye = torch.eye(len(here), dtype=torch.float64, device=new.device)
        coupled: Tensor = torch.linalg.solve(eye + inverse[:, here], rest)
        return coupled


def related(models: Tensor, eps: float) -> Tensor:
    """[n, n] float64: (W'W + eps m I)^(1/2), divided by its trace; the identity / n where all models are 0."""
    rows = models.to(torch.float64)
    rows = rows / rows.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)  # relations have no scale
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    values = values.clamp(min=0.0)
    mean = values.mean()
    roots: Tensor = (values + eps * torch.where(mean > 0, mean, 1.0)).sqrt()
    relations: Tensor = (vectors * (roots / roots.sum())) @ vectors.T
    return relations


def _enrolled(state: State, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, models and relations with newcomers among them: at the initial model, and related to nobody."""
    new = ids[~torch.isin(ids, state["ids"])]
    every, order = torch.cat([state["ids"], new]).sort()
    models = torch.cat([state["models"], state["initial"].expand(len(new), -1)])[order]
    before, n = len(state["ids"]), len(every)
    relations = torch.eye(n, dtype=torch.float64, device=ids.device) / n
    relations[:before, :before] = state["relations"] * (before / n)
    return every, models, relations[order][:, order]


def _doubt(layers: int) -> dict[str, str]:
    return {"reason": f"the model has {layers} layers: not convex, without a guarantee"} if layers > 1 else {}


def mocha(lam: float = 1e-3, *, every: int = 10, eps: float = 1e-3, steps: int = 1, models: Models = "any") -> Method:
    return Method("mocha", OwnTask(steps=steps, models=models), Relations(lam, every, eps, steps))
