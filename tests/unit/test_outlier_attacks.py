"""Persistent outliers: which samples, which pixels, which numbers; new in every round, and the same within one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.attacks.gaussian_outliers import GaussianOutliers
from equipoise.attacks.pixel_corruption import PixelCorruption
from equipoise.core import Method
from equipoise.data import load, partition
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Run, Train
from equipoise.errors import EquipoiseError
from equipoise.registry import attacks
from equipoise.streams import Stream
from equipoise.threat import Attack, Samples
from tests.small import federation, relative, simulation

BOTH = pytest.mark.parametrize("kind", [PixelCorruption, GaussianOutliers])


def images(n: int = 400, shape: tuple[int, ...] = (3, 8, 8), value: float = 0.5) -> Samples:
    """Grey images of two clients."""
    x, number = torch.full((n, *shape), value), torch.arange(n)
    return Samples(x, number % 10, number % 2, 1000 + number, 10)


def changed(before: Samples, after: Samples) -> Tensor:
    return (before.x != after.x).flatten(1).any(1)


@BOTH
def test_about_the_given_share_of_samples_changes_and_nothing_else(kind: Any) -> None:
    seen = images(4000)
    after = kind(fraction=1.0, share=0.3).outliers(seen, Stream(1))
    assert float(changed(seen, after).double().mean()) == pytest.approx(0.3, abs=0.03)
    assert torch.equal(after.y, seen.y) and torch.equal(after.index, seen.index)
    assert after.x.dtype == seen.x.dtype and torch.equal(seen.x, images(4000).x)
    assert float(after.x.min()) >= 0.0 and float(after.x.max()) <= 1.0


def test_exactly_the_given_share_of_an_outliers_pixels_is_replaced_in_all_channels_by_uniform_numbers() -> None:
    seen = images()
    after = PixelCorruption(fraction=1.0, share=1.0, pixels=0.3).outliers(seen, Stream(2)).x
    hit = (after != 0.5).flatten(2)
    assert (hit.sum(2) == round(0.3 * 64)).all()
    assert torch.equal(hit[:, 0], hit[:, 1]) and torch.equal(hit[:, 0], hit[:, 2])
    values = after[after != 0.5]
    for quantile in (0.1, 0.5, 0.9):
        assert float((values < quantile).double().mean()) == pytest.approx(quantile, abs=0.02)
    assert float(hit[:, 0].double().mean(0).std()) < 0.04  # every place of the image is hit alike


def test_where_inputs_are_no_images_a_feature_is_a_pixel() -> None:
    seen = images(50, (10,))
    after = PixelCorruption(fraction=1.0, share=1.0).outliers(seen, Stream(2)).x
    assert ((after != seen.x).sum(1) == 3).all()


def test_noise_is_standard_normal_and_clipped_unless_told_otherwise() -> None:
    seen = images()
    free = GaussianOutliers(fraction=1.0, share=1.0, clip=False).outliers(seen, Stream(3)).x
    clipped = GaussianOutliers(fraction=1.0, share=1.0).outliers(seen, Stream(3)).x
    assert float((free - seen.x).mean()) == pytest.approx(0.0, abs=0.01)
    assert float((free - seen.x).std()) == pytest.approx(1.0, abs=0.01)
    assert torch.equal(clipped, free.clamp(0, 1))


@BOTH
def test_a_samples_outlier_depends_on_its_client_and_number_alone(kind: Any) -> None:
    attack, seen = kind(fraction=1.0, share=0.6), images()
    order = torch.randperm(len(seen.x), generator=Stream(5).torch())[:70]
    part = Samples(seen.x[order], seen.y[order], seen.client[order], seen.index[order], 10)
    assert torch.equal(attack.outliers(part, Stream(4)).x, attack.outliers(seen, Stream(4)).x[order])
    moved = Samples(seen.x, seen.y, 1 - seen.client, seen.index, 10)
    assert not torch.equal(attack.outliers(moved, Stream(4)).x, attack.outliers(seen, Stream(4)).x)


@BOTH
def test_another_round_has_other_outliers(kind: Any) -> None:
    attack, seen = kind(fraction=1.0), images()
    first, second = (attack.outliers(seen, Stream(4).child(r)) for r in (0, 1))
    assert not torch.equal(changed(seen, first), changed(seen, second))
    both = changed(seen, first) & changed(seen, second)
    assert both.any() and (first.x[both] != second.x[both]).flatten(1).any(1).all()


@BOTH
def test_outliers_come_through_one_hook_only(kind: Any) -> None:
    seen = images()
    for once, (poison, outliers) in {False: (False, True), True: (True, False)}.items():
        attack = kind(fraction=1.0, once=once)
        assert bool(changed(seen, attack.poison(seen, Stream(1))).any()) == poison
        assert bool(changed(seen, attack.outliers(seen, Stream(1))).any()) == outliers


@pytest.mark.parametrize(
    "attack",
    [
        PixelCorruption(fraction=1.0, share=0.0),
        PixelCorruption(fraction=1.0, share=1.0, pixels=0.0),
        GaussianOutliers(fraction=1.0, share=0.0),
    ],
)
def test_a_share_of_zero_changes_nothing(attack: Attack) -> None:
    assert torch.equal(attack.outliers(images(), Stream(1)).x, images().x)


# ---------------------------------------------------------------------------------------------------- in whole runs


def trained(attack: Attack | None, rounds: int = 2) -> Simulation:
    fed = partition(load("digits"), "iid", clients=4, seed=1)
    sim = simulation(Method(), fed, attack=attack, train=Train(epochs=2, batch=50, lr=0.1))
    for _ in range(rounds):
        sim.step()
    return sim


@BOTH
@pytest.mark.parametrize("once", [False, True])
def test_a_run_with_outliers_differs_from_a_clean_one_and_repeats_itself(kind: Any, once: bool) -> None:
    attack = kind(clients=(1,), once=once)
    clean, first, again = trained(None), trained(attack), trained(attack)
    assert relative(first.server.w, clean.server.w) > 1e-4
    assert torch.equal(first.server.w, again.server.w)


@BOTH
def test_test_data_and_honest_clients_stay_clean(kind: Any) -> None:
    clean, bad = trained(None, 0), trained(kind(clients=(1,), once=True), 0)
    for name in ("train", "validation", "test"):
        for k in range(4):
            a, b = (s.simulator.federation for s in (clean, bad))
            same = torch.equal(a.data.x[a.splits[name].of_client(k)], b.data.x[b.splits[name].of_client(k)])
            assert same == (name != "train" or k != 1)


# ------------------------------------------------------------------------------------------------------------ refusal


@BOTH
def test_tokens_are_refused_in_words(kind: Any) -> None:
    number = torch.arange(6)
    text = Samples(torch.ones((6, 4), dtype=torch.int64), number, number, number, 6)
    with pytest.raises(EquipoiseError, match=f"{kind.__name__}: inputs are tokens"):
        kind(fraction=1.0).outliers(text, Stream(0))


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_shares_are_between_zero_and_one(value: float) -> None:
    for kind, name in ((PixelCorruption, "share"), (PixelCorruption, "pixels"), (GaussianOutliers, "share")):
        with pytest.raises(EquipoiseError, match=f"{kind.__name__}: {name} is {value}"):
            kind(fraction=0.5, **{name: value})


def test_both_are_found_by_name() -> None:
    assert {"pixel-corruption", "gaussian-outliers"} <= attacks().keys()
    assert "outliers" not in attacks()


def test_a_federation_of_vectors_can_be_noisy_without_clipping() -> None:
    sim = simulation(fed=federation((30, 30)), attack=GaussianOutliers(clients=(0,), clip=False))
    sim.step()
    assert torch.isfinite(sim.server.w).all()


@BOTH
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_outliers_made_once_for_a_round_are_those_made_batch_by_batch(kind: Any, epochs: int, executor: Any) -> None:
    fed, attack = (
        federation((7, 25, 0, 12)),
        kind(clients=(0, 1, 2), share=0.5, **({"clip": False} if kind is GaussianOutliers else {})),
    )
    ends = []
    for replay in ("off", "on"):
        run = Run(dtype="float64", executor=executor, replay=replay)  # type: ignore[arg-type]
        sim = simulation(fed=fed, attack=attack, train=Train(batch=4, epochs=epochs, lr=0.1), run=run)
        for _ in range(2):
            sim.step()
        ends.append(sim.server.w)
    assert relative(ends[1], ends[0]) < 1e-12
