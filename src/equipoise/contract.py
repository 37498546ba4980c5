"""What every part promises, as checks that anyone can run on a part of their own.

The test suite runs them over every method, server rule, filter and attack there is; `equipoise check FILE` runs them on
a file of yours. Each check raises AssertionError and says what was broken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from equipoise.at import At, Schedule
from equipoise.core import Chain, ClientRule, Cohort, Filter, Method, Outcome, ServerRule, State, WeightedMean, chain
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.engine.simulator import Whose
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.models import build
from equipoise.registry import Doc
from equipoise.streams import Stream
from equipoise.threat import Attack, Claims, Forgery, Samples

K, D = 9, 24
_CLOSE = 1e-6  # relative: sums in another order end in other bits
_T = TypeVar("_T")


def sample_cohort(seed: int = 0, k: int = K, d: int = D, dtype: torch.dtype = torch.float64) -> Cohort:
    """A cohort of k random clients with everything that a rule may ask for."""
    g = Stream(seed).child("contract").torch()
    cut = [d // 3, d // 6, d - d // 3 - d // 6]
    layout = Layout.of({n: torch.empty(s) for n, s in zip(("a.weight", "a.bias", "b.weight"), cut, strict=True)})
    updates = torch.randn((k, d), generator=g, dtype=dtype)

    def probe(models: Tensor) -> Tensor:
        return (models[:, None, :] - updates[None]).square().sum(-1)

    return Cohort(
        ids=torch.randperm(50, generator=g)[:k].sort().values,
        start=torch.randn(d, generator=g, dtype=dtype),
        updates=updates,
        sizes=torch.randint(1, 50, (k,), generator=g),
        losses=0.1 + 3 * torch.rand(k, generator=g, dtype=dtype),
        signals={"gap": torch.rand(k, generator=g, dtype=dtype)},
        layout=layout,
        lr=0.1,
        n_clients=50,
        rng=Stream(seed).child("server"),
        probe=probe,
        root=torch.randn(d, generator=g, dtype=dtype),
    )


def server_rule_checks() -> Iterator[Callable[..., None]]:
    yield from (is_frozen, keeps_shapes, changes_no_input, repeats_itself, goes_ahead_as_it_is_called)
    yield ignores_the_order_of_clients


def is_frozen(part: object, seed: int = 0) -> None:
    params = getattr(type(part), "__dataclass_params__", None)
    assert params is not None, f"{type(part).__name__} is not a dataclass"
    assert params.frozen, f"{type(part).__name__} is not frozen"


def _rounds(
    rule: ServerRule, seed: int, rounds: int = 3, call: Callable[[Cohort, State], Outcome] | None = None
) -> list[tuple[Cohort, State, Outcome]]:
    """A few rounds in a row, the state handed on; `call` is how the rule is called."""
    state, out = rule.init(sample_cohort(seed).start), []
    for r in range(rounds):
        cohort = replace(sample_cohort(seed + 1000 * r), round=r)
        outcome = (call or rule)(cohort, state)
        out.append((cohort, state, outcome))
        state = outcome.state
    return out


def keeps_shapes(rule: ServerRule, seed: int = 0) -> None:
    for cohort, _, outcome in _rounds(rule, seed):
        assert outcome.direction.shape == cohort.start.shape, "direction: not the shape of the model"
        assert outcome.direction.dtype == cohort.updates.dtype, "direction: not the dtype of the updates"
        assert bool(torch.isfinite(outcome.direction).all()), "direction: not finite"
        assert all(bool(torch.isfinite(t).all()) for t in outcome.state.values()), "state: not finite"
        assert outcome.downloads is None or outcome.downloads.shape == cohort.updates.shape, "downloads: a row each"
        assert set(outcome.exclude) <= set(range(cohort.n_clients)), "exclude: unknown clients"
        for name, value in outcome.info.items():
            assert isinstance(value, int | float | str | bool | list | dict | Tensor), f"info {name}: {type(value)}"


def _tensors(part: object) -> dict[str, Tensor]:
    assert is_dataclass(part)
    found = {f.name: getattr(part, f.name) for f in fields(part)}
    return {n: t for n, t in found.items() if isinstance(t, Tensor)}


def _left_alone(shown: Mapping[str, Tensor | State], work: Callable[[], _T], where: str = "") -> _T:
    """What `work` gives; an error if one of the tensors that it is shown has other values then.

    By value: what is written through `.data`, through numpy or by a fused optimizer leaves no other trace.
    """
    before = {name: t.detach().clone() for name, t in _flat(shown).items()}
    made, after = work(), _flat(shown)
    for name in [*before, *after]:
        same = name in before and name in after and _equal(before[name], after[name])
        assert same, f"{where}{name} was changed in place"
    return made


def _flat(shown: Mapping[str, Tensor | State]) -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for name, t in shown.items():
        flat |= {name: t} if isinstance(t, Tensor) else {f"{name} {n}": inner for n, inner in t.items()}
    return flat


def _equal(a: Tensor, b: Tensor) -> bool:
    """As torch.equal, with NaN equal to itself."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def changes_no_input(rule: ServerRule, seed: int = 0) -> None:
    def call(cohort: Cohort, state: State) -> Outcome:
        shown: dict[str, Tensor | State] = {**_tensors(cohort), "signals": dict(cohort.signals), "state": state}
        _left_alone(shown, lambda: rule.plan(cohort.ids, state))
        return _left_alone(shown, lambda: rule(cohort, state))

    _rounds(rule, seed, call=call)


def _same(a: Outcome, b: Outcome) -> bool:
    downloads = a.downloads is None if b.downloads is None else torch.equal(_not_none(a.downloads), b.downloads)
    states = a.state.keys() == b.state.keys() and all(torch.equal(t, b.state[n]) for n, t in a.state.items())
    return (
        torch.equal(a.direction, b.direction) and downloads and states and a.exclude == b.exclude and a.stop == b.stop
    )


def _not_none(t: Tensor | None) -> Tensor:
    return torch.empty(0) if t is None else t


def repeats_itself(rule: ServerRule, seed: int = 0) -> None:
    for (_, _, a), (_, _, b) in zip(_rounds(rule, seed), _rounds(rule, seed), strict=True):
        assert _same(a, b), "the same cohort and state gave another outcome"


def goes_ahead_as_it_is_called(rule: ServerRule, seed: int = 0) -> None:
    """What is likely, settled by the answers, is what a call gives; and so it is where work is done again elsewhere."""

    def call(cohort: Cohort, state: State) -> Outcome:
        whole = rule(cohort, state)
        assert _same(whole, rule.ahead(replace(cohort, again=_elsewhere), state).now()), "ahead: another outcome"
        return whole

    _rounds(rule, seed, call=call)


def _elsewhere(work: Callable[..., tuple[Tensor, ...]], kind: Hashable, *given: Tensor) -> tuple[Tensor, ...]:
    """As a graph does it, with numbers that were copied to where it finds them."""
    hash(kind)
    copies = [t.clone() for t in given]
    first = [t.clone() for t in work(kind, *copies)]
    again = work(kind, *(c.copy_(t) for c, t in zip(copies, given, strict=True)))
    assert all(map(_equal, first, again)), "ahead: work done again gives other numbers"
    return again


def ignores_the_order_of_clients(rule: ServerRule, seed: int = 0) -> None:
    """Had clients other ids, the same would be done to each: what counts is what a client sent, and not in which row.

    A cohort is sorted by ids, so these stay, and what was sent changes hands. Where a rule remembers clients that is a
    question for the first round only, when it knows nobody.
    """
    if goes_by_id(rule):
        return
    order = torch.randperm(K, generator=Stream(seed).child("order").torch())
    for cohort, state, outcome in _rounds(rule, seed, rounds=1 if rule.per_client else 3):
        wrong = _differs(outcome, rule(_dealt(cohort, order), state), cohort.ids, order, rule.per_client)
        assert not wrong, f"clients in another order gave another {wrong}"


def goes_by_id(rule: ServerRule) -> bool:
    """Whether it says that who is who decides where rows do not: ties that the lowest id wins, numbers drawn by id."""
    parts = (*rule.filters, rule.rule) if isinstance(rule, Chain) else (rule,)
    return any(getattr(part, "by_id", False) for part in parts)


def _dealt(cohort: Cohort, order: Tensor) -> Cohort:
    """The cohort in which client k sent what the client of row order[k] did."""
    probe = cohort.probe
    assert cohort.losses is not None and probe is not None
    return replace(
        cohort,
        updates=cohort.updates[order],
        sizes=cohort.sizes[order],
        losses=cohort.losses[order],
        signals={n: s[order] for n, s in cohort.signals.items()},
        probe=lambda models: probe(models)[:, order],
    )


def _differs(a: Outcome, b: Outcome, ids: Tensor, order: Tensor, per_client: bool) -> str:
    """What is not the same in `b`, the outcome of the cohort that was dealt in that order; "" if all is."""
    now = dict(zip(ids[order].tolist(), ids.tolist(), strict=True))
    downloads = a.downloads if a.downloads is None else a.downloads[order]
    states = a.state.keys() == b.state.keys() and all(_close(t, b.state[n]) for n, t in a.state.items())
    same = {
        "direction": _close(a.direction, b.direction),
        "downloads": _close(_not_none(downloads), _not_none(b.downloads)),
        "state": states or per_client,
        "exclude": {now.get(i, i) for i in a.exclude} == set(b.exclude),
        "stop": a.stop == b.stop,
    }
    return next((name for name, ok in same.items() if not ok), "")


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    return bool((a - b).norm() <= _CLOSE * a.norm()) or _equal(a, b)


# ------------------------------------------------------------------------------------------------ whole methods


def sample_federation(sizes: tuple[int, ...] = (12, 25, 1, 9, 17, 30, 8, 14)) -> Federation:
    """A small classification problem with clients of unequal size, one of them with a single sample."""
    own = 6  # samples that the server holds itself
    g, n = Stream(7).torch(), sum(sizes) + 8 * len(sizes) + own
    y = torch.randint(3, (n,), generator=g)
    x = torch.randn((3, 5), generator=g)[y] + 0.5 * torch.randn((n, 5), generator=g)
    parts: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}
    at = 0
    for s in sizes:
        for name, size in (("train", s), ("validation", 4), ("test", 4)):
            parts[name].append(torch.arange(at, at + size))
            at += size
    splits = {name: Split.of(p) for name, p in parts.items()}
    return Federation(Dataset("contract", x, y, 3), splits, root=torch.arange(at, at + own))


def sample_run(
    method: Method,
    executor: str,
    rounds: int = 3,
    sizes: tuple[int, ...] | None = None,
    attack: Attack | None = None,
    own_models: Whose = "all",
) -> Simulation:
    federation = sample_federation(sizes) if sizes else sample_federation()
    model = build("mlp", (5,), 3, Stream(1), hidden=(6,))
    run = Run(executor=executor, dtype="float64", eval_every=0, own_models=own_models)  # type: ignore[arg-type]
    scenario = Scenario(federation, model, Train(rounds=rounds, batch=5, lr=0.05), attack=attack)
    simulation = Simulation(scenario, method, run)
    for _ in range(rounds):
        simulation.step()
    return simulation


def vectorised_equals_loop(method: Method, tolerance: float = 1e-8, attack: Attack | None = None) -> None:
    rows, loop = (sample_run(method, executor, attack=attack).dump() for executor in ("vmap", "loop"))
    assert rows.keys() == loop.keys()
    for name, t in rows.items():
        away = float((t.double() - loop[name].double()).norm())
        scale = max(1e-12, float(loop[name].double().norm()))
        assert away <= tolerance * scale, f"{name}: rows and loop differ by {away / scale:.1e}"


def survives_odd_clients(method: Method) -> None:
    """Clients with no sample, one sample, one class: finite everywhere."""
    simulation = sample_run(method, "vmap", sizes=(0, 1, 1, 10, 12, 11, 9, 13))
    assert all(bool(torch.isfinite(t).all()) for t in simulation.dump().values() if t.is_floating_point()), "not finite"
    for evaluation in simulation.evaluate("test").values():
        assert bool(torch.isfinite(torch.as_tensor(evaluation.loss)).all()), "a client's loss is not finite"


@dataclass(frozen=True, kw_only=True)
class _Doubled(Attack):
    def corrupt(self, seen: Forgery) -> Tensor:
        return 2.0 * seen.own


def outward_sends_the_same(method: Method) -> None:
    """Malicious clients who do no more than is sent change nothing in the global model."""
    half = _Doubled(fraction=0.5)
    every, some = (sample_run(method, "loop", attack=half, own_models=who).server.w for who in ("all", "honest"))
    assert torch.equal(every, some), "outward: what it sends is not what the rule sends"


@dataclass(frozen=True)
class _Watched(ClientRule):
    """A client rule, whose every hook is held to leaving alone what it is given."""

    rule: ClientRule

    def __post_init__(self) -> None:
        told = ("objective", "batches", "needs", "features", "personalised")
        self.__dict__.update({name: getattr(self.rule, name) for name in told})

    def init(self, w: Tensor) -> State:
        return _left_alone({"w": w}, lambda: self.rule.init(w), "init: ")

    def prepare(self, state: State, at: At) -> State:
        return _left_alone(_at(at, state=state), lambda: self.rule.prepare(state, at), "prepare: ")

    def schedule(self, given: Schedule, round: int, stream: Stream) -> Schedule:
        return self.rule.schedule(given, round, stream)

    def begin(self, received: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return _left_alone(_at(at, state=state), lambda: self.rule.begin(received, state, at), "begin: ")

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return _left_alone(_at(at, w=w, state=state), lambda: self.rule.step(w, state, at), "step: ")

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return _left_alone(_at(at, w=w, state=state), lambda: self.rule.end(w, state, at), "end: ")

    def report(self, state: State, at: At) -> dict[str, Tensor]:
        return _left_alone(_at(at, state=state), lambda: self.rule.report(state, at), "report: ")

    def receive(self, end: Tensor, state: State, download: Tensor) -> State:
        shown: dict[str, Tensor | State] = {"end": end, "state": state, "download": download}
        return _left_alone(shown, lambda: self.rule.receive(end, state, download), "receive: ")

    def finish(self) -> ClientRule | None:
        last = self.rule.finish()
        return None if last is None else _Watched(last)

    def personal(self, w: Tensor, state: State) -> Tensor:
        return _left_alone({"w": w, "state": state}, lambda: self.rule.personal(w, state), "personal: ")


def _at(at: At, **given: Tensor | State) -> dict[str, Tensor | State]:
    """What a hook is given, and what came from the server, which it can see there."""
    return {**given, "received": at.received, "message": dict(at.message)}


def clients_change_no_input(method: Method) -> None:
    """In no hook: neither the model and the state that it is given, nor what came from the server.

    One client after the other: rows that received the same model share it, and torch itself lets nobody write there.
    """
    simulation = sample_run(replace(method, client=_Watched(method.client)), "loop")
    simulation.finish()
    simulation.evaluate("test")


# ---------------------------------------------------------------------------------------------------- attacks


def leaves_alone_what_it_sees(attack: Attack, seed: int = 0) -> None:
    """What an attack is shown is the world's: it returns something new, and leaves that as it is."""
    cohort, stream, data = sample_cohort(seed), Stream(seed).child("attack"), sample_federation().data
    first, number = slice(0, 2), torch.arange(12)
    seen = Forgery(
        ids=cohort.ids[first],
        own=cohort.updates[first].clone(),
        honest=cohort.updates[2:].clone(),
        honest_ids=cohort.ids[2:],
        round=0,
        lr=0.1,
        stream=stream,
        oracle=lambda rows: rows.mean(0),
    )
    samples = Samples(data.x[:12].clone(), data.y[:12].clone(), number // 6, number, data.classes)
    losses = torch.rand(2, generator=stream.torch(), dtype=torch.float64)
    claims = Claims(torch.tensor([6, 6]), losses, {"gap": losses.clone()})
    shown = {**_tensors(seen), **_tensors(samples), **_tensors(claims), **claims.signals}
    before = {name: t.clone() for name, t in shown.items()}
    attack.poison(samples, stream)
    attack.outliers(samples, stream)
    attack.corrupt(replace(seen, memory=attack.remember(seen)))
    attack.lie(claims, stream)
    for name, t in shown.items():
        assert torch.equal(t, before[name]), f"{name} was changed in place"


# ---------------------------------------------------------------------------------------------- all of a file


def problems(part: Method | ServerRule | Filter | Attack, doc: Doc) -> list[str]:
    """Everything that is wrong with a part and its docstring, in words."""
    sections = ("summary", "reference", "equation", "departures")
    found = [f"the docstring has no {name}" for name in sections if not getattr(doc, name)]
    for run in _checks(part):
        try:
            run()
        except (AssertionError, EquipoiseError) as error:
            found.append(str(error))
        except Exception as error:  # a promise that could not be looked into is not kept, and others may be looked into
            found.append(f"{type(error).__name__}: {error}")
    return list(dict.fromkeys(found))


def _checks(part: Method | ServerRule | Filter | Attack) -> Iterator[Callable[[], None]]:
    """What holds for a part: a filter is tried in front of FedAvg's rule, an attack on FedAvg."""
    if isinstance(part, Filter | Attack):
        yield partial(is_frozen, part)
    if isinstance(part, Attack):
        yield partial(leaves_alone_what_it_sees, part)
        yield partial(vectorised_equals_loop, Method(), attack=part)
        return
    server = chain(part, WeightedMean()) if isinstance(part, Filter) else part
    method = server if isinstance(server, Method) else Method(server=server)
    yield from (partial(check, method.server) for check in server_rule_checks())
    whole = (clients_change_no_input, vectorised_equals_loop, survives_odd_clients, outward_sends_the_same)
    yield from (partial(check, method) for check in whole)
