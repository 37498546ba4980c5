"""Same seed, same clients, same batches: whatever the method, the attack and the rest."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from equipoise.attacks import LabelNoise, SignFlip
from equipoise.core import At, Method, State
from equipoise.data.federation import Federation, Split
from equipoise.engine.adversary import enlarged, poisoned
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.methods import fedavg, fedprox, local
from equipoise.methods.local import Alone
from equipoise.streams import Stream
from equipoise.threat import Attack
from tests.small import federation, relative, simulation

SIZES = (9, 12, 20, 7, 15, 11, 8, 10)


def watched(method: Method, attack: Attack | None) -> tuple[list[tuple[int, ...]], list[torch.Tensor]]:
    """Who was drawn, and which samples each client's training looked at, by round."""
    sim = simulation(method, federation(SIZES), attack=attack, participation=Participation(per_round=3))
    seen: list[torch.Tensor] = []
    original = sim.simulator.executor

    def executor(disturb: object = None) -> object:
        made = original(disturb)  # type: ignore[arg-type]
        run = made.run
        made.run = lambda rule, work, *rest: seen.append(work.batches.index) or run(rule, work, *rest)  # type: ignore[method-assign,func-returns-value]
        return made

    sim.simulator.executor = executor  # type: ignore[method-assign,assignment]
    drawn = [sim.step().drawn for _ in range(5)]
    return drawn, seen


def test_neither_a_method_nor_an_attack_changes_who_is_drawn_or_what_they_see() -> None:
    honest = watched(fedavg(), None)
    for method, attack in [(fedprox(1.0), None), (local(), None), (fedavg(), SignFlip(fraction=0.4))]:
        drawn, seen = watched(method, attack)
        assert drawn == honest[0]
        assert all(torch.equal(a, b) for a, b in zip(seen, honest[1], strict=True))
    drawn, seen = watched(fedavg(), LabelNoise(fraction=0.4))
    assert drawn == honest[0]  # poisoned samples are appended, so their numbers differ, but not how many there are
    assert [s.shape for s in seen] == [s.shape for s in honest[1]]


def test_another_seed_draws_others() -> None:
    a, b = (
        simulation(fed=federation(SIZES), participation=Participation(per_round=3), run=Run(seed=s)) for s in (0, 1)
    )
    assert [a.step().drawn for _ in range(4)] != [b.step().drawn for _ in range(4)]


def test_the_malicious_are_as_many_as_asked_and_the_same_for_every_attack() -> None:
    stream = Stream(3)
    assert LabelNoise(fraction=0.25).malicious(20, stream).tolist() == SignFlip(count=5).malicious(20, stream).tolist()
    assert LabelNoise(clients=(7, 2)).malicious(20, stream).tolist() == [2, 7]


@pytest.mark.parametrize("who", [{}, {"fraction": 0.1, "count": 2}, {"fraction": 1.5}, {"count": -1}])
def test_an_unclear_number_of_malicious_is_an_error(who: dict[str, float]) -> None:
    with pytest.raises(EquipoiseError, match="LabelNoise"):
        LabelNoise(**who)  # type: ignore[arg-type]


def test_label_noise_touches_training_labels_of_the_malicious_only() -> None:
    fed = federation((30, 30, 30), classes=5)
    bad = torch.tensor([False, True, False])
    after = poisoned(fed, LabelNoise(fraction=0.3), bad, Stream(0))
    for k in range(3):
        for split in ("train", "validation", "test"):
            old, new = fed.splits[split].of_client(k), after.splits[split].of_client(k)
            assert torch.equal(fed.data.x[old], after.data.x[new])
            same = torch.equal(fed.data.y[old], after.data.y[new])
            assert same == (k != 1 or split != "train")
    changed = after.data.y[after.splits["train"].of_client(1)]
    assert set(changed.tolist()) <= set(range(5)) and len(set(changed.tolist())) > 2


def test_a_sample_shared_with_an_honest_client_stays_true_for_it() -> None:
    fed = federation((20,))
    common = {n: Split.common(s.index, 2) for n, s in fed.splits.items()}
    both = Federation(fed.data, common)
    after = poisoned(both, LabelNoise(clients=(1,)), torch.tensor([False, True]), Stream(0))
    assert torch.equal(after.data.y[after.splits["train"].of_client(0)], fed.data.y[fed.splits["train"].index])
    assert not torch.equal(after.data.y[after.splits["train"].of_client(1)], fed.data.y[fed.splits["train"].index])


def test_with_two_classes_label_noise_flips() -> None:
    fed = federation((20, 20), classes=2)
    after = poisoned(fed, LabelNoise(clients=(0,)), torch.tensor([True, False]), Stream(0))
    assert torch.equal(
        after.data.y[after.splits["train"].of_client(0)], 1 - fed.data.y[fed.splits["train"].of_client(0)]
    )


def test_sign_flip_sends_the_opposite() -> None:
    flipped, honest = (simulation(attack=a) for a in (SignFlip(fraction=1.0, scale=2.0), None))
    start = honest.server.w.clone()
    honest.step()
    flipped.step()
    assert relative(start - flipped.server.w, -2.0 * (start - honest.server.w)) < 1e-12


def learned(sim: Simulation, rounds: int = 30) -> float:
    for _ in range(rounds):
        sim.step()
    found = sim.evaluate("test")
    return float(np.nanmean(found.get("personal", found["global"]).accuracy))


@pytest.mark.parametrize("method", [fedavg(), fedprox(0.1), local()])
def test_it_learns(method: Method) -> None:
    before = float(np.nanmean(simulation(method, federation((30, 30, 30))).evaluate("test")["global"].accuracy))
    assert learned(simulation(method, federation((30, 30, 30)), train=Train(batch=5, lr=0.1))) > max(0.8, before)


def test_evaluation_equals_a_plain_loop_over_clients() -> None:
    fed = federation(SIZES)
    for method in (fedavg(), local()):
        sim = simulation(method, fed, participation=Participation(per_round=3))
        for _ in range(3):
            sim.step()
        for kind, found in sim.evaluate("test").items():
            for k in range(len(SIZES)):
                at = fed.splits["test"].of_client(k)
                w = sim.server.w if kind == "global" else sim.simulator.personal(torch.tensor([k]), sim.server.w)[0]
                weight, bias = sim.server.layout.tensors(w).values()
                out = fed.data.x[at].double() @ weight.T + bias
                loss = torch.nn.functional.cross_entropy(out, fed.data.y[at])
                assert found.loss[k] == pytest.approx(float(loss), rel=1e-9)
                assert found.correct[k] == int((out.argmax(1) == fed.data.y[at]).sum())
                for c in range(3):
                    mine = fed.data.y[at] == c
                    assert found.class_n[k, c] == int(mine.sum())
                    assert found.class_correct[k, c] == int((out.argmax(1)[mine] == c).sum())


def test_clients_never_drawn_have_the_model_they_started_with_and_no_state() -> None:
    sim = simulation(local(), federation(SIZES), participation=Participation(per_round=2))
    drawn = set(sim.step().drawn)
    assert sim.simulator.store.ids().tolist() == sorted(drawn)
    other = next(k for k in range(len(SIZES)) if k not in drawn)
    assert torch.equal(sim.simulator.personal(torch.tensor([other]), sim.server.w)[0], sim.simulator.w0)
    sim.evaluate("test")
    assert sim.simulator.store.ids().tolist() == sorted(drawn)


def test_a_client_that_diverges_keeps_its_last_finite_state() -> None:
    sim = simulation(local(), federation((9, 9)), train=Train(batch=5, lr=1e200))
    for _ in range(4):
        record = sim.step()
    assert set(record.quarantined.values()) <= {"not-finite"}
    assert all(bool(torch.isfinite(t).all()) for t in sim.dump().values())


def test_everyone_dropping_out_leaves_the_model_alone() -> None:
    sim = simulation(participation=Participation(dropout=0.999))
    before = sim.server.w.clone()
    records = [sim.step() for _ in range(3)]
    assert any("quorum" in r.skipped for r in records)
    assert torch.equal(before, sim.server.w) or any(not r.skipped for r in records)


def test_a_model_with_batch_statistics_is_refused_by_name() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    with pytest.raises(EquipoiseError, match=r"BatchNorm1d|1"):
        simulation(model=module)


def test_a_model_that_cannot_be_mapped_runs_one_by_one_and_says_why() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.linear(x)
            return out * 2 if float(out.detach().sum()) > 1e9 else out

    sim = simulation(model=Odd())
    assert not sim.vectorised and "cannot map" in sim.executor_reason
    sim.step()
    with pytest.raises(EquipoiseError, match="cannot map"):
        simulation(model=Odd(), run=Run(executor="vmap"))


def test_added_attackers_change_nothing_about_the_honest() -> None:
    fed, three = federation(SIZES), Participation(per_round=3)
    clean, joined = (simulation(fed=fed, participation=three, attack=a) for a in (None, SignFlip(added=0.5, scale=1.0)))
    assert joined.n_clients == 12 and joined.malicious.tolist() == [False] * 8 + [True] * 4
    for _ in range(4):
        honest, both = clean.step().drawn, joined.step().drawn
        assert [i for i in both if i < 8] == list(honest)
        assert len([i for i in both if i >= 8]) == 2
    for k in range(8):
        assert torch.equal(joined.simulator.federation.splits["train"].of_client(k), fed.splits["train"].of_client(k))
    found = joined.evaluate("test")["global"]
    assert found.n.tolist() == [5] * 8 + [0] * 4


def test_added_attackers_hold_data_like_an_honest_clients() -> None:
    fed = federation(SIZES)
    big = enlarged(fed, SignFlip(added=1.0), Stream(1))
    honest = {tuple(c) for c in fed.class_counts().tolist()}
    for k in range(8, 16):
        counts = torch.bincount(fed.data.y[big.splits["train"].of_client(k)], minlength=3)
        assert tuple(counts.tolist()) in honest


def test_an_attacker_without_data_claims_the_median_size() -> None:
    class Idle(Attack):
        holds_data = False

    sim = simulation(fed=federation(SIZES), attack=Idle(added=0.25))
    assert sim.simulator.federation.sizes.tolist()[8:] == [0, 0]
    assert sim.simulator.claimed.tolist()[8:] == [10, 10]
    assert sim.simulator.claimed.tolist()[:8] == list(SIZES)


def test_finishing_trains_every_client_once_more_after_the_last_round() -> None:
    @dataclass(frozen=True)
    class Tune(Alone):
        def begin(self, received: torch.Tensor, state: State, at: At) -> tuple[torch.Tensor, State]:
            return received, {}

    @dataclass(frozen=True)
    class Later(Tune):
        def end(self, w: torch.Tensor, state: State, at: At) -> tuple[torch.Tensor, State]:
            return w, state

        def finish(self) -> Tune:
            return Tune()

    sim = simulation(Method("later", Later()), federation(SIZES), participation=Participation(per_round=2))
    for _ in range(3):
        sim.step()
    assert all(torch.equal(m, sim.simulator.w0) for m in sim.personal()[1])  # type: ignore[index]
    sim.finish()
    ids, models = sim.personal()  # type: ignore[misc]
    assert ids.tolist() == list(range(8))
    assert min(relative(m, sim.server.w) for m in models) > 1e-9
