"""The server's side of a round, for every engine: plan who gets what, then absorb what came back.

Nothing that clients send can stop a run or spoil the model. Whatever the server rule makes of a cohort, a model or a
state with a NaN in it is not taken over: the round is skipped, with the reason on record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.conflicts import conflict_names, opposed
from equipoise.core import Cohort, Method, Outcome, ServerRule, State
from equipoise.engine.admission import Flags, Presumed, admit, all_finite, glances, judged, presume, total
from equipoise.engine.exchange import Exchange, Plan, Replies
from equipoise.engine.graphs import Again, Repeated
from equipoise.engine.guard import probed
from equipoise.engine.participation import Participants
from equipoise.engine.phases import phase
from equipoise.engine.settings import Admission, Train
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.questions import Later, answer, ask, moved, near
from equipoise.streams import Stream


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round."""

    round: int
    lr: float
    drawn: tuple[int, ...]
    admitted: tuple[int, ...]
    quarantined: dict[int, str]
    skipped: str = ""
    """Why the model stayed as it was, if it did."""
    stop: str | None = None
    conflicts: dict[str, int] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


_FEW = 1 << 16  # numbers of a state that are copied to be looked at together; of more, the sum
_LITTLE = 1 << 25  # bytes that are; where there are more, a GPU has enough to do to be told one by one
_EXCHANGES = frozenset({"probe", "root"})  # what a rule may ask for, at a price: not for rows that may be thrown away


@dataclass(frozen=True)
class Attempt:
    """What the server rule made of replies, before anybody has looked at it."""

    replies: Replies
    cohort: Cohort
    reason: str
    """Why there is no outcome, if there is none."""
    later: Later[Outcome] | None = None
    w: Tensor = field(default_factory=lambda: torch.empty(0))
    """The model that it would lead to."""
    looks: Sequence[Tensor] = ()
    """How many clients oppose it, by layer; then flags: whether the new model, the new state and the downloads are
    finite, false also of sums that overflow."""

    @property
    def asked(self) -> Sequence[Tensor]:
        """Everything that has to be known of it."""
        return [*self.looks, *(self.later.asked if self.later else ())]


class Server:
    """The global model, the server rule's state, and the clients that are out."""

    def __init__(
        self,
        method: Method,
        w: Tensor,
        layout: Layout,
        participants: Participants,
        train: Train,
        admission: Admission,
        stream: Stream,
    ) -> None:
        self.rule, self.layout, self.participants = method.server, layout, participants
        self.train, self.admission, self.stream = train, admission, stream
        self.round, self.w, self.state = 0, w.clone(), self.rule.init(w)
        self.excluded = torch.zeros(participants.n + participants.added, dtype=torch.bool)
        self._next = -1, torch.empty(0, dtype=torch.int64)
        self._likely: Plan | None = None
        self._judge, self._again = Repeated(partial(judged, admission)), Again()
        self._look = Repeated(partial(_looked, layout.layers()), _LITTLE)
        self._silent = type(self.rule).plan is ServerRule.plan  # else what it says may depend on what is not known yet
        self._willing = vars(type(self.rule)).get("early", False)
        self._ahead = self._willing and _is_of_one_piece(type(self.rule))
        self.rule.check(participants.most)
        admission.check(participants.most)

    def step(self, exchange: Exchange) -> RoundRecord:
        """One round, whatever the exchange."""
        plan = self.plan()
        record = self.absorb(plan, exchange)
        self.round += 1
        return record

    def plan(self) -> Plan:
        (round, drawn), likely = self._next, self._likely
        if round == self.round and likely is not None and likely.w is self.w:
            return likely
        with phase("draw"):
            if round != self.round:
                drawn = self.participants.draw(self.round, self.excluded)
        return self._plan(self.round, drawn, self.w, self.state)

    def _plan(self, round: int, drawn: Tensor, w: Tensor, state: State) -> Plan:
        with phase("draw"):
            ids = moved(drawn, w.device)
        with phase("server rule"):
            messages = self.rule.plan(ids, state)
        return Plan(round, ids, w, self.train.lr * self.train.lr_decay**round, messages, self.rule.needs)

    def absorb(self, plan: Plan, exchange: Exchange) -> RoundRecord:
        replies = exchange(plan)
        # On a GPU all of this may still be at work: what needs no answer from it comes before one is waited for.
        with phase("admission"):
            presumed = presume(replies, self.admission, self._judge)
        early = self._early(plan, presumed, exchange)
        told_of = ask(*([presumed.flags, *(early.asked if early else ())] if presumed else []))
        self._look_ahead(exchange, early)
        with phase("admission"):
            told = told_of()
            admitted = admit(replies, self.admission, presumed, told[0] if told else None)
        kept, ids = admitted.replies, admitted.ids
        touched = {"size_capped": list(admitted.capped), "guarded": list(admitted.guarded)}
        info: dict[str, Any] = {name: ids for name, ids in touched.items() if ids}

        def record(**more: Any) -> RoundRecord:
            drawn = tuple(near(plan.ids).tolist())
            return RoundRecord(plan.round, plan.lr, drawn, ids, admitted.quarantined, **more)

        if len(ids) < self.admission.quorum:
            return record(skipped=f"{len(ids)} admitted, quorum {self.admission.quorum}", info=info)
        done, told, early = early, told[1:], None
        if done is None or done.replies is not kept:
            done = None  # its memory may be needed
            done = self._attempt(plan, kept, admitted.norms, exchange)
            told = answer(*done.asked)
        if done.later is None:
            return record(skipped=done.reason, info=info)
        try:
            done, outcome, (against, *finite) = self._settled(done, done.later, told, admitted.norms)
        except EquipoiseError as error:
            return record(skipped=_refused(error), info=info)
        if reason := self._taken_over(done, outcome, all(map(bool, finite))):
            return record(skipped=reason, info=info)
        if outcome.exclude:
            self.excluded[list(outcome.exclude)] = True
            if not set(outcome.exclude).isdisjoint(self._next[1].tolist()):  # else the draw comes out as it did
                self._next = -1, self._next[1]
            info["excluded"] = list(outcome.exclude)
        if outcome.downloads is not None:
            exchange.deliver(plan, done.cohort.ids, outcome.downloads)
        conflicts = dict(zip(conflict_names(self.layout.layers()), map(int, against.tolist()), strict=True))
        return record(stop=outcome.stop, conflicts=conflicts, info={**info, **outcome.info})

    def _look_ahead(self, exchange: Exchange, early: Attempt | None) -> None:
        """Draw the next round and tell the exchange, which may still be at work on this one.

        The plan too, where it is known what it will be unless this round comes out otherwise than it seems to.
        """
        with phase("draw"):
            self._next = self.round + 1, self.participants.draw(self.round + 1, self.excluded)
        exchange.foresee(*self._next)
        self._likely, seems = None, early.later.likely if early and early.later else None
        if early and seems and seems.downloads is None and self._silent and self.round + 1 < self.train.rounds:
            self._likely = self._plan(*self._next, early.w, seems.state)
            exchange.anticipate(self._likely)

    def cohort(self, plan: Plan, replies: Replies, exchange: Exchange) -> Cohort:
        """What the server rule is shown of a round."""

        def probe(models: Tensor) -> Tensor:
            answers = exchange.probe(plan, replies.ids, models)
            return probed(answers, self.admission.guard, self.admission.guard_width)

        return Cohort(
            ids=replies.ids,
            start=plan.w,
            updates=replies.updates,
            sizes=replies.sizes,
            losses=replies.losses,
            signals=replies.signals,
            layout=self.layout,
            round=plan.round,
            lr=plan.lr,
            n_clients=len(self.excluded),
            rng=self.stream.child("server", plan.round),
            probe=probe if "probe" in plan.needs else None,
            root=exchange.root(plan) if "root" in plan.needs else None,
            again=self._again,
        )

    def _early(self, plan: Plan, presumed: Presumed | None, exchange: Exchange) -> Attempt | None:
        """The rule's work on rows that are presumed sound; what comes of it is looked at if they prove to be."""
        willing = self._willing and not plan.needs & _EXCHANGES
        if presumed is None or not willing or len(presumed.replies.ids) < self.admission.quorum:
            return None
        if not presumed.flags.is_cuda and not bool(presumed.flags[0, 0]):  # where it costs nothing to ask first
            return None
        try:
            return self._attempt(plan, presumed.replies, presumed.norms, exchange)
        except Exception:  # whatever numbers that are none came to; on rows that were looked at an error is one
            return None

    def _attempt(self, plan: Plan, replies: Replies, norms: Tensor, exchange: Exchange) -> Attempt:
        with phase("server rule"):
            cohort = self.cohort(plan, replies, exchange)
            try:
                rule = self.rule
                later = rule.ahead(cohort, self.state) if self._ahead else Later(rule(cohort, self.state))
            except EquipoiseError as error:  # say, Krum when too many clients dropped out
                return Attempt(replies, cohort, _refused(error))
        return self._looked_at(Attempt(replies, cohort, "", later), later.likely, norms)

    def _looked_at(self, done: Attempt, outcome: Outcome, norms: Tensor) -> Attempt:
        """With the model that an outcome leads to, and what has to be known of both."""
        with phase("evaluate"):
            made = *outcome.state.values(), outcome.downloads
            floats = [t for t in made if t is not None and t.is_floating_point()]
            there = [t for t in floats if t.device == self.w.device]
            few = [t if t.numel() <= _FEW else total(t) for t in there]
            w, *looks = self._look(None, self.w, outcome.direction, done.replies.updates, norms, *few)
            return replace(done, w=w, looks=(*looks, *glances(t for t in floats if t.device != self.w.device)))

    def _settled(
        self, done: Attempt, later: Later[Outcome], told: list[Flags], norms: Tensor
    ) -> tuple[Attempt, Outcome, list[Flags]]:
        """The outcome, now that all is known, and the looks at it; new ones if it is not what it seemed to be."""
        n, seemed = len(done.looks), later.likely
        outcome, looks = later.settled(*told[n:]), told[:n]
        if outcome.direction is not seemed.direction or outcome.downloads is not seemed.downloads:
            done = self._looked_at(done, outcome, norms)
            return done, outcome, answer(*done.looks)
        new = [t for name, t in outcome.state.items() if t is not seemed.state.get(name) and t.is_floating_point()]
        here = [np.isfinite(t.double().numpy()).all(keepdims=True) for t in new if t.device.type == "cpu"]
        return done, outcome, [*looks, *here, *answer(*glances(t for t in new if t.device.type != "cpu"))]

    def _taken_over(self, done: Attempt, outcome: Outcome, finite: bool) -> str:
        """Make the rule's outcome that of the model and the state; or say why it cannot be."""
        if not finite:
            said = {
                "the model would not be finite": [done.w],
                "the server's state would not be finite": list(outcome.state.values()),
                "a download would not be finite": [] if outcome.downloads is None else [outcome.downloads],
            }
            for reason, part in said.items():
                if not all_finite(part):
                    return reason
        self.w, self.state = done.w, outcome.state
        return ""

    # ------------------------------------------------------------------------------------------- to and from a file

    def dump(self) -> State:
        state = {f"state/{n}": t for n, t in self.state.items()}
        return {"w": self.w, "excluded": self.excluded, "round": torch.tensor(self.round), **state}

    def load(self, dumped: State) -> None:
        device = self.w.device
        self._next = -1, self._next[1]
        self.w, self.excluded = dumped["w"].to(device, copy=True), dumped["excluded"].clone()
        self.round = int(dumped["round"])
        state = {n.removeprefix("state/"): t for n, t in dumped.items() if n.startswith("state/")}
        self.state = {n: t.to(device, copy=True) for n, t in state.items()}


def _looked(
    layers: Mapping[str, Sequence[slice]], kind: None, w: Tensor, direction: Tensor, *more: Tensor
) -> tuple[Tensor, ...]:
    """The new model; how many clients oppose the step; whether the model and the rest are finite."""
    updates, norms, *rest = more
    new = w - direction
    return new, opposed(updates, direction, layers, norms), *glances([new, *rest])


def _refused(error: EquipoiseError) -> str:
    return f"the server rule refused: {error.message}"


def _is_of_one_piece(rule: type[ServerRule]) -> bool:
    """Whether nothing of the call was changed below the class that says how to go ahead."""
    for kind in rule.__mro__:
        if "ahead" in vars(kind):
            return True
        if "__call__" in vars(kind):
            return False
    return False
