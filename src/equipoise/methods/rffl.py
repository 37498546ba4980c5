"""Participants keep models of their own and receive as much of the common update as their reputation allows.

Xu, Lyu, "Towards building a robust and fair federated learning system", 2020 (later "A reputation mechanism is all you
need"), Algorithm 1 and Equation 4.

    u_k    = start_k - end_k                        k's own model before and after training, ||u_k|| <= clip if given
    u      = sum_k p_k u_k                          p_k: last round's r_k; in the first round n_k / sum n
    r_k    <- alpha r_k + (1 - alpha) cos(u, u_k)   then divided by their sum over R
    R      <- R without every k with r_k < threshold / |R|, for good; r is divided by its sum again
    q_k    = r_k / max r                            with beta: tanh(beta r_k / max r) / tanh(beta)
    own_k  <- end_k - (largest(u, q_k) - p_k u_k)   largest: the share q_k of u that is largest in magnitude
    w      <- w - u                                 the server's own model

With q_k = 1 a participant ends at start_k - u - (1 - p_k) u_k: what it learned alone counts in full, once.

Departures: the paper prints the threshold as |R|/3, which nobody would pass; read as 1/(3|R|), as in the authors'
program (1/6 suits class imbalance). The paper does not say how shares are rounded; here up, in each tensor (or over the
whole model), and of equal magnitudes the first counts as larger. Options, off by default: `clip`, which only the
authors' program has (there participants cut their own step as well; here the server cuts what it uses), `grace` rounds
without removals, `beta`, and `subtract_own = false`, as in that program. Partial participation is ours: reputations are
divided by their sum over everyone known, the absent keep theirs and are not judged, and a newcomer's update has no
weight until it has been judged. Where a formula has no value, the log has a `reason`: with an aggregate of zero (to
1e-12 of what it is made of), or nobody on its side, reputations stay; where they sum to zero or less, negative ones
count as zero, as they do in weights.

Without `clip` a few free riders with large updates take over, and the honest are removed: whenever somebody may be
malicious, set it, to no more than the norm of an honest update. No setting withstands a majority that agrees with
itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.core import At, Cohort, Layout, Method, Outcome, ServerRule, State, normalised
from equipoise.errors import positive, require
from equipoise.history import joint
from equipoise.methods._rows import Table
from equipoise.methods.local import Alone
from equipoise.questions import Later, near, sent
from equipoise.solvers import Floats, Ints

Largest = Literal["tensor", "model"]

ROUNDING = 1e-12
"""An aggregate this short, relative to what it is made of, is zero."""

_CASES = (
    "the aggregate is zero: reputations stay",
    "nobody agrees with the aggregate: reputations stay",
    "reputations sum to zero or less: negative ones count as zero",
)
_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # whole numbers, by how many bytes they take


@dataclass(frozen=True)
class OwnModel(Alone):
    """SGD on a model of one's own, to which the server's delta is added. A round without one is forgotten."""

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, state

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        return {**state, "own": end + download}


# ------------------------------------------------------------------------------------- what RFFL and CGSV share


# Reputations are a few numbers, kept in host memory. How they change is worked out where the updates are, with all that
# follows from it: a GPU that had to be asked about cosines would have nothing to do meanwhile.


def no_reputations() -> State:
    """Nobody is known yet. Reputations are kept by client id, ascending."""
    return {"ids": torch.empty(0, dtype=torch.int64), "reputation": torch.empty(0, dtype=torch.float64)}


def enrolled(state: State, ids: Ints) -> tuple[Ints, Floats, Ints]:
    """Everyone known, newcomers included; their reputations, a newcomer's being 0; and where `ids` are in there."""
    known = state["ids"].cpu()
    everyone = joint(known, torch.from_numpy(ids)).numpy()
    reputation = np.zeros(len(everyone))
    reputation[everyone.searchsorted(known.numpy())] = state["reputation"].cpu().numpy()
    return everyone, reputation, everyone.searchsorted(ids)


def ledger(ids: Ints, reputation: Floats) -> State:
    # Ids are copied: where nobody is new they are a view of the last round's, which would be kept alive by it for ever.
    return {"ids": torch.tensor(ids), "reputation": torch.from_numpy(reputation)}


class Standing(NamedTuple):
    """What a round begins with, where the updates are: M participants are known, K of them in this round."""

    rows: Tensor
    """[K, d] their updates."""
    sizes: Tensor
    """[K] how many samples they claim."""
    old: Tensor
    """[M] the reputations of all."""
    here: Tensor
    """[K] which of all they are."""
    number: Tensor
    """[d] of each number of a model the tensor that it lies in,"""
    before: Tensor
    """[d] and the share of that tensor that lies before it."""


def standing(cohort: Cohort, old: Floats, here: Ints, by: Largest) -> Standing:
    """Of a cohort; shares are `by` tensor or of the whole model."""
    rows, layout = cohort.updates, cohort.layout if by == "tensor" else Layout()
    reputation, at = (sent(torch.from_numpy(x), rows) for x in (old, here))
    return Standing(rows, cohort.sizes, reputation, at, *seats(layout, rows[0]))


class Aggregate(NamedTuple):
    """u = sum_k p_k s_k u_k in the updates' type, the places of its numbers, cos(u, u_k), p, s and whether u = 0."""

    u: Tensor
    place: Tensor
    cos: Tensor
    weight: Tensor
    scale: Tensor
    zero: Tensor


def aggregated(given: Standing, scale: Callable[[Tensor], Tensor]) -> Aggregate:
    """`scale`: s by the lengths of the updates, 1 in place of 0. A cosine that cannot be computed is 0.

    Reputations are weights; sizes, as long as nobody here has one.
    """
    rows, old = given.rows, given.old[given.here]
    weight = normalised(torch.where(old.any(), old, given.sizes.double()))
    long = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    s = scale(torch.where(long > 0, long, 1.0))
    p = weight * s
    u, along = torch.empty_like(rows[0], dtype=torch.float64), torch.zeros_like(long)
    for part, x in Table(rows).read([slice(0, len(u))]):
        torch.mv(x.mT, p, out=u[part])
        along += x @ u[part]
    length, least = torch.linalg.vector_norm(u), ROUNDING * (p * long).sum()
    zero = (length <= least) & (least < torch.inf)
    u, cos = torch.where(zero, 0.0, u), along / (long * length)
    cos = torch.where(torch.isfinite(cos) & ~zero, cos, 0.0).clamp(-1.0, 1.0)
    return Aggregate(u.to(rows.dtype), places(u, given.number, given.before), cos, weight, s, zero)


def told(reputation: Floats, quota: Floats, weight: Floats) -> dict[str, Tensor]:
    """A row per client of the cohort, for the log."""
    said = {"reputation": reputation, "quota": quota, "weights": weight}
    return {name: torch.from_numpy(x) for name, x in said.items()}


def largest(u: Tensor, place: Tensor, quota: Tensor) -> Tensor:
    """[K, d]: the numbers of u whose place is below quota_k, a share that is rounded up; 0 elsewhere."""
    share = quota * (1 - 1e-12)  # what is a whole number up to rounding stays one
    bits = _WHOLE[u.itemsize]  # to multiply is faster than to choose; but 0 x -1.0 is -0.0, and 0 x infinity is none
    return ((place < share[:, None]) * u.view(bits)).view(u.dtype)


def places(u: Tensor, number: Tensor, before: Tensor) -> Tensor:
    """[d]: the share of a tensor's numbers that are larger in magnitude; of equals, the first counts as larger.

    One sort serves all tensors: on a GPU each costs a dozen launches. A second one, which keeps the order of equals,
    parts them by tensor, in the order in which they lie in the vector. What is sorted are the bits of float64, whose
    order as whole numbers is that of magnitudes: a CPU takes a sixth of the time for it.
    """
    order = u.abs().view(torch.int64).neg_().argsort(stable=True)
    if len(number):
        order = order.gather(0, number.gather(0, order).argsort(stable=True))
    return torch.empty_like(before).scatter_(0, order, before)


def seats(layout: Layout, u: Tensor) -> tuple[Tensor, Tensor]:
    """What `places` goes by, for a model like u; without a layout, its numbers are one tensor's."""
    return _seats(tuple(s.stop - s.start for s in layout.slots) or (len(u),), u.device)


@lru_cache(maxsize=2)  # these are as long as a model, and the same in every round
def _seats(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Of tensors one after the other: which one a number lies in, empty if there is but one; the share before it."""
    short = next(t for t in (torch.int8, torch.int16, torch.int32) if len(lengths) <= torch.iinfo(t).max)
    parts = enumerate(lengths) if len(lengths) > 1 else ()
    number = torch.cat([torch.empty(0, dtype=short), *(torch.full((n,), i, dtype=short) for i, n in parts)])
    before = torch.cat([torch.arange(n, dtype=torch.float64) / n for n in lengths])
    return number.to(device), before.to(device)


# ------------------------------------------------------------------------------------------------------ the rule


@dataclass(frozen=True)
class RFFL(ServerRule):
    """alpha: how much of the old reputation stays, from 0 up to (not including) 1; 0 forgets.

    threshold: participants with less than this share of the mean reputation are removed; from 0 (only who disagrees) up
    to (not including) 1, so that somebody always stays. clip: the largest norm of an update that counts (the authors:
    0.5 on MNIST, 0.15 on CIFAR-10, 1 on text). grace: rounds before the first removal. largest: shares of each "tensor"
    or of the whole "model". subtract_own: take out of the download what the participant put in. beta: altruism, above
    0; the larger, the more everyone receives (the authors of CGSV try 0.5 to 2).
    """

    alpha: float = 0.8
    threshold: float = 1 / 3
    clip: float | None = None
    grace: int = 0
    largest: Largest = "tensor"
    subtract_own: bool = True
    beta: float | None = None
    per_client = True
    early = True

    def __post_init__(self) -> None:
        require(0 <= self.alpha < 1, "rffl: alpha", self.alpha, "from 0 up to (not including) 1")
        require(0 <= self.threshold < 1, "rffl: threshold", self.threshold, "from 0 up to (not including) 1")
        require(self.clip is None or positive(self.clip), "rffl: clip", self.clip, "a norm above 0, or none")
        require(self.grace >= 0, "rffl: grace", self.grace, "a number of rounds, 0 or more")
        require(self.largest in ("tensor", "model"), "rffl: largest", self.largest, 'use "tensor" or "model"')
        require(self.beta is None or positive(self.beta), "rffl: beta", self.beta, "above 0, or none")

    @property
    def robust(self) -> bool:  # type: ignore[override]
        """Only if norms are bounded: without that, the largest update decides whom everyone is compared with."""
        return self.clip is not None

    def init(self, w: Tensor) -> State:
        return no_reputations()

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        return self.ahead(cohort, state).now()

    def ahead(self, cohort: Cohort, state: State) -> Later[Outcome]:
        ids, old, here = enrolled(state, near(cohort.ids).numpy())
        limit = self.threshold / len(ids) if cohort.round >= self.grace else -np.inf
        u, downloads, *asked = cohort.again(self._paid, limit, *standing(cohort, old, here, self.largest))

        def settle(
            share: Floats, gone: Floats, reputation: Floats, quota: Floats, weight: Floats, case: Floats
        ) -> Outcome:
            out, reason = gone > 0, next((r for r, holds in zip(_CASES, case, strict=True) if holds), "")
            return Outcome(
                direction=u,
                state=ledger(ids[~out], reputation[~out]),
                downloads=downloads,
                exclude=tuple(ids[out].tolist()),
                info={
                    **told(reputation[here], quota, weight),
                    **{"removed": _removals(ids[out], share[out], limit)},
                    **({"reason": reason} if reason else {}),
                },
            )

        return Later(Outcome(u, state, downloads), tuple(asked), settle)

    def _paid(self, limit: float, *given: Tensor) -> tuple[Tensor, ...]:
        """The common update, what each is sent, and what `settle` asks for."""
        begun = Standing(*given)
        found, here = aggregated(begun, self._scale), begun.here
        share, case = self._judged(begun.old, here, found)
        gone = (share < limit) & ~(case[0] | case[1])
        gone = torch.zeros_like(gone).index_copy(0, here, gone[here])
        reputation = normalised(share.clamp(min=0.0) * ~gone)
        quota = self._quota(reputation)[here]
        downloads = self._downloads(begun.rows, found, quota, found.weight * ~gone[here])
        return found.u, downloads, share, gone, reputation, quota, found.weight, case

    def _scale(self, lengths: Tensor) -> Tensor:
        return torch.ones_like(lengths) if self.clip is None else (self.clip / lengths).clamp(max=1.0)

    def _judged(self, old: Tensor, here: Tensor, found: Aggregate) -> tuple[Tensor, Tensor]:
        """Reputations that sum to 1, before any removal; and which of _CASES hold."""
        new = old.index_copy(0, here, self.alpha * old[here] + (1 - self.alpha) * found.cos)
        nobody, negative = ~(new > 0).any(), new.sum() <= 0
        share = torch.where(found.zero | nobody, old, normalised(torch.where(negative, new.clamp(min=0.0), new)))
        return share, torch.stack([found.zero, nobody, negative])

    def _quota(self, reputation: Tensor) -> Tensor:
        most = reputation.max()
        ratio = reputation / torch.where(most == 0, 1.0, most)
        return ratio if self.beta is None else (torch.tanh(self.beta * ratio) / math.tanh(self.beta)).clamp(max=1.0)

    def _downloads(self, rows: Tensor, found: Aggregate, quota: Tensor, weight: Tensor) -> Tensor:
        """[K, d]: the shares, without what each put in itself; `weight` is 0 for whoever is removed."""
        out = largest(-found.u, found.place, quota)
        if self.subtract_own:
            out.addcmul_((weight * found.scale).to(rows.dtype)[:, None], rows)
        return out


def _removals(ids: Ints, share: Floats, limit: float) -> list[dict[str, Any]]:
    """Who was removed, and why."""
    pairs = zip(ids.tolist(), share.tolist(), strict=True)
    return [{"client": k, "reason": f"reputation {r:.3g} is below {limit:.3g}"} for k, r in pairs]


def rffl(
    alpha: float = 0.8,
    threshold: float = 1 / 3,
    *,
    clip: float | None = None,
    grace: int = 0,
    largest: Largest = "tensor",
    subtract_own: bool = True,
    beta: float | None = None,
) -> Method:
    return Method("rffl", OwnModel(), RFFL(alpha, threshold, clip, grace, largest, subtract_own, beta))
