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
weight until it has been judged. Where a formula has no value, the log has a `reason`: with a zero aggregate, or nobody
on its side, reputations stay; where they sum to zero or less, negative ones count as zero, as they do in weights.

Without `clip` a few free riders with large updates take over, and the honest are removed: whenever somebody may be
malicious, set it, to no more than the norm of an honest update. No setting withstands a majority that agrees with
itself.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from equipoise.core import At, Cohort, Layout, Method, Outcome, ServerRule, State, normalised
from equipoise.errors import require
from equipoise.methods.local import Alone

Largest = Literal["tensor", "model"]


@dataclass(frozen=True)
class OwnModel(Alone):
    """SGD on a model of one's own, to which the server's delta is added. A round without one is forgotten."""

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, state

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        return {**state, "own": end + download}


# ------------------------------------------------------------------------------------- what RFFL and CGSV share


def no_reputations(w: Tensor) -> State:
    """Nobody is known yet. Reputations are kept by client id, ascending."""
    return {"ids": w.new_empty(0, dtype=torch.int64), "reputation": w.new_empty(0, dtype=torch.float64)}


def enrolled(state: State, cohort: Cohort) -> tuple[Tensor, Tensor, Tensor]:
    """Everyone known, newcomers included; their reputations, a newcomer's being 0; and where the cohort is in there."""
    new = cohort.ids[~torch.isin(cohort.ids, state["ids"])]
    ids, order = torch.cat([state["ids"], new]).sort()
    reputation = torch.cat([state["reputation"], state["reputation"].new_zeros(len(new))])[order]
    return ids, reputation, torch.searchsorted(ids, cohort.ids)


def weights(reputation: Tensor, sizes: Tensor) -> Tensor:
    """Reputations as weights that sum to 1; sizes, as long as nobody has a reputation."""
    return normalised(reputation if bool(reputation.any()) else sizes.to(reputation.dtype))


def norms(rows: Tensor) -> Tensor:
    """[K, 1]: Euclidean norms, 1 for a row of zeros so that one can divide by them."""
    found = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return torch.where(found == 0, torch.ones_like(found), found)


def agreement(rows: Tensor, u: Tensor) -> Tensor:
    """[K]: cos(u, u_k); 0 where one of them is zero."""
    return ((rows / norms(rows)) @ (u / norms(u))).clamp(-1.0, 1.0)


def largest(u: Tensor, quota: Tensor, layout: Layout, by: Largest) -> Tensor:
    """[K, d]: of each tensor of u (or of all of it) the share quota_k that is largest, rounded up; 0 elsewhere."""
    parts = [slice(s.start, s.stop) for s in layout.slots] if by == "tensor" else []
    out = u.new_empty((len(quota), len(u)))
    for part in parts or [slice(0, len(u))]:
        order = u[part].abs().argsort(descending=True, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=u.device)
        count = (quota * len(order) * (1 - 1e-12)).ceil()  # what is a whole number up to rounding stays one
        out[:, part] = torch.where(rank < count[:, None], u[part], torch.zeros_like(u[part]))
    return out


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

    def __post_init__(self) -> None:
        require(0 <= self.alpha < 1, "rffl: alpha", self.alpha, "from 0 up to (not including) 1")
        require(0 <= self.threshold < 1, "rffl: threshold", self.threshold, "from 0 up to (not including) 1")
        require(self.clip is None or self.clip > 0, "rffl: clip", self.clip, "a norm above 0, or none")
        require(self.grace >= 0, "rffl: grace", self.grace, "a number of rounds, 0 or more")
        require(self.largest in ("tensor", "model"), "rffl: largest", self.largest, 'use "tensor" or "model"')
        require(self.beta is None or self.beta > 0, "rffl: beta", self.beta, "above 0, or none")

    @property
    def robust(self) -> bool:  # type: ignore[override]
        """Only if norms are bounded: without that, the largest update decides whom everyone is compared with."""
        return self.clip is not None

    def init(self, w: Tensor) -> State:
        return no_reputations(w)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        ids, old, here = enrolled(state, cohort)
        rows = self._clipped(cohort.updates.to(torch.float64))
        weight = weights(old[here], cohort.sizes)
        u = weight @ rows
        share, judged, reason = self._judged(old, here, agreement(rows, u), bool(u.any()))
        limit = self.threshold / len(ids) if judged and cohort.round >= self.grace else -torch.inf
        gone = torch.zeros_like(ids, dtype=torch.bool)
        gone[here] = share[here] < limit
        reputation = normalised(share.clamp(min=0) * ~gone)
        quota = self._quota(reputation)[here]
        allotted = largest(u, quota, cohort.layout, self.largest)
        if self.subtract_own:
            allotted.addcmul_(weight[:, None], rows, value=-1)
        allotted.masked_fill_(gone[here][:, None], 0.0)
        dtype = cohort.updates.dtype
        return Outcome(
            direction=u.to(dtype),
            state={"ids": ids[~gone], "reputation": reputation[~gone]},
            downloads=allotted.neg_().to(dtype),
            exclude=tuple(ids[gone].tolist()),
            info={
                **{"reputation": reputation[here], "quota": quota, "weights": weight},
                **{"removed": _told(ids[gone], share[gone], limit)},
                **({"reason": reason} if reason else {}),
            },
        )

    def _clipped(self, rows: Tensor) -> Tensor:
        return rows if self.clip is None else rows * (self.clip / norms(rows)).clamp(max=1.0)

    def _judged(self, old: Tensor, here: Tensor, cos: Tensor, moves: bool) -> tuple[Tensor, bool, str]:
        """Reputations that sum to 1, before any removal; whether they are new; and what was out of the ordinary."""
        new = old.index_copy(0, here, self.alpha * old[here] + (1 - self.alpha) * cos)
        if not moves:
            return old, False, "the aggregate is zero: reputations stay"
        if not bool((new > 0).any()):
            return old, False, "nobody agrees with the aggregate: reputations stay"
        if float(new.sum()) <= 0:
            return normalised(new.clamp(min=0)), True, "reputations sum to zero or less: negative ones count as zero"
        return normalised(new), True, ""

    def _quota(self, reputation: Tensor) -> Tensor:
        top = reputation.max()
        ratio = reputation / torch.where(top > 0, top, torch.ones_like(top))
        return ratio if self.beta is None else torch.tanh(self.beta * ratio) / torch.tanh(ratio.new_tensor(self.beta))


def _told(ids: Tensor, share: Tensor, limit: float) -> list[dict[str, Any]]:
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
