"""FedLF on the digits, two classes per client and a quarter of the clients per round: who is opposed, and where.

Judged by `conflicts.conflicts` on what the server was sent and what it did, not by FedLF's own account, and without any
tolerance: a client is opposed where u_k . d < 0. For with r_k = ||u_k|| in a layer and m the mean of them, the min-norm
property says u_k . d >= r_k ||d||^2 / m, and a layer with ||d|| <= 1e-6 m was merged away, so u_k . d > 1e-6 r_k ||d||.
As d is summed in float64 and rounded to float32 once, rounding is worth at most 6e-8 r_k ||d|| and changes no sign.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch

from equipoise.conflicts import conflicts
from equipoise.core import Cohort, Method, Outcome, ServerRule, State
from equipoise.data import load, partition
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedlf import fedlf
from equipoise.models import build
from equipoise.streams import Stream

SEEDS, ROUNDS = range(5), 15


@dataclass(frozen=True)
class Witness(ServerRule):
    """Passes everything on, and keeps what it saw."""

    rule: ServerRule
    seen: list[tuple[Cohort, Outcome]] = field(default_factory=list)
    per_client = True

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs

    def init(self, w: torch.Tensor) -> State:
        return self.rule.init(w)

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        outcome = self.rule(cohort, state)
        self.seen.append((cohort, outcome))
        return outcome


@cache
def watch(method: Method, seed: int) -> list[tuple[Cohort, Outcome]]:
    fed = partition(load("digits"), "pathological", clients=20, classes=2, seed=seed)
    model = build("mlp", (8, 8), 10, Stream(seed).child("init"), hidden=(32, 16))
    train = Train(rounds=ROUNDS, batch=10, lr=0.1, lr_decay=0.999)
    scenario = Scenario(fed, model, train, Participation(per_round=5))
    witness = Witness(method.server)
    sim = Simulation(scenario, Method(method.name, method.client, witness), Run(seed=seed, device="cpu"))
    for _ in range(ROUNDS):
        assert not sim.step().skipped
    assert sim.server.w.dtype == torch.float32
    return witness.seen


def against(cohort: Cohort, outcome: Outcome, layer: str = "module") -> dict[str, int]:
    """Opposed clients over the model and in every layer, or in the groups that the rule says it merged."""
    layers = cohort.layout.layers(layer)
    names = list(outcome.info.get("group_conflicts", layers))
    groups = {name: [part for one in name.split("+") for part in layers[one]] for name in names}
    assert sum(s.stop - s.start for parts in groups.values() for s in parts) == cohort.layout.size
    return conflicts(cohort.updates, outcome.direction, groups)


@pytest.mark.parametrize("layer", ["module", "tensor"])
@pytest.mark.parametrize("seed", SEEDS)
def test_fedlf_opposes_no_client_in_any_layer_or_merged_group(seed: int, layer: Any) -> None:
    seen = watch(fedlf(layer=layer), seed)
    for cohort, outcome in seen:
        found = against(cohort, outcome, layer)
        assert set(found.values()) == {0}, (cohort.round, found)
        assert outcome.info["group_conflicts"] == {name: 0 for name in found if name != "model"}
        assert outcome.direction.any()
    assert any(o.info["absent"] > 0 for _, o in seen)


def test_fedavg_opposes_some_in_every_layer_and_in_the_whole_model() -> None:
    found = [[against(*pair) for pair in watch(fedavg(), seed)] for seed in SEEDS]
    assert all(sum(sum(f.values()) for f in rounds) > 0 for rounds in found)
    assert all(sum(f[name] for rounds in found for f in rounds) > 0 for name in found[0][0])


def test_merges_happen_where_layers_are_small_and_are_reported() -> None:
    infos = [o.info for _, o in watch(fedlf(layer="tensor"), 0)]
    merged = [name for info in infos for name in info["merged"]]
    assert merged and all("+" in name for name in merged)
    assert all(set(info["merged"]) <= set(info["group_conflicts"]) for info in infos)


def test_a_direction_for_the_whole_model_opposes_clients_in_its_layers() -> None:
    """Ablation M2: what the layers are for."""
    found = [conflicts(c.updates, o.direction, c.layout.layers()) for c, o in watch(fedlf(ablation="M2"), 0)]
    assert sum(f["model"] for f in found) == 0
    assert sum(sum(f.values()) for f in found) > 0
