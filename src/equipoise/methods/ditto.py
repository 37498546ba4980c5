"""Every client keeps a personal model that is pulled towards the global one: an add-on to any method and any rule.

Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1 and
the objective (Ditto) of section 3.1; the choice of lam per device is that of section 4, "Setup".

    client:  w_k <- what the base method does, by default w_k - lr * grad F_k(w_k; b), from w_k = w; this alone is sent
             v_k <- v_k - lr * (grad F_k(v_k; b) + lam (v_k - w))     on the same batches b; v_k is kept between rounds
    server:  what the base method does, by default the plain mean
    choose = "fixed"       lam for everyone
             "validation"  one v_k for each lam in (0.1, 1, 2); the client uses the one with the lowest validation loss
             "greedy"      one v_k; every step is tried with each lam, the one with the lowest validation loss is taken
    solver = "finetune"    w alone is trained; after the last round v_k goes from w through `finetune_epochs` epochs of
                           the step above, with w at its final value; until then clients use w

With strong = true the candidates are (0.05, 0.1, 0.2). A client with fewer than 4 validation samples cannot choose: it
uses `lam`, or 0.1 with strong = true. The step of v diverges on any loss once lr * lam > 2 (and earlier where the loss
is curved): there is a warning.

Departures: "validation" chooses by the validation losses after the client's latest round, so what counts is how its
models are now; the paper does not say when devices choose, and "greedy" is what its released program does. The paper
leaves open what 4 or 5 validation samples mean: here they are enough to choose. It finetunes for the number of steps
that turned out best; here for a given number of epochs, 50 as for its other finetuned methods. v_k descends the base
method's objective. A candidate model that is no longer finite starts again from the received model. What a base method
would do after the last round is left out: clients use v_k.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from equipoise.core import (
    SGD,
    At,
    ClientRule,
    EquipoiseError,
    Method,
    Schedule,
    ServerRule,
    State,
    Stream,
    WeightedMean,
)
from equipoise.errors import not_negative, require
from equipoise.layout import all_at_hand, finite_rows

Solver = Literal["joint", "finetune"]
Choose = Literal["fixed", "validation", "greedy"]

_ENOUGH = 4  # validation samples to choose lam with
_BASE = "base."  # before the names of the base rule's state, so that they cannot clash with ours


@dataclass(frozen=True)
class Ditto(ClientRule):
    """lam: strength of the pull, 0 or more; 0 is local training, towards infinity v becomes w. solver: "joint" trains v
    beside w in every round, "finetune" starts it from w after the last one. strong: whether clients believe that the
    attack is strong, and choose from (0.05, 0.1, 0.2) in place of (0.1, 1, 2). candidates: other strengths to choose
    from. finetune_epochs: how long "finetune" goes on, 1 or more.
    """

    lam: float = 1.0
    base: ClientRule = SGD()
    solver: Solver = "joint"
    choose: Choose = "fixed"
    strong: bool = False
    candidates: tuple[float, ...] = ()
    finetune_epochs: int = 50
    personalised = True

    def __post_init__(self) -> None:
        _check(self)
        base = self.base
        self.__dict__.update(objective=base.objective, batches=base.batches, features=base.features)

    # ------------------------------------------------------------------------------------------ what the base rule does

    def prepare(self, state: State, at: At) -> State:
        return {**_own(state), **_named(self.base.prepare(_inner(state), at))}

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return self.base.schedule(given, round, stream)

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        return self.base.report(_inner(state), at)

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        return {**_own(state), **_named(self.base.receive(end, _inner(state), download))}

    # ------------------------------------------------------------------------------------------------ and v beside it

    def init(self, w: Tensor) -> State:
        inner = _named(self.base.init(w))
        state = {"v": self.copies(w).clone()}
        if self.choose == "validation":
            state["risk"] = w.new_zeros(state["v"].shape[:2])
        if self.solver == "finetune":
            state["tuned"] = torch.zeros(len(w), dtype=torch.bool, device=w.device)
        return {**state, **inner}

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        warn_if_unstable(at.lr, max(self.strengths()))
        start, extra = self.base.begin(received, _inner(state), at)
        return start, _named(extra)

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, inner = self.base.step(w, _inner(state), at)
        own = _own(state)
        if self.solver == "joint":
            own["v"] = self.improve(own["v"], at)
        return w, {**own, **_named(inner)}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        w, inner = self.base.end(w, _inner(state), at)
        own = _own(state)
        return w, {**(self.judged(own, at) if self.solver == "joint" else own), **_named(inner)}

    def finish(self) -> ClientRule | None:
        return Finetuning(self) if self.solver == "finetune" else None

    def outward(self) -> ClientRule:
        return self.base

    def personal(self, w: Tensor, state: State) -> Tensor:
        v = _best(state["v"], state["risk"]) if self.choose == "validation" else state["v"]
        return torch.where(state["tuned"][:, None], v, w) if self.solver == "finetune" else v

    # ------------------------------------------------------------------------------------------------- personal models

    def copies(self, w: Tensor) -> Tensor:
        """Where personal models start from: w itself [K, d], or one for each candidate [K, C, d]."""
        return w[:, None].expand(-1, len(self.strengths()), -1) if self.choose == "validation" else w

    def strengths(self) -> tuple[float, ...]:
        """The values of lam that are in play."""
        if self.choose == "fixed":
            return (self.lam,)
        return self.candidates or ((0.05, 0.1, 0.2) if self.strong else (0.1, 1.0, 2.0))

    def improve(self, v: Tensor, at: At) -> Tensor:
        """One step of the personal models."""
        if self.choose == "fixed":
            return _pulled(v, at.grad(v), self.lam, at)
        lams = self._lams(at)
        if self.choose == "validation":
            return _pulled(v, at.grad(v), lams, at)
        trials = _pulled(v[:, None], at.grad(v)[:, None], lams, at)
        return _best(trials, at.risk(trials, "validation"))

    def _lams(self, at: At) -> Tensor:
        """[K, C, 1]: each candidate for each client; all the same for those that cannot choose."""
        strengths = at.received.new_tensor(self.strengths())[:, None]
        fixed = torch.full_like(strengths, 0.1 if self.strong else self.lam)
        return torch.where((at.size("validation") >= _ENOUGH)[:, None, None], strengths, fixed)

    def judged(self, own: State, at: At) -> State:
        """The state with the validation losses of a client's candidates, by which it chooses."""
        if self.choose != "validation":
            return own
        good = finite_rows(own["v"], 2)
        v = own["v"] if all_at_hand(good) else torch.where(good[..., None], own["v"], at.received[:, None])
        return {**own, "v": v, "risk": torch.nan_to_num(at.risk(v, "validation"), nan=torch.finfo(v.dtype).max)}


@dataclass(frozen=True)
class Finetuning(ClientRule):
    """After the last round: every client trains personal models, from the global one and pulled towards it."""

    ditto: Ditto
    personalised = True

    def __post_init__(self) -> None:
        self.__dict__.update(objective=self.ditto.objective)

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return replace(given, epochs=self.ditto.finetune_epochs, steps=None)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        warn_if_unstable(at.lr, max(self.ditto.strengths()))
        return received, {"v": self.ditto.copies(received), "tuned": torch.ones_like(state["tuned"])}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, {**state, "v": self.ditto.improve(state["v"], at)}

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, self.ditto.judged(state, at)


def warn_if_unstable(lr: float, lam: float) -> None:
    """v - lr * lam (v - w) overshoots w by more than it was away once lr * lam > 2, whatever the loss."""
    if lr * lam > 2:
        text = f"ditto: lr * lam is {lr:g} * {lam:g}, above 2: personal models diverge; lower train.lr or lam"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def optimal_lam(sigma: float, n: int, tau: float, clients: int = 1, malicious: int = 0, tau_a: float = 0.0) -> float:
    """Theorem 8: the lam with the lowest error, and the lowest deviation of it, of benign clients in point estimation.

    `n` observations with noise sigma on each client; the clients' points have deviation tau, tau_a for the malicious.
    """
    spread = clients * tau**2 + (malicious * (tau_a**2 - tau**2) / (clients - 1) if malicious else 0.0)
    return sigma**2 / n * clients / spread


def _pulled(v: Tensor, grad: Tensor, lam: float | Tensor, at: At) -> Tensor:
    """v - lr (grad + lam (v - w)) as a step from lr lam of the way to w: half as many passes over the rows."""
    way = torch.as_tensor(at.lr * lam, dtype=v.dtype, device=v.device)
    w = at.received if v.dim() == 2 else at.received[:, None]
    return at.descend(torch.lerp(v, w, way), grad)


def _best(models: Tensor, risks: Tensor) -> Tensor:
    """[K, d]: of each client's C models the one with the lowest risk, the first of equals."""
    chosen = torch.nan_to_num(risks, nan=torch.inf).argmin(1)
    return models[torch.arange(len(models), device=models.device), chosen]


def _inner(state: State) -> State:
    return {n.removeprefix(_BASE): t for n, t in state.items() if n.startswith(_BASE)}


def _own(state: State) -> State:
    return {n: t for n, t in state.items() if not n.startswith(_BASE)}


def _named(inner: State) -> State:
    return {_BASE + n: t for n, t in inner.items()}


def _check(rule: Ditto) -> None:
    require(not_negative(rule.lam), "ditto: lam", rule.lam, "0 or more; 0 is local training")
    if rule.solver not in ("joint", "finetune"):
        raise EquipoiseError(f"ditto: solver is {rule.solver!r}", 'use "joint" or "finetune"')
    if rule.choose not in ("fixed", "validation", "greedy"):
        raise EquipoiseError(f"ditto: choose is {rule.choose!r}", 'use "fixed", "validation" or "greedy"')
    each = all(map(not_negative, rule.candidates))
    require(each, "ditto: candidates", list(rule.candidates), "values of lam, each 0 or more")
    unused = "strong" if rule.strong else "candidates" if rule.candidates else ""
    if unused and rule.choose == "fixed":
        hint = 'set choose = "validation" or "greedy", or set lam'
        raise EquipoiseError(f'ditto: {unused} is set, but choose is "fixed"', hint)
    if rule.finetune_epochs < 1:
        raise EquipoiseError(f"ditto: finetune_epochs is {rule.finetune_epochs}", "1 or more")


def ditto(
    lam: float | None = None,
    *,
    base: Method | None = None,
    server: ServerRule | None = None,
    solver: Solver = "joint",
    choose: Choose | None = None,
    strong: bool = False,
    candidates: tuple[float, ...] = (),
    finetune_epochs: int = 50,
) -> Method:
    """base: gives client and server rule of the global model; left out: FedAvg with the plain mean. choose: "fixed",
    lam for everyone; or by validation losses, "validation", a model for each candidate, of which the best is used, or
    "greedy", the best candidate in every step; left out: "fixed" if lam is given, otherwise "validation".
    """
    name = f"ditto+{base.name}" if base else "ditto"
    base = base or Method(server=WeightedMean("uniform"))
    how: Choose = choose or ("validation" if lam is None else "fixed")
    client = Ditto(1.0 if lam is None else lam, base.client, solver, how, strong, candidates, finetune_epochs)
    return Method(name, client, base.server if server is None else server)
