"""The attacks of Ditto's experiments: A2, noise in place of an update, and A3, an update many times as large."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise import config, registry
from equipoise.attacks.label_noise import LabelNoise
from equipoise.attacks.model_replacement import ModelReplacement
from equipoise.attacks.random_update import RandomUpdate
from equipoise.core import Aggregator, Cohort, Method, WeightedMean
from equipoise.engine.settings import Participation
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery
from tests.small import federation, relative, simulation


def forgery(own: Tensor, honest: int = 3, round: int = 0) -> Forgery:
    ids, stream = torch.arange(len(own)), Stream(1).child("attack", round)
    return Forgery(ids, own, torch.zeros(honest, own.shape[1]), round, 0.1, stream, lambda updates: updates.mean(0))


def updates(seed: int = 0, f: int = 3, d: int = 5000) -> Tensor:
    scale = torch.tensor([1e-3, 1.0, 50.0])[:f, None]
    return 2.0 + scale * torch.randn((f, d), generator=Stream(seed).torch(), dtype=torch.float64)


class Seen(Aggregator):
    """Keeps the cohorts that it is given."""

    def __init__(self) -> None:
        self.cohorts: list[Cohort] = []

    def combine(self, cohort: Cohort) -> Tensor:
        self.cohorts.append(cohort)
        return cohort.updates.mean(0)


def sent(attack: Attack | None, **scenario: Any) -> list[Cohort]:
    """What the server saw in two rounds."""
    server = Seen()
    sim = simulation(Method("seen", server=server), attack=attack, **scenario)
    for _ in range(2):
        sim.step()
    return server.cohorts


# ------------------------------------------------------------------------------------------------- A2: random updates


def test_noise_has_the_deviation_of_each_clients_own_update_and_mean_zero() -> None:
    own = updates()
    noise = RandomUpdate(count=1).corrupt(forgery(own))
    spread = own.std(1, correction=0)
    assert (noise.std(1, correction=0) / spread).tolist() == pytest.approx([1.0] * 3, abs=0.05)
    assert (noise.mean(1) / spread).tolist() == pytest.approx([0.0] * 3, abs=0.05)
    assert relative(noise, own) > 0.5


def test_the_deviation_of_many_numbers_is_that_of_all_of_them() -> None:
    own = 5.0 + torch.randn(3, 300_001, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1.0], [1e-3], [1e3]]
    )
    noise, unit = (RandomUpdate(count=1, scale=s).corrupt(forgery(own.double())) for s in ("matched", "unit"))  # type: ignore[arg-type]
    assert (noise / unit)[:, 0].tolist() == pytest.approx(own.double().numpy().std(1).tolist(), rel=1e-12)


def test_unit_noise_forgets_the_update() -> None:
    noise = RandomUpdate(count=1, scale="unit").corrupt(forgery(updates()))
    assert noise.std(1).tolist() == pytest.approx([1.0] * 3, abs=0.05)
    assert torch.equal(noise, RandomUpdate(count=1, scale="unit").corrupt(forgery(updates(seed=9))))


def test_noise_differs_between_clients_and_rounds_and_repeats_with_the_seed() -> None:
    attack, same = RandomUpdate(count=1), updates()[:1].expand(2, -1)
    first, again, later = (attack.corrupt(forgery(same, round=r)) for r in (0, 0, 1))
    assert torch.equal(first, again)
    correlation = torch.corrcoef(torch.cat([first, later])).fill_diagonal_(0)
    assert correlation.abs().max() < 0.06


@pytest.mark.parametrize("own", [torch.zeros(2, 7), torch.full((2, 7), 3.0), torch.ones(2, 1)])
def test_an_update_without_deviation_is_matched_by_zero(own: Tensor) -> None:
    assert torch.equal(RandomUpdate(count=1).corrupt(forgery(own)), torch.zeros_like(own))


def test_honest_clients_send_what_they_learned() -> None:
    for attack in (RandomUpdate(clients=(1,)), ModelReplacement(clients=(1,))):
        clean, attacked = sent(None)[0], sent(attack)[0]
        same = (clean.updates == attacked.updates).all(1)
        assert same.tolist() == [True, False, True, True]


# ---------------------------------------------------------------------------------------------- A3: model replacement


@given(st.integers(1, 4), st.integers(0, 6), st.none() | st.floats(-10, 10))
def test_the_update_is_scaled_by_the_clients_of_the_round_or_by_the_factor(
    f: int, h: int, factor: float | None
) -> None:
    own = torch.randn((f, 6), generator=Stream(f).torch())
    found = ModelReplacement(count=1, factor=factor).corrupt(forgery(own, h))
    assert torch.equal(found, own * (f + h if factor is None else factor))


def test_the_clients_of_the_round_are_those_that_answered() -> None:
    clean, attacked = (
        sent(a, participation=Participation(per_round=2))[0] for a in (None, ModelReplacement(fraction=1.0))
    )
    assert relative(attacked.updates, 2 * clean.updates) < 1e-12


def test_one_client_replaces_the_model_where_the_others_do_not_move() -> None:
    """The plain mean of one scaled update and zeros lands on that client's own model."""
    own = torch.randn((1, 8), generator=Stream(3).torch(), dtype=torch.float64)
    cohort = forgery(own, honest=4)
    everyone = torch.cat([ModelReplacement(count=1).corrupt(cohort), cohort.honest])
    seen = Cohort(torch.arange(5), torch.zeros(8), everyone, torch.ones(5, dtype=torch.int64))
    assert torch.allclose(WeightedMean("uniform").combine(seen), own[0], rtol=1e-12)


# -------------------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("kind", [RandomUpdate, ModelReplacement])
def test_with_label_noise_malicious_clients_train_as_under_a1(kind: type[Any]) -> None:
    fed = federation((9, 25, 12, 14))
    as_a1 = simulation(fed=fed, attack=LabelNoise(clients=(1, 3))).simulator.federation.data.y
    ours = simulation(fed=fed, attack=kind(clients=(1, 3), label_noise=True)).simulator.federation.data.y
    assert torch.equal(as_a1, ours) and len(ours) > len(fed.data)
    clean = simulation(fed=fed, attack=kind(clients=(1, 3))).simulator.federation.data.y
    assert torch.equal(clean, fed.data.y)


def test_poisoned_labels_reach_the_scaled_update() -> None:
    plain, poisoned = (
        sent(ModelReplacement(clients=(1,), factor=1.0, label_noise=p))[0].updates[1] for p in (False, True)
    )
    assert relative(poisoned, plain) > 0.1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomUpdate(count=1, scale="huge"), "scale is 'huge'"),  # type: ignore[arg-type]
        (lambda: ModelReplacement(count=1, factor=float("inf")), "factor is inf"),
        (lambda: ModelReplacement(), "give exactly one"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(EquipoiseError, match=said):
        make()


def test_both_can_be_named_in_a_config() -> None:
    start = '[data]\ndataset = "digits"\nclients = 5\n[model]\nkind = "linear"\n[method]\nname = "ditto"\n[attack]\n'
    for text, attack in {
        'name = "random-update"\nfraction = 0.2\nscale = "unit"': RandomUpdate(fraction=0.2, scale="unit"),
        'name = "model-replacement"\ncount = 2\nfactor = 10.0': ModelReplacement(count=2, factor=10.0),
    }.items():
        assert config.load(start + text).make_attack() == attack
    assert {"random-update", "model-replacement"} <= registry.attacks().keys()
