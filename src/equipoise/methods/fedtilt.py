"""Clients tilt their loss between samples and between classes and keep a personal model; the server tilts its centre.

Zhang, Mares De La Cruz, Wang, "FedTilt: towards multi-level fairness-preserving and robust federated learning", 2025,
Algorithm 1 and Equations 8 to 11.

    R_c    = (1/lam) log mean_{z in c} exp(lam l_z)                       the loss of class c of client k
    R_k    = (1/tau) log( (1/n) sum_c n_c exp(tau R_c) )                  the loss of client k
    client:  w_k <- w_k - lr * grad R_k(w_k; b)                           from w_k = w; this alone is sent
             v_k <- v_k - lr * (grad R_k(v_k; b) + mu (v_k - w))          on the same batches b; v_k is kept and used
    server:  w   <- argmin_w G,  G = (1/q) log mean_k exp(q dist(w_k, w))
             q = 0, dist = "squared":  the plain mean of w_k
             else `steps` times:  p <- p - 2 eta3 (p - sum_k a_k u_k),  a = softmax(q dist),  dist_k = ||p - u_k||^2,
             from p = 0, then w <- w - p, with u_k = w - w_k; this is p <- p - eta3 grad G

Positive tilts even out (lam between the samples of a class, tau between classes, q between clients); negative lam and
q ignore what is far off, and a negative tau favours the class that is served best and may give another one up; 0 is the
mean. With lam = tau = q = 0 it is Ditto with the plain mean. The client is Ditto's with a tilted loss.

Departures: lines 14 and 15 of Algorithm 1, which restart at every batch, are read as SGD that goes on from batch to
batch. One step size, the run's, stands for eta1 and eta2. Tilts work within a batch, where absent classes are left out;
full_batch = true takes all samples at once. The paper calls dist Euclidean, but its propositions need the square, which
is the default; dist = "l2" is the norm itself, and with q = 0 the geometric median. There p starts at the median of
each coordinate of u_k, because a client that sends nothing would hold p = 0 fast (with q > 0 and any dist at the mean
of u_k: G is convex, and it is the faster start); norms are smoothed to sqrt(dist^2 + e^2), with e a millionth of the
median distance at the start; and a_k is softmax(q dist)_k / dist_k, scaled to sum to 1 (Weiszfeld's step, for which
eta3 needs no unit). A step that would raise G is not taken, and eta3 is halved for the rest of the round: for q <= 0
and eta3 <= 1/2 this cannot happen, for large q gradient steps would oscillate. normalise_dist divides dist by its
median at the start (of those above 0), so that the meaning of q depends neither on the model's size nor on the step
size; a mean would let a single huge update switch the tilt off. The paper names no default tilts: ours are its best on
clean MNIST and Fashion-MNIST. It does not give E2 and eta3 (`steps`, eta3) either: 1/2 is the step that leads to the
mean at once when q = 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from equipoise.core import (
    At,
    ClientRule,
    Cohort,
    EquipoiseError,
    Method,
    Objective,
    Outcome,
    Schedule,
    ServerRule,
    State,
    Stream,
)
from equipoise.errors import not_negative, require
from equipoise.methods.ditto import Ditto
from equipoise.objectives import NO_TILT, ClassTilted, check_tilt, tilted, tilts

Distance = Literal["squared", "l2"]

_CHUNK = 1 << 22  # numbers that are float64 at a time
_LARGEST, _SMALLEST = 1e300, 1e-280  # squared distances count as no more, units as no less: never inf, 0/0 or NaN


@dataclass(frozen=True)
class Tilting(ClientRule):
    """SGD on a client's tilted loss. full_batch: every step sees all samples, whatever the run's batch size is."""

    objective: Objective = ClassTilted()
    full_batch: bool = False

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return replace(given, batch=None) if self.full_batch else given

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return at.descend(w, at.grad(w)), state


@dataclass(frozen=True)
class TiltedCentre(ServerRule):
    """The point whose tilted distance to the clients' models is smallest.

    q: the tilt between clients, any sign; 0 is the mean (dist = "squared") or the geometric median ("l2"), towards
    +infinity the centre of the smallest ball around all models, towards -infinity one client's model. dist: what is
    tilted: "squared" distances between models, or "l2", the distances. normalise_dist: whether distances are divided by
    their median first, so that q means the same for every model and step size. steps: how many steps lead to the
    centre, 1 or more. eta3: the size of such a step, above 0, below 1; 0.5 leads to the mean at once when q = 0.
    """

    q: float = 0.0
    dist: Distance = "squared"
    normalise_dist: bool = False
    steps: int = 20
    eta3: float = 0.5

    def __post_init__(self) -> None:
        check_tilt("fedtilt", "q", self.q)
        if self.dist not in ("squared", "l2"):
            raise EquipoiseError(f"fedtilt: dist is {self.dist!r}", 'use "squared" or "l2"')
        if self.steps < 1:
            raise EquipoiseError(f"fedtilt: steps is {self.steps}", "1 or more")
        if not 0.0 < self.eta3 < 1.0:
            raise EquipoiseError(f"fedtilt: eta3 is {self.eta3}", "above 0 and below 1")
        # With q < 0 a few equal updates attract the centre, so only the geometric median earns the word.
        self.__dict__.update(robust=self.dist == "l2" and abs(self.q) < NO_TILT)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        updates = cohort.updates
        if self.dist == "squared" and abs(self.q) < NO_TILT:
            equal = _uniform(updates)
            return Outcome(_combine(equal, updates).to(updates.dtype), state, info={"weights": equal})
        p, weights, value, moved = self._minimise(updates)
        info = {"weights": weights, "objective": value, "steps": moved}
        if moved == 0:
            info["reason"] = "no step lowers the objective"
        return Outcome(p.to(updates.dtype), state, info=info)

    def _minimise(self, updates: Tensor) -> tuple[Tensor, Tensor, float, int]:
        """The centre, the clients' weights there, G there, and how many steps were taken."""
        p = self._start(updates)
        apart = _squared_distances(updates, p)
        unit, rate, moved = _typical(apart), 2.0 * self.eta3, 0
        weights, value = self._tilt(apart, unit)
        for _ in range(self.steps):
            trial = torch.lerp(p, _combine(weights, updates), rate)
            new_weights, new_value = self._tilt(_squared_distances(updates, trial), unit)
            if new_value > value:
                rate /= 2
            else:
                p, weights, value, moved = trial, new_weights, new_value, moved + 1
        return p, weights, value, moved

    def _start(self, updates: Tensor) -> Tensor:
        if self.q >= NO_TILT:
            return _combine(_uniform(updates), updates)
        return (updates.median(0).values if self.dist == "l2" else torch.zeros_like(updates[0])).to(torch.float64)

    def _tilt(self, apart: Tensor, unit: float) -> tuple[Tensor, float]:
        """The weights whose mean of the updates G pulls towards, and G, from squared distances."""
        dist = apart if self.dist == "squared" else (apart + 1e-12 * unit).sqrt()
        if self.normalise_dist:
            dist = dist / (unit if self.dist == "squared" else unit**0.5)
        dist = dist.clamp(max=_LARGEST / max(1.0, abs(self.q)))
        weights = tilts(dist, self.q)
        if self.dist == "l2":
            weights = weights / dist
            weights = weights / weights.sum()
        return weights, float(tilted(dist, self.q))


def _uniform(updates: Tensor) -> Tensor:
    return torch.full((len(updates),), 1.0 / len(updates), dtype=torch.float64, device=updates.device)


def _typical(apart: Tensor) -> float:
    """The median of those above 0; 1 if there are none."""
    above = apart[apart > 0]
    return max(float(above.median()), _SMALLEST) if len(above) else 1.0


def _pieces(updates: Tensor) -> Iterator[slice]:
    k, d = updates.shape
    width = max(1, _CHUNK // max(1, k))
    yield from (slice(a, min(a + width, d)) for a in range(0, d, width))


def _squared_distances(updates: Tensor, p: Tensor) -> Tensor:
    """[K]: ||u_k - p||^2 in float64, from the differences themselves, a few columns at a time."""
    total = torch.zeros(len(updates), dtype=torch.float64, device=updates.device)
    for piece in _pieces(updates):
        total += (updates[:, piece].to(torch.float64) - p[piece]).square().sum(1)
    return total.clamp(max=_LARGEST)


def _combine(weights: Tensor, updates: Tensor) -> Tensor:
    """[d]: sum_k weights_k u_k in float64."""
    return torch.cat([weights @ updates[:, piece].to(torch.float64) for piece in _pieces(updates)])


def fedtilt(
    lam: float = 100.0,
    tau: float = 50.0,
    mu: float = 0.01,
    q: float = 0.0,
    *,
    full_batch: bool = False,
    dist: Distance = "squared",
    normalise_dist: bool = False,
    steps: int = 20,
    eta3: float = 0.5,
    server: ServerRule | None = None,
) -> Method:
    """lam: the tilt between the samples of a class, any sign; 0 is their mean. tau: the tilt between the classes of a
    client, any sign; 0 is their mean by size. mu: strength of the pull on personal models, 0 or more; 0 is local
    training. server: a rule in place of the tilted centre."""
    require(not_negative(mu), "fedtilt: mu", mu, "0 or more; 0 is local training")
    check_tilt("fedtilt", "lam", lam)
    check_tilt("fedtilt", "tau", tau)
    centre = TiltedCentre(q, dist, normalise_dist, steps, eta3)
    if server is not None and centre != TiltedCentre():
        raise EquipoiseError(f"fedtilt: server is {type(server).__name__}, and q or its options are set", "give one")
    return Method("fedtilt", Ditto(mu, Tilting(ClassTilted(lam, tau), full_batch)), server or centre)
