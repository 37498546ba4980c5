"""Tilted objectives: limits, identities, weights, and numbers that would overflow if exp were taken literally."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.core import Mean, Objective
from equipoise.errors import EquipoiseError
from equipoise.objectives import ClassTilted, Tilted, tilted, tilts
from equipoise.streams import Stream

EXTREMES = [(lam, tau) for lam in (-100.0, 0.0, 100.0) for tau in (-100.0, 0.0, 100.0)]
tilt = st.floats(-30, 30).filter(
    lambda t: t == 0 or abs(t) > 1e-3
)  # rounding grows with 1/t; tiny ones have their test
seeds = st.integers(0, 10**6)


def batch(seed: int = 0, k: int = 4, b: int = 9, classes: int = 3, high: float = 5.0) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, labels and a mask with at least one real sample in each row."""
    g = Stream(seed).torch()
    losses = high * torch.rand((k, b), generator=g, dtype=torch.float64)
    mask = torch.rand((k, b), generator=g) < 0.7
    mask[:, seed % b] = True
    return losses, torch.randint(classes, (k, b), generator=g), mask


def gradient(objective: Objective, losses: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    leaf = losses.clone().requires_grad_()
    (found,) = torch.autograd.grad(objective(leaf, labels, mask).sum(), leaf)
    return found


# ------------------------------------------------------------------------------------------------------- identities


@given(seeds, tilt)
def test_equal_tilts_are_one_tilt_over_all_samples(seed: int, t: float) -> None:
    data = batch(seed)
    assert torch.allclose(ClassTilted(t, t)(*data), Tilted(t)(*data), rtol=1e-11, atol=1e-11)
    assert torch.allclose(gradient(ClassTilted(t, t), *data), gradient(Tilted(t), *data), atol=1e-11)


@given(seeds, st.sampled_from([0.0, 1e-9, -1e-9]))
def test_no_tilt_is_the_mean(seed: int, t: float) -> None:
    data = batch(seed)
    for objective in (Tilted(t), ClassTilted(t, t)):
        assert torch.allclose(objective(*data), Mean()(*data), rtol=1e-12)
        assert torch.allclose(gradient(objective, *data), gradient(Mean(), *data), rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("t", [2e-8, -2e-8, 1e-5])
def test_tiny_tilts_lead_smoothly_to_the_mean(t: float, dtype: torch.dtype) -> None:
    losses, labels, mask = batch()
    losses = losses.to(dtype)
    for objective in (Tilted(t), ClassTilted(t, t)):
        assert torch.allclose(objective(losses, labels, mask), Mean()(losses, labels, mask), rtol=1e-4)


@given(seeds, tilt, tilt)
def test_the_gradient_is_the_class_weight_times_the_sample_weight(seed: int, lam: float, tau: float) -> None:
    losses, labels, mask = batch(seed)
    found = gradient(ClassTilted(lam, tau), losses, labels, mask)
    for k in range(len(losses)):
        present = labels[k][mask[k]].unique()
        members = [mask[k] & (labels[k] == c) for c in present]
        risks = torch.stack([tilted(losses[k][m], lam) for m in members])
        sizes = torch.stack([m.sum() for m in members]).double()
        class_weight = torch.softmax(sizes.log() + tau * risks, 0)
        want = torch.zeros_like(losses[k])
        for w, m in zip(class_weight, members, strict=True):
            want[m] = w * torch.softmax(lam * losses[k][m], 0)
        assert torch.allclose(found[k], want, atol=1e-11)


@given(seeds, tilt, tilt)
def test_weights_are_a_distribution_over_the_real_samples(seed: int, lam: float, tau: float) -> None:
    losses, labels, mask = batch(seed)
    weights = gradient(ClassTilted(lam, tau), losses, labels, mask)
    assert (weights >= 0).all() and (weights[~mask] == 0).all()
    assert torch.allclose(weights.sum(1), torch.ones(len(losses), dtype=torch.float64), rtol=1e-10)


@given(seeds, tilt)
def test_tilts_are_the_gradient_of_tilted(seed: int, t: float) -> None:
    losses = batch(seed)[0][0].requires_grad_()
    assert torch.allclose(torch.autograd.grad(tilted(losses, t), losses)[0], tilts(losses.detach(), t), atol=1e-12)


def test_autograd_agrees_with_finite_differences() -> None:
    losses, labels, mask = batch(k=2, b=5)
    for lam, tau in ((2.0, -1.5), (-3.0, 0.5), (0.0, 2.0), (2.0, 0.0)):
        objective = ClassTilted(lam, tau)
        assert torch.autograd.gradcheck(lambda v, o=objective: o(v, labels, mask), (losses.clone().requires_grad_(),))


# ------------------------------------------------------------------------------------------------------------ limits


def by_class(losses: Tensor, labels: Tensor, mask: Tensor, of_class: str, of_client: str) -> list[float]:
    pick = {"max": max, "min": min}
    rows = []
    for row, label, real in zip(losses, labels, mask, strict=True):
        groups: dict[int, list[float]] = {}
        for value, c, r in zip(row.tolist(), label.tolist(), real.tolist(), strict=True):
            if r:
                groups.setdefault(c, []).append(value)
        rows.append(pick[of_client](pick[of_class](g) for g in groups.values()))
    return rows


@pytest.mark.parametrize("of_class", ["max", "min"])
@pytest.mark.parametrize("of_client", ["max", "min"])
def test_infinite_tilts_are_the_extreme_class_by_its_extreme_sample(of_class: str, of_client: str) -> None:
    data, sign = batch(3), {"max": 1.0, "min": -1.0}
    want = by_class(*data, of_class, of_client)
    for size, within in ((1e4, 1e-3), (1e7, 1e-6), (1e300, 1e-12)):
        found = ClassTilted(sign[of_class] * size, sign[of_client] * size)(*data)
        assert found.tolist() == pytest.approx(want, abs=within)


@given(seeds, st.lists(tilt, min_size=2, max_size=5))
def test_the_tilted_loss_grows_with_the_tilt_and_stays_between_the_extremes(seed: int, ts: list[float]) -> None:
    losses, labels, mask = batch(seed)
    values = torch.stack([Tilted(t)(losses, labels, mask) for t in sorted(ts)])
    assert (values.diff(dim=0) >= -1e-9).all()
    low, high = losses.masked_fill(~mask, math.inf).amin(1), losses.masked_fill(~mask, -math.inf).amax(1)
    assert (values >= low - 1e-9).all() and (values <= high + 1e-9).all()


@given(seeds, tilt, tilt, st.floats(-3, 3))
def test_adding_a_constant_to_all_losses_adds_it_to_the_tilted_loss(
    seed: int, lam: float, tau: float, c: float
) -> None:
    losses, labels, mask = batch(seed)
    objective = ClassTilted(lam, tau)
    moved = objective(losses + c, labels, mask)
    assert torch.allclose(moved, objective(losses, labels, mask) + c, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------------- masks and overflow


@pytest.mark.parametrize(("lam", "tau"), EXTREMES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_what_is_masked_has_no_effect_on_value_or_gradient(lam: float, tau: float, garbage: float) -> None:
    losses, labels, mask = batch(1)
    objective = ClassTilted(lam, tau)
    for other in (objective, Tilted(lam)):
        dirty = losses.masked_fill(~mask, garbage)
        assert torch.equal(other(dirty, labels, mask), other(losses, labels, mask))
        relabelled = torch.where(mask, labels, (labels + 1) % 3)
        assert torch.equal(other(dirty, relabelled, mask), other(losses, labels, mask))
        assert torch.equal(gradient(other, dirty, relabelled, mask), gradient(other, losses, labels, mask))


@pytest.mark.parametrize(("lam", "tau"), EXTREMES)
def test_padding_changes_nothing(lam: float, tau: float) -> None:
    losses, labels, mask = batch(2)
    objective, k = ClassTilted(lam, tau), 1
    real = mask[k]
    alone = objective(losses[k][real][None], labels[k][real][None], real[real][None])
    assert float(objective(losses, labels, mask)[k]) == pytest.approx(float(alone[0]), rel=1e-12)


@pytest.mark.parametrize("t", [-100.0, -1e-3, 0.0, 1e-3, 100.0])
def test_a_row_without_samples_gives_zero_and_no_gradient(t: float) -> None:
    losses, labels, mask = batch(4)
    mask[1] = False
    for objective in (Tilted(t), ClassTilted(t, -t), ClassTilted(t, t)):
        assert float(objective(losses, labels, mask)[1]) == 0.0
        found = gradient(objective, losses, labels, mask)
        assert (found[1] == 0).all() and torch.isfinite(found).all()


@pytest.mark.parametrize(("lam", "tau"), [*EXTREMES, (100.0, 50.0), (-0.1, -0.1)])
def test_large_losses_under_large_tilts_stay_finite_in_float32(lam: float, tau: float) -> None:
    losses, labels, mask = batch(5, high=50.0)
    losses = losses.float()
    losses[0, 0], mask[0, 0] = 50.0, True
    objective = ClassTilted(lam, tau)
    value, weights = objective(losses, labels, mask), gradient(objective, losses, labels, mask)
    assert value.dtype == weights.dtype == torch.float32
    assert torch.isfinite(value).all() and torch.isfinite(weights).all()
    assert torch.allclose(value.double(), objective(losses.double(), labels, mask), rtol=1e-6)
    assert torch.allclose(weights.sum(1), torch.ones(len(losses)), rtol=1e-5)


# ------------------------------------------------------------------------------------------------------------- refusal


def test_class_tilts_need_class_labels() -> None:
    losses, labels, mask = batch()
    with pytest.raises(EquipoiseError, match=r"class-tilted: labels are float64 of shape \(4, 9\)"):
        ClassTilted()(losses, losses, mask)
    with pytest.raises(EquipoiseError, match="needs class labels"):
        ClassTilted()(losses, labels[..., None], mask)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_tilt_is_a_finite_number(value: float) -> None:
    for make, name in ((Tilted, "t"), (ClassTilted, "lam"), (ClassTilted, "tau")):
        with pytest.raises(EquipoiseError, match=f"{name} is"):
            make(**{name: value})
