"""The backdoor: where the mark goes, whose samples change, and when it counts as a success."""

from typing import Any

import pytest
import torch

from equipoise import config
from equipoise.attacks.backdoor import Backdoor
from equipoise.data.datasets import load
from equipoise.data.partition import partition
from equipoise.engine.settings import Train
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Forgery, Samples
from tests.small import federation, simulation


def images(n: int = 200, shape: tuple[int, ...] = (1, 8, 8)) -> Samples:
    number = torch.arange(n)
    return Samples(torch.full((n, *shape), 0.25), number % 10, number // 20, number, 10)


def test_a_share_of_the_samples_is_marked_and_renamed_and_the_rest_stays() -> None:
    before = images(2000)
    after = Backdoor(count=1, label=3, share=0.3).poison(before, Stream(0))
    changed = (after.x != before.x).flatten(1).any(1)
    assert 0.25 < float(changed.double().mean()) < 0.35
    assert bool((after.y[changed] == 3).all()) and torch.equal(after.y[~changed], before.y[~changed])
    assert torch.equal(before.x, images(2000).x)


def test_a_sample_is_marked_or_not_whatever_the_others_are() -> None:
    every = Backdoor(count=1).poison(images(), Stream(4))
    few = images()
    few = Samples(few.x[50:90], few.y[50:90], few.client[50:90], few.index[50:90], 10)
    assert torch.equal(Backdoor(count=1).poison(few, Stream(4)).x, every.x[50:90])


def test_success_is_measured_on_marked_samples_of_other_classes() -> None:
    aimed = Backdoor(count=1, label=3).target(images())
    assert len(aimed.y) == 180 and set(aimed.y.tolist()) == {3}
    assert bool((aimed.x[..., -2:, -2:] == 1).all()) and bool((aimed.x[..., :6, :] == 0.25).all())
    assert not bool((aimed.index % 10 == 3).any())


def test_boost_multiplies_what_is_sent_and_one_leaves_it() -> None:
    own = torch.randn((2, 5), generator=Stream(0).torch())
    seen = Forgery(torch.arange(2), own, own[:0], 0, 0.1, Stream(0), lambda x: x[0])
    assert torch.equal(Backdoor(count=1).corrupt(seen), own)
    assert torch.equal(Backdoor(count=1, boost=7.0).corrupt(seen), 7 * own)


def test_the_mark_survives_storage_and_touches_malicious_training_samples_only() -> None:
    fed = partition(load("digits"), "iid", clients=4, seed=1)
    sim = simulation(fed=fed, attack=Backdoor(clients=(1,), share=1.0))
    now = sim.simulator.federation
    for split in ("train", "validation", "test"):
        for k in range(4):
            before, after = (f.data.x[f.splits[split].of_client(k)] for f in (fed, now))
            if split == "train" and k == 1:
                index = now.splits[split].of_client(k)
                assert bool((now.data.inputs(index)[..., -2:, -2:] == 1).all())
                assert set(now.data.y[index].tolist()) == {0}
            else:
                assert torch.equal(before, after)


def test_a_model_that_learned_the_mark_answers_with_its_class_and_knows_the_others_still() -> None:
    fed = partition(load("digits"), "iid", clients=4, seed=1)
    found = {}
    for who in ((), (0, 1)):
        attack = Backdoor(clients=who, size=2)
        sim = simulation(fed=fed, attack=attack, train=Train(epochs=5, batch=20, lr=0.1))
        for _ in range(4):
            sim.step()
        found[len(who)] = sim.success(), float(sim.evaluate("test")["global"].accuracy.mean())
    (low, clean), (high, kept) = found[0], found[2]
    assert low is not None and high is not None
    assert low < 0.3 < 0.8 < high
    assert kept > clean - 0.1


def test_features_that_are_not_images_have_a_mark_of_their_own() -> None:
    sim = simulation(fed=federation((20, 20), shape=(6,)), attack=Backdoor(clients=(0,), value=5.0, size=3))
    sim.step()
    assert sim.success() is not None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"label": -1}, "label is -1"),
        ({"size": 0}, "size is 0"),
        ({"share": 1.5}, "share is 1.5"),
        ({"value": float("nan")}, "value is nan"),
        ({"boost": float("inf")}, "boost is inf"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(EquipoiseError, match=f"backdoor: .*{said}"):
        Backdoor(count=1, **settings)


@pytest.mark.parametrize(
    ("attack", "samples", "said"),
    [
        (Backdoor(count=1, label=10), images(), "label is 10"),
        (Backdoor(count=1, size=9), images(), "size is 9"),
        (Backdoor(count=1, size=4), images(shape=(3,)), "size is 4"),
        (
            Backdoor(count=1),
            Samples(torch.ones((2, 3), dtype=torch.int64), *[torch.arange(2)] * 3, 2),
            "inputs are tokens",
        ),
        (Backdoor(count=1), Samples(torch.ones(2, 3), torch.ones(2), *[torch.arange(2)] * 2, 0), "0 classes"),
    ],
)
def test_data_that_do_not_fit_are_refused_in_words(attack: Backdoor, samples: Samples, said: str) -> None:
    for ask in (lambda: attack.poison(samples, Stream(0)), lambda: attack.target(samples)):
        with pytest.raises(EquipoiseError, match=said):
            ask()


def test_it_can_be_named_in_a_config() -> None:
    text = '[data]\ndataset = "digits"\nclients = 5\n[model]\nkind = "linear"\n[method]\nname = "fedavg"\n'
    read = config.load(text + '[attack]\nname = "backdoor"\ncount = 1\nlabel = 4\nboost = 5.0\n')
    assert read.make_attack() == Backdoor(count=1, label=4, boost=5.0)
