"""The simulated world: clients that train here, some of which may be malicious, behind the engine's exchange."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from equipoise.at import Schedule, Stop
from equipoise.core import SGD, ClientRule, Method, State
from equipoise.data.federation import SPLITS, Federation, Split
from equipoise.engine.adversary import claimed_sizes, disturbance, forged, infiltrated, misreported, put
from equipoise.engine.batches import Batches, full, plan_batches
from equipoise.engine.clients import Done, Executor, Trained, Work, cuts, mixed
from equipoise.engine.dealer import Dealer
from equipoise.engine.exchange import Plan, Replies
from equipoise.engine.legs import halves
from equipoise.engine.net import Net
from equipoise.engine.participation import Participants
from equipoise.engine.phases import phase
from equipoise.engine.replay import Replay
from equipoise.engine.risk import Risks
from equipoise.engine.settings import Train
from equipoise.engine.store import ClientStore, Seen, Wish
from equipoise.engine.view import Disturb, World
from equipoise.questions import moved, near, sent
from equipoise.streams import Stream
from equipoise.threat import Attack, Claims, Forgery

_TOGETHER = 256  # clients that finish together: bounds memory
Whose = Literal["all", "honest"]
_HOOKS = {"init", "prepare", "schedule", "begin", "step", "end", "report", "receive"}  # what is sent depends on them
_BEGUN = 1 << 25  # numbers in the updates of a round that may be begun early: those of two are in memory then


def outward(rule: ClientRule) -> ClientRule:
    """The rule that it says sends the same; itself, if its class changes a hook and has inherited what it says."""
    order = type(rule).__mro__
    said = next(i for i, kind in enumerate(order) if "outward" in vars(kind))
    return rule if any(_HOOKS & vars(kind).keys() for kind in order[:said]) else rule.outward()


def barest(rule: ClientRule) -> ClientRule:
    """The rule that sends the same and does nothing besides, as far as is said."""
    while (other := outward(rule)) is not rule:
        rule = other
    return rule


@dataclass(frozen=True)
class How:
    """How rounds are carried out; changes no result beyond rounding."""

    device: torch.device
    vectorised: bool
    workers: int = 1
    replay: bool = False
    alone: bool = False
    """Whether training alone may be played back too, which it is on a GPU."""
    precision: str = "full"
    personal: Wish = "device"
    own_models: Whose = "all"


class Simulator:
    """Carries rounds out in this process; implements `Exchange`."""

    def __init__(
        self,
        method: Method,
        net: Net,
        federation: Federation,
        train: Train,
        participants: Participants,
        attack: Attack | None,
        stream: Stream,
        how: How,
    ) -> None:
        self.rule, self.participants, self.attack, self.stream = method.client, participants, attack, stream
        self.lr, self.schedule = train.lr, Schedule(train.epochs, train.steps, train.batch or None)
        own = federation.splits["train"].start
        federation, self.malicious = infiltrated(federation, attack, stream.child("attack"))
        self.claimed = claimed_sizes(federation, self.malicious)
        self.federation, self.host = federation.to(how.device), federation.splits["train"]
        self._dealer = Dealer(self.host, self.federation.splits["train"])
        # Samples that an attack changed or added lie behind the others, see `adversary`.
        self.untouched = torch.zeros_like(self.malicious)
        self.untouched[: len(own)] = self.host.start[: len(own)] == own
        if not self.rule.features:  # who looks at features may take them as they always lay
            net.show(federation.data.x.shape[1:])
        self.net, self.vectorised, self.workers, self.precision = net, how.vectorised, how.workers, how.precision
        self.store, self.w0 = ClientStore(federation.n_clients, how.device, how.personal), net.initial()
        self._takes_deltas = type(self.rule).receive is not ClientRule.receive
        self._outward = self._plain_outward() if how.own_models == "honest" else None
        hostile = attack is not None and attack.hostile and self._outward is not None
        self.spared = self.malicious & hostile
        """[N]: who does no more than is sent, as nobody asks for their own models."""
        on_gpu = how.device.type == "cuda"
        sizes = frozenset(c.stop - c.start for c in cuts(participants.most, net.layout.size, how.vectorised))
        if bool(self.spared.any()):  # then a cohort is two, of any size
            sizes = frozenset(n for size in sizes for n in halves(size))
        capture = on_gpu and how.workers == 1
        # A GPU takes as long for a small step of five clients as of ten; a convolution takes half the time.
        relay = net.convolves or not on_gpu
        self.replay = Replay(sizes, self._widest(), capture, relay) if how.replay else None
        self.risks = Risks(sizes) if how.replay and capture else None
        self.alone = how.alone and on_gpu and how.vectorised
        self.begins = on_gpu and self.replay is not None
        """Whether the next round may be begun while somebody is still busy with this one."""
        self._last: Trained | None = None
        self._begun: Trained | None = None
        self._stateful = bool(self.rule.init(self.w0[None]))
        self._side = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]
        self._foreseen: tuple[int, Tensor, Batches | None] = (-1, torch.empty(0, dtype=torch.int64), None)
        self.memory: State = {}
        """What the attack remembers."""
        self.aggregate: Callable[[Plan, Replies], Tensor] | None = None
        """What the server would do with these replies; set by the run, for attacks that look ahead."""
        self.reached: Callable[[Stop], Tensor] | None = None
        """[N, d]: what the N original clients reach alone, on clean data; set by whoever keeps it between runs."""

    def _plain_outward(self) -> ClientRule | None:
        """A rule that sends what the method's does and keeps nothing for it; None if there is no such rule."""
        rule = barest(self.rule)
        keeps = bool(rule.init(self.w0[None])) or type(rule).receive is not ClientRule.receive
        return None if rule is self.rule or keeps else rule

    def _widest(self) -> int:
        """How many samples a full batch of the method has."""
        return full(self.rule.schedule(self.schedule, 0, self.stream.child("schedule", 0)).batch, self.host.size)

    def executor(self, disturb: Disturb | None = None) -> Executor:
        how = self.vectorised, disturb, self.replay, self.precision, self.risks, self.alone
        return Executor(World(self.net, self.federation, self.host, *how), self.workers)

    def __call__(self, plan: Plan) -> Replies:
        begun, self._begun, self._last = self._begun, None, None  # what nobody needs makes room
        if begun is None or not begun.is_of(plan):
            begun = None
            begun = self._trained(plan)
        if len(begun.ids) == 0:
            return begun.replies
        with phase("train"):
            self._keep(begun.kept, begun.done)
        self._last = begun
        return self._attacked(plan, begun.replies)

    def _trained(self, plan: Plan) -> Trained:
        """What the clients who answer make of a plan; nothing is stored."""
        drawn = near(plan.ids)
        here = self.participants.answering(plan.round, drawn)
        ids = plan.ids if here is drawn else moved(here, plan.w.device)
        messages = dict(plan.messages)
        if len(ids) < len(plan.ids):
            keep = torch.isin(plan.ids, ids)
            messages = {n: t[keep] for n, t in messages.items()}
        sizes, kept = sent(self.claimed[here], plan.w), here
        if len(ids) == 0:
            done = all_done = Done(plan.w.new_zeros((0, len(plan.w))), None, {}, None)
        elif bool(self.spared[here].any()):
            kept, done, all_done = self._in_two(plan, here, ids, messages)
        else:
            done = all_done = self.train(plan, ids, messages, ends=self._takes_deltas)
        replies = Replies(ids, all_done.updates, sizes, all_done.losses, all_done.signals)
        return Trained(plan, plan.w._version, here, kept, done, replies)

    def _in_two(self, plan: Plan, here: Tensor, ids: Tensor, messages: State) -> tuple[Tensor, Done, Done]:
        """Who keeps a model of their own, and what they make of a round; what everyone sends."""
        spared = self.spared[here]
        own, rest = (sent(torch.nonzero(who).flatten(), ids) for who in (~spared, spared))

        def train(who: Tensor, rows: Tensor, rule: ClientRule, ends: bool) -> Done:
            some = {n: t[rows] for n, t in messages.items()}
            return self.train(plan, moved(here[who], ids.device), some, rule, ends)

        assert self._outward is not None
        others = train(spared, rest, self._outward, False)
        if bool(spared.all()):
            return here[~spared], Done(others.updates[:0], None, {}, None), others
        done = train(~spared, own, self.rule, self._takes_deltas)
        return here[~spared], done, mixed(done, others, own, rest)

    def anticipate(self, plan: Plan) -> None:
        """Begin a round that is asked for next, unless something comes in between: nobody sees anything of it before.

        So a GPU goes on training while the host takes over what came of this round.
        """
        small = len(plan.ids) * len(plan.w) <= _BEGUN
        here = near(plan.ids)
        if self.begins and small and (not self._stateful or bool((self.store.known(here) | self.spared[here]).all())):
            with suppress(Exception):  # say, of a model that is none; what is asked for all the same fails then
                self._begun = self._trained(plan)

    def finish(self, plan: Plan) -> None:
        """Every client's last training, if the method has one; nothing is sent to the server any more."""
        rule, who = self.rule.finish(), plan.ids[~self.spared.to(plan.ids.device)[plan.ids]]
        if rule is not None and len(who):
            for ids in torch.split(who, _TOGETHER):
                self._keep(ids, self.train(plan, ids, {}, rule, ends=False))

    def _keep(self, ids: Tensor, done: Done) -> None:
        """Store what has changed; the rest is there."""
        self.store.put(ids, {n: t for n, t in done.state.items() if n not in done.same})

    @phase("train")
    def train(
        self,
        plan: Plan,
        ids: Tensor,
        messages: State,
        rule: ClientRule | None = None,
        ends: bool = True,
    ) -> Done:
        """What these clients make of a plan; `ends` says whether their models at the end are wanted too."""
        rule, stream = rule or self.rule, self.stream.child("batch", plan.round)
        here, (round, known, ready) = near(ids), self._foreseen
        foreseen = rule is self.rule and round == plan.round and torch.equal(known, here)
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        batches = ready if foreseen and ready is not None else self._batches(rule, plan.round, here)
        received = plan.w.expand(len(ids), -1)
        losses, chance = "losses" in plan.needs, stream.child("model")
        work = Work(ids, received, batches, messages, plan.lr, plan.round, chance, losses, ends)
        executor = self.executor(self._disturb(plan.round))
        return executor.run(rule, work, {} if rule is self._outward else self.states(ids), self._alone)

    @phase("gather")
    def _batches(self, rule: ClientRule, round: int, here: Tensor) -> Batches:
        schedule = rule.schedule(self.schedule, round, self.stream.child("schedule", round))
        return self._dealer(here, schedule, self.stream.child("batch", round), rule.batches)

    def foresee(self, round: int, ids: Tensor) -> None:
        """Work out the batches of a round to come, should these clients be drawn: a busy GPU leaves time for it."""
        if self._side is not None and not bool(self.spared.any()):
            # Beside the training: copies in the main stream would wait for it. What is made here is used there until
            # the server has the answer of that round, which it waits for before the next round but one is foreseen: so
            # nobody is given this memory while it is in use.
            with torch.cuda.stream(self._side):
                here = self.participants.answering(round, ids)
                self._foreseen = round, here, self._batches(self.rule, round, here)

    def states(self, ids: Tensor) -> State:
        """The lasting state of these clients; those seen for the first time are prepared."""
        if not self._stateful:
            return {}
        here = near(ids)
        new = here[~self.store.known(here)]
        if len(new):
            there, rows = new.to(ids.device), self.w0.expand(len(new), -1)
            self.store.put(new, self.executor().prepare(self.rule, there, rows, self.lr, self.stream, self._alone))
        return self.store.get(here)

    def personal(self, ids: Tensor, w: Tensor) -> Tensor:
        """The models that these clients use; clients never drawn have the state they started with, unsaved."""
        rows, known = w.expand(len(ids), -1), self.store.known(ids).to(ids.device)
        fresh = self.rule.init(self.w0.expand(int((~known).sum()), -1))
        state = {n: t.new_zeros((len(ids), *t.shape[1:])) for n, t in fresh.items()}
        for name, t in self.store.get(ids[known]).items():
            state[name][known] = t
        for name, t in fresh.items():
            state[name][~known] = t
        return self.rule.personal(rows, state)

    def _alone(self, ids: Tensor, stop: Stop) -> Tensor:
        """[K, d]: what these clients reach alone; only those train whose models nobody has yet."""
        if self.reached is None:
            return self._fit_alone(ids, stop)
        known, models = self.untouched.to(ids.device)[ids], self.w0.expand(len(ids), -1).clone()
        if bool(known.any()):
            models[known] = self.reached(stop).to(self.w0)[ids[known]]
        if not bool(known.all()):
            models[~known] = self._fit_alone(ids[~known], stop)
        return models

    def _fit_alone(self, ids: Tensor, stop: Stop) -> Tensor:
        return self.executor().fit_alone(ids, self.w0, self.schedule, self.lr, stop, self.stream.child("alone"))

    def probe(self, plan: Plan, ids: Tensor, models: Tensor) -> Tensor:
        executor = self.executor()
        answers = torch.stack([executor.risk(ids, m.expand(len(ids), -1)) for m in models])
        if self.attack is None:
            return answers
        bad = self.malicious.to(ids.device)[ids]
        if not bool(bad.any()):
            return answers
        sizes, stream = self.claimed[ids.cpu()].to(ids.device)[bad], self.stream.child("attack", plan.round, "probe")
        told = [self.attack.lie(Claims(sizes, a[bad], {}), stream.child(t)).losses for t, a in enumerate(answers)]
        return torch.stack([put(a, bad, said) for a, said in zip(answers, told, strict=True)])

    def root(self, plan: Plan) -> Tensor | None:
        own = self.federation.root
        if own is None:
            return None
        split, one = Split.of([own.cpu()]), torch.zeros(1, dtype=torch.int64)
        federation = replace(self.federation, splits=dict.fromkeys(SPLITS, split.to(plan.w.device)))
        stream = self.stream.child("root", plan.round)
        batches = plan_batches(split, one, self.schedule, stream)
        work = Work(one.to(plan.w.device), plan.w[None], batches, {}, plan.lr, plan.round, stream, False)
        executor = Executor(World(self.net, federation, split, self.vectorised))
        return executor.run(SGD(self.rule.objective), work, {}, self._alone).updates[0]

    @phase("train")
    def deliver(self, plan: Plan, ids: Tensor, downloads: Tensor) -> None:
        assert self._last is not None
        self._begun = None  # with states that are about to change
        trained, done = self._last.kept, self._last.done
        if done.end is None:  # clients that do not take deltas
            return
        if len(trained) < len(self._last.ids):
            keep = ~self.spared.to(ids.device)[ids]
            ids, downloads = ids[keep], downloads[keep]
        end, state = done.end, done.state
        if len(ids) < len(trained):  # else they are the same
            at = torch.searchsorted(trained.to(ids.device), ids)
            trained, end, state = trained[at.cpu()], end[at], {n: t[at] for n, t in state.items()}
        seen = Seen({"w": end, **state})
        new = self.rule.receive(end, state, downloads)
        seen.require_untouched(self.rule)
        self.store.put(trained, seen.changed(new))

    # ------------------------------------------------------------------------------------------------------- the attack

    def _disturb(self, round: int) -> Disturb | None:
        attack = self.attack
        if attack is None or type(attack).outliers is Attack.outliers:
            return None
        stream = self.stream.child("attack", "outliers", round)
        return disturbance(attack, self.malicious, self.federation.data.classes, stream)

    @phase("attack")
    def _attacked(self, plan: Plan, replies: Replies) -> Replies:
        if self.attack is None:
            return replies
        bad = self.malicious.to(replies.ids.device)[replies.ids]
        if not bool(bad.any()):
            return replies
        stream = self.stream.child("attack", plan.round)
        replies = misreported(replies, bad, self.attack, stream.child("lie"))
        own, honest = replies.updates[bad], replies.updates[~bad]

        def oracle(updates: Tensor) -> Tensor:
            assert self.aggregate is not None
            return self.aggregate(plan, replace(replies, updates=put(replies.updates, bad, updates)))

        whose, chance = replies.ids[~bad], stream.child("corrupt")
        seen = Forgery(replies.ids[bad], own, honest, plan.round, plan.lr, chance, oracle, whose, self.memory)
        self.memory = self.attack.remember(seen)
        return forged(replies, bad, self.attack.corrupt(replace(seen, memory=self.memory)))
