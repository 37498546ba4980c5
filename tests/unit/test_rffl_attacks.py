"""The five attacks of RFFL's experiments: what they change, and what they leave alone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise import config
from equipoise.attacks.free_rider import FreeRider
from equipoise.attacks.label_flip import LabelFlip
from equipoise.attacks.random_signs import RandomSigns
from equipoise.attacks.rescale import Rescale
from equipoise.attacks.value_invert import ValueInvert
from equipoise.core import SGD, Cohort, Method, Outcome, State, WeightedMean
from equipoise.engine.settings import Train
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery, Samples
from tests.small import federation, simulation


def forgery(own: Tensor, stream: int = 0) -> Forgery:
    ids = torch.arange(len(own)) + 3
    return Forgery(ids, own, own[:0], 0, 0.1, Stream(stream), lambda x: x.mean(0))


def noise(k: int = 3, d: int = 400, seed: int = 0) -> Tensor:
    return torch.randn((k, d), generator=torch.Generator().manual_seed(seed))


def samples(y: list[int], classes: int = 10) -> Samples:
    n = len(y)
    return Samples(torch.zeros(n, 2), torch.tensor(y), torch.zeros(n, dtype=torch.int64), torch.arange(n), classes)


# ------------------------------------------------------------------------------------------------------ label flip


def test_ones_become_sevens_and_everything_else_stays() -> None:
    flipped = LabelFlip(count=1).poison(samples([0, 1, 7, 1, 9]), Stream(0))
    assert flipped.y.tolist() == [0, 7, 7, 7, 9]


def test_pairs_are_flipped_at_the_same_time() -> None:
    flipped = LabelFlip(count=1, pairs=((1, 7), (7, 1))).poison(samples([0, 1, 7]), Stream(0))
    assert flipped.y.tolist() == [0, 7, 1]


def test_all_turns_the_order_of_the_classes_round() -> None:
    flipped = LabelFlip(count=1, pairs="all").poison(samples([0, 1, 2], classes=3), Stream(0))
    assert flipped.y.tolist() == [2, 1, 0]


def test_only_malicious_clients_training_labels_are_flipped() -> None:
    fed = federation((12, 12, 12))
    sim = simulation(fed=fed, attack=LabelFlip(clients=(1,), pairs=((0, 2),)))
    now = sim.simulator.federation
    for k in range(3):
        before, after = (f.data.y[f.splits["train"].of_client(k)] for f in (fed, now))
        assert torch.equal(before, after) == (k != 1)
        assert (after == 0).any() == (k != 1)
        tests = (f.data.y[f.splits["test"].of_client(k)] for f in (fed, now))
        assert torch.equal(*tests)


def test_success_is_measured_on_flipped_classes_under_their_new_names() -> None:
    aimed = LabelFlip(count=1, pairs=((1, 7), (3, 3))).target(samples([0, 1, 7, 3, 1]))
    assert aimed.y.tolist() == [7, 7]
    assert aimed.index.tolist() == [1, 4]


def test_flipping_most_labels_succeeds_more_often_than_flipping_none() -> None:
    found = {}
    for flippers in ((0, 1, 2, 3), ()):
        attack = LabelFlip(clients=flippers, pairs=((0, 2), (2, 0)))
        sim = simulation(fed=federation((30,) * 5), attack=attack, train=Train(epochs=10, batch=5, lr=0.1))
        sim.step()
        found[len(flippers)] = sim.success()
    assert found[4] is not None and found[0] is not None
    assert found[4] > found[0]


@pytest.mark.parametrize("pairs", [(), ((1, 2, 3),), ((-1, 2),), ((1, 2), (1, 3)), "some"])
def test_pairs_that_make_no_sense_are_refused(pairs: Any) -> None:
    with pytest.raises(EquipoiseError, match="label-flip: pairs is"):
        LabelFlip(count=1, pairs=pairs)


def test_classes_that_the_dataset_does_not_have_are_refused() -> None:
    with pytest.raises(EquipoiseError, match=r"label-flip: pair \(1, 7\)"):
        LabelFlip(count=1).poison(samples([0, 1], classes=3), Stream(0))
    with pytest.raises(EquipoiseError, match="0 classes"):
        LabelFlip(count=1).poison(samples([0, 1], classes=0), Stream(0))


@pytest.mark.parametrize(("written", "meant"), [("[[0, 2], [2, 0]]", ((0, 2), (2, 0))), ('"all"', "all")])
def test_pairs_can_be_written_in_a_config(written: str, meant: Any) -> None:
    text = '[data]\ndataset = "digits"\nclients = 5\n[model]\nkind = "mlp"\n[method]\nname = "rffl"\nclip = 0.5\n'
    text += f'[attack]\nname = "label-flip"\ncount = 1\npairs = {written}\n'
    read = config.load(text)
    assert read.make_attack() == LabelFlip(count=1, pairs=meant)
    assert config.load(config.dump(read)) == read


# -------------------------------------------------------------------------------------------------- forged updates


def test_rescaled_updates_are_the_honest_ones_times_minus_a_hundred() -> None:
    assert torch.equal(Rescale(count=1).corrupt(forgery(noise())), -100 * noise())
    assert torch.equal(Rescale(count=1, factor=3.0).corrupt(forgery(noise())), 3 * noise())
    with pytest.raises(EquipoiseError, match="rescale: factor is nan"):
        Rescale(count=1, factor=float("nan"))


def test_random_signs_keep_every_magnitude_and_turn_about_half() -> None:
    sent = RandomSigns(count=1).corrupt(forgery(noise(3, 4000)))
    assert torch.equal(sent.abs(), noise(3, 4000).abs())
    turned = (sent != noise(3, 4000)).double().mean(1)
    assert bool(((turned > 0.45) & (turned < 0.55)).all())
    assert not torch.equal(sent[0] != noise(3, 4000)[0], sent[1] != noise(3, 4000)[1])


def test_about_half_of_the_values_are_inverted_and_the_rest_stays() -> None:
    own = noise(2, 4000).double()
    sent = ValueInvert(count=1).corrupt(forgery(own))
    stayed, inverted = sent == own, torch.isclose(sent, 1 / own, rtol=1e-12)
    assert bool((stayed | inverted).all())
    assert 0.45 < float(stayed.double().mean()) < 0.55


@given(x=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True))
def test_an_inverted_value_is_finite_and_zero_stays_zero(x: float) -> None:
    sent = ValueInvert(count=1).corrupt(forgery(torch.full((1, 40), x)))
    assert bool(torch.isfinite(sent).all())
    assert bool((sent.abs() <= max(1.0000001e10, abs(x))).all())
    assert x != 0 or not sent.any()


def test_free_riders_send_uniform_noise_whatever_they_hold() -> None:
    sent = FreeRider(count=1).corrupt(forgery(noise(3, 4000)))
    assert torch.equal(sent, FreeRider(count=1).corrupt(forgery(torch.zeros(3, 4000))))
    assert float(sent.min()) >= -1 and float(sent.max()) <= 1
    assert abs(float(sent.mean())) < 0.02 and abs(float(sent.square().mean()) - 1 / 3) < 0.02
    assert not torch.equal(sent[0], sent[1])


@pytest.mark.parametrize("kind", [RandomSigns, ValueInvert, FreeRider])
def test_draws_repeat_in_the_same_round_and_differ_in_another(kind: type[Attack]) -> None:
    attack = kind(count=1)
    assert torch.equal(attack.corrupt(forgery(noise(), 1)), attack.corrupt(forgery(noise(), 1)))
    assert not torch.equal(attack.corrupt(forgery(noise(), 1)), attack.corrupt(forgery(noise(), 2)))


# ----------------------------------------------------------------------------------------------------- in a run


class Watch(WeightedMean):
    """The mean, with every cohort kept."""

    seen: list[Cohort]

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        self.seen.append(cohort)
        return super().__call__(cohort, state)


def first_cohort(attack: Attack | None) -> Cohort:
    rule = Watch()
    rule.__dict__["seen"] = []
    simulation(Method("watch", SGD(), rule), federation((9, 20, 13, 9, 11)), attack=attack).step()
    return rule.seen[0]


@pytest.mark.parametrize("kind", [LabelFlip, Rescale, RandomSigns, ValueInvert, FreeRider])
def test_attackers_that_are_added_leave_the_honest_alone(kind: type[Attack]) -> None:
    pairs = {"pairs": ((0, 2),)} if kind is LabelFlip else {}
    clean, attacked = first_cohort(None), first_cohort(kind(added=0.4, **pairs))
    assert attacked.ids.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert torch.allclose(attacked.updates[:5], clean.updates, rtol=1e-9)
    assert torch.equal(attacked.sizes[:5], clean.sizes)


def test_added_free_riders_hold_nothing_and_claim_the_median() -> None:
    sim = simulation(fed=federation((9, 20, 13, 9, 11)), attack=FreeRider(added=0.4))
    assert sim.simulator.federation.sizes.tolist()[5:] == [0, 0]
    assert first_cohort(FreeRider(added=0.4)).sizes.tolist()[5:] == [11, 11]
