"""Every attack there is does to plain averaging what it is for, on the embedded digits.

20 clients with unlike shares of the classes, 6 of them malicious, a linear model, 15 rounds of 3 local steps, one seed.
Accuracies are means over the 14 benign clients. Next to a run with an attack stand two without: one in which the same
6 clients are honest, and one in which they are absent, which tells what an attack does from what their silence costs.

The table names the effect of every attack. Where it is a worse model, accuracy falls by at least so much: below that of
absence where the attack is a strong one, below that of honesty where it is bad data, noise or stealth. Others want
something else, and are held to that. An attack without an entry in the table fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import registry
from equipoise.aggregators.krum import Krum
from equipoise.core import Cohort, Method, Outcome, ServerRule, State, WeightedMean
from equipoise.data.datasets import load
from equipoise.data.federation import Federation
from equipoise.data.partition import partition
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.server import RoundRecord
from equipoise.engine.settings import Admission, Run, Train
from equipoise.models import build
from equipoise.streams import Stream
from equipoise.threat import Attack

N, BAD = 20, (4, 5, 7, 10, 12, 15)
GOOD = np.setdiff1d(np.arange(N), BAD)
OFF, GUARDED = Admission(guard="off"), Admission()


@dataclass(frozen=True)
class ByLoss(ServerRule):
    """sum_k F_k u_k / sum_k F_k: what methods do that help the worst-off, in one line (q-FFL's weights for q = 1)."""

    needs = frozenset({"losses"})  # type: ignore[assignment]

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        assert cohort.losses is not None
        weights = cohort.losses.double() / cohort.losses.double().sum()
        return Outcome(weights.to(cohort.updates.dtype) @ cohort.updates, info={"weights": weights})


MEAN, BY_LOSS = WeightedMean(), ByLoss()


@cache
def federation() -> Federation:
    return partition(load("digits"), "dirichlet", alpha=0.3, clients=N, test=0.3, min_size=20, seed=0)


@dataclass(frozen=True)
class Found:
    """What a run ends with: per-client accuracies, the share of the target that is hit, the model, all records."""

    accuracy: np.ndarray
    success: float | None
    w: torch.Tensor
    records: tuple[RoundRecord, ...]

    @property
    def benign(self) -> float:
        return float(self.accuracy[GOOD].mean())


@cache
def ran(attack: Attack | None, server: ServerRule = MEAN, admission: Admission = OFF, absent: bool = False) -> Found:
    model = build("linear", (1, 8, 8), 10, Stream(0).child("init"))
    train = Train(rounds=15, steps=3, batch=32, lr=1.0)
    scenario = Scenario(federation(), model, train, admission=admission, attack=attack)
    sim = Simulation(scenario, Method("plain", server=server), Run(seed=0, device="cpu"))
    sim.server.excluded[list(BAD)] = absent
    records = tuple(sim.step() for _ in range(train.rounds))
    return Found(sim.evaluate("test")["global"].accuracy, sim.success(), sim.server.w, records)


def honest(server: ServerRule = MEAN) -> float:
    return ran(None, server).benign


def without() -> float:
    return ran(None, absent=True).benign


# -------------------------------------------------------------------------------------------------------- the effects

Effect = Callable[[Attack], None]


def harms(by: float) -> Effect:
    """Benign accuracy is lower, by so much, than if the malicious clients had stayed away."""

    def check(attack: Attack) -> None:
        assert ran(attack).benign <= min(without(), honest()) - by

    return check


def costs(by: float) -> Effect:
    """Benign accuracy is lower, by so much, than if the same clients' data had been good."""

    def check(attack: Attack) -> None:
        assert ran(attack).benign <= honest() - by

    return check


def succeeds(share: float) -> Effect:
    """The attacker's target is hit so often, half as often at most by an honest model; the rest goes on as before."""

    def check(attack: Attack) -> None:
        found, idle = ran(attack), ran(replace(attack, clients=()))
        assert found.success is not None and idle.success is not None
        assert found.success >= share >= 2 * idle.success
        assert found.benign >= honest() - 0.1

    return check


def is_taken(attack: Attack) -> None:
    """Whoever looks for the update that is most like the others finds the forged one in nearly every round."""
    found = ran(attack, Krum(f=len(BAD)))
    forged = torch.isin(torch.arange(N), torch.tensor(BAD))
    assert sum(float(r.info["weights"][forged].sum()) for r in found.records) >= 0.8 * len(found.records)


def rides_free(attack: Attack) -> None:
    """The free riders get a model that serves them as well as all who worked would have served an absent client."""
    bad, found = list(BAD), ran(attack)
    assert float(found.accuracy[bad].mean()) >= float(ran(None, absent=True).accuracy[bad].mean()) - 0.05
    assert found.benign >= without() - 0.05


def turned_away(reason: str) -> Effect:
    """Every message is quarantined, and the model is the one that comes of the malicious clients' absence."""

    def check(attack: Attack) -> None:
        found = ran(attack)
        assert all(r.quarantined == dict.fromkeys(BAD, reason) and not r.skipped for r in found.records)
        assert bool(torch.isfinite(found.w).all()) and found.benign == pytest.approx(without(), abs=1e-6)

    return check


def outshouts(server: ServerRule, by: float) -> Effect:
    """The lie makes the same bad data cost so much more, and the guard of admission takes most of that back."""

    def check(attack: Attack) -> None:
        silent = make("label-noise")
        plain, lied, guarded = ran(silent, server), ran(attack, server), ran(attack, server, GUARDED)
        assert lied.benign <= plain.benign - by
        assert guarded.benign - lied.benign >= 0.5 * (plain.benign - lied.benign)

    return check


# ---------------------------------------------------------------------------------------------------------- the table

Entry = tuple[dict[str, Any], Effect]

EXPECTED: dict[str, list[Entry]] = {
    "alie": [({}, costs(0.02)), ({}, is_taken), ({"search": True}, harms(0.4))],
    "backdoor": [({}, succeeds(0.9)), ({"share": 0.2, "boost": 3.0}, succeeds(0.9))],
    "free-rider": [({}, harms(0.03)), ({"kind": "unchanged"}, rides_free), ({"kind": "disguised"}, rides_free)],
    "gaussian-outliers": [({"share": 1.0, "once": o}, costs(0.02)) for o in (False, True)],
    "ipm": [({}, is_taken), ({"epsilon": 100.0}, harms(0.4)), ({"search": True}, harms(0.4))],
    "label-flip": [({"pairs": "all"}, harms(0.1)), ({}, succeeds(0.2))],
    "label-noise": [({}, harms(0.02))],
    "lie-loss": [({"label_noise": True}, outshouts(BY_LOSS, 0.2))],
    "lie-size": [({"label_noise": True}, outshouts(MEAN, 0.2))],
    "mimic": [({}, costs(0.05)), ({"search": True}, costs(0.03))],
    "min-max": [({}, harms(0.2)), ({"perturbation": "sign"}, harms(0.2)), ({"search": True}, harms(0.4))],
    "min-sum": [({}, harms(0.2)), ({"perturbation": "sign"}, harms(0.2)), ({"search": True}, harms(0.4))],
    "model-replacement": [({"label_noise": True}, harms(0.4))],
    "pixel-corruption": [({"share": 1.0, "pixels": 1.0, "once": o}, costs(0.04)) for o in (False, True)],
    "random-signs": [({}, costs(0.03))],
    "random-update": [({}, costs(0.03)), ({"scale": "unit"}, harms(0.2))],
    "rescale": [({}, harms(0.4))],
    "send-nan": [({"value": v}, turned_away("not-finite")) for v in ("nan", "inf")],
    "sign-flip": [({"scale": 3.0}, harms(0.4))],
    "value-invert": [({}, harms(0.4))],
    "wrong-shape": [({}, turned_away("shape"))],
}


def make(name: str, **settings: Any) -> Attack:
    made: Attack = registry.attacks()[name].make(clients=BAD, **settings)
    return made


def test_every_attack_has_an_entry_and_every_entry_an_attack() -> None:
    assert set(EXPECTED) == set(registry.attacks())


CASES = [(name, settings, effect) for name in registry.attacks() for settings, effect in EXPECTED.get(name, [])]
NAMES = [" ".join([name, *(f"{k}={v}" for k, v in settings.items())]) for name, settings, _ in CASES]


@pytest.mark.parametrize(("name", "settings", "effect"), CASES, ids=NAMES)
def test_an_attack_does_to_plain_averaging_what_it_is_for(name: str, settings: dict[str, Any], effect: Effect) -> None:
    effect(make(name, **settings))


def test_without_an_attack_the_model_is_good() -> None:
    assert honest() > 0.85 and without() > 0.8
