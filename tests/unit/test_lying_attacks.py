"""Lies about losses and sizes: what is said, what stays true, and what they earn where nobody checks."""

from typing import Any

import pytest
import torch

from equipoise import config
from equipoise.attacks.label_noise import LabelNoise
from equipoise.attacks.lie_loss import LieLoss
from equipoise.attacks.lie_size import LieSize
from equipoise.core import Cohort, Method, Outcome, ServerRule, State
from equipoise.engine.settings import Admission
from equipoise.errors import EquipoiseError
from equipoise.methods.eagle import eagle
from equipoise.streams import Stream
from equipoise.threat import Attack, Claims
from tests.small import federation, simulation

OFF = Admission(guard="off")


class Watch(ServerRule):
    """Weights by losses, which it asks for, and keeps every cohort."""

    needs = frozenset({"losses"})  # type: ignore[assignment]

    def __init__(self) -> None:
        self.seen: list[Cohort] = []

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        self.seen.append(cohort)
        assert cohort.losses is not None
        share = cohort.losses.double() / cohort.losses.double().sum().clamp(min=1e-300)
        return Outcome(share.to(cohort.updates.dtype) @ cohort.updates, info={"weights": share})


def cohort(attack: Attack | None, admission: Admission = OFF) -> Cohort:
    rule = Watch()
    simulation(Method("watch", server=rule), federation((9, 20, 13, 9)), attack=attack, admission=admission).step()
    return rule.seen[-1]


@pytest.mark.parametrize("claim", ["huge", "zero", 3.0])
@pytest.mark.parametrize("kind", [LieLoss, LieSize])
def test_only_liars_reports_change_and_only_those_that_are_lied_about(kind: Any, claim: Any) -> None:
    true, told = cohort(None), cohort(kind(clients=(1, 3), claim=claim))
    assert true.losses is not None and told.losses is not None
    same_loss, same_size = (told.losses == true.losses).tolist(), (told.sizes == true.sizes).tolist()
    lied, kept = (same_loss, same_size) if kind is LieLoss else (same_size, same_loss)
    assert lied == [True, False, True, False] and all(kept)
    assert torch.equal(told.updates, true.updates)


def test_one_liar_owns_what_reported_losses_or_sizes_decide_where_nobody_checks() -> None:
    told = cohort(LieLoss(clients=(2,)))
    assert told.losses is not None
    assert float(told.losses[2] / told.losses.sum()) > 1 - 1e-9
    sizes = cohort(LieSize(clients=(2,))).sizes.double()
    assert float(sizes[2] / sizes.sum()) > 1 - 1e-9


@pytest.mark.parametrize("claim", ["huge", "zero", 1e300, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_whatever_is_claimed_is_finite_and_admitted(claim: Any, dtype: torch.dtype) -> None:
    number = torch.tensor([0, 1, 1000]).to(dtype)
    truth = Claims(number, number.to(torch.float32), {})
    losses = LieLoss(count=1, claim=claim).lie(truth, Stream(0)).losses
    sizes = LieSize(count=1, claim=claim).lie(truth, Stream(0)).sizes if dtype != torch.int32 else number
    assert losses is not None and bool(torch.isfinite(losses).all())
    assert bool(torch.isfinite(sizes.double()).all()) and bool((sizes >= 0).all())
    record = simulation(attack=LieSize(clients=(1,), claim=claim), admission=OFF).step()
    assert record.quarantined == {}


def test_a_factor_of_one_is_the_truth() -> None:
    true = cohort(None)
    for attack in (LieLoss(clients=(0, 1, 2, 3), claim=1.0), LieSize(clients=(0, 1, 2, 3), claim=1.0)):
        told = cohort(attack)
        assert torch.equal(told.sizes, true.sizes)
        assert told.losses is not None and true.losses is not None and torch.equal(told.losses, true.losses)


def test_methods_that_ask_for_no_loss_are_told_none() -> None:
    clean, attacked = simulation(), simulation(attack=LieLoss(clients=(1,)), admission=OFF)
    clean.step()
    attacked.step()
    assert torch.equal(clean.server.w, attacked.server.w)


def test_eagles_gaps_are_lied_about_but_not_whether_they_were_measured() -> None:
    method = eagle(window=1, cap=1)
    sim = simulation(method, federation((9, 20, 13, 9)), attack=LieLoss(clients=(2,)), admission=OFF)
    info = sim.step().info
    assert float(info["gap"][2]) == pytest.approx(1e30) and float(info["gap"][[0, 1, 3]].abs().max()) < 1e3
    assert bool((torch.as_tensor(info["measured"]) > 0).all())
    quiet = simulation(
        method, federation((9, 20, 13, 9)), attack=LieLoss(clients=(2,), signals=()), admission=OFF
    ).step()
    assert float(quiet.info["gap"].abs().max()) < 1e3


@pytest.mark.parametrize("kind", [LieLoss, LieSize])
def test_with_label_noise_liars_train_as_under_label_noise(kind: Any) -> None:
    fed = federation((9, 25, 12, 14))
    ours, noise, clean = (
        simulation(fed=fed, attack=a).simulator.federation.data.y
        for a in (kind(clients=(1,), label_noise=True), LabelNoise(clients=(1,)), kind(clients=(1,)))
    )
    assert torch.equal(ours, noise) and len(ours) > len(fed.data) and torch.equal(clean, fed.data.y)


@pytest.mark.parametrize("attack", [LieLoss(clients=(2,)), LieSize(clients=(2,))], ids=["loss", "size"])
def test_the_guard_of_admission_leaves_a_lie_little(attack: Attack) -> None:
    told = cohort(attack, Admission())
    assert told.losses is not None
    for reports in (told.losses.double(), told.sizes.double()):
        assert float(reports[2] / reports.sum()) < 0.75


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LieLoss(count=1, claim="large"), "lie-loss: claim is 'large'"),  # type: ignore[arg-type]
        (lambda: LieLoss(count=1, claim=float("inf")), "lie-loss: claim is inf"),
        (lambda: LieSize(count=1, claim=float("nan")), "lie-size: claim is nan"),
        (lambda: LieSize(count=1, claim=-1.0), "lie-size: claim is -1.0"),
    ],
)
def test_claims_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(EquipoiseError, match=said):
        make()


def test_a_loss_below_zero_can_be_claimed() -> None:
    told = cohort(LieLoss(clients=(2,), claim=-2.0))
    true = cohort(None)
    assert told.losses is not None and true.losses is not None
    assert float(told.losses[2]) == pytest.approx(-2 * float(true.losses[2]))


@pytest.mark.parametrize(("written", "meant"), [('"zero"', "zero"), ("10", 10.0), ("2.5", 2.5)])
def test_claims_can_be_written_in_a_config(written: str, meant: Any) -> None:
    start = '[data]\ndataset = "digits"\nclients = 5\n[model]\nkind = "linear"\n[method]\nname = "fedavg"\n'
    for name, kind in {"lie-loss": LieLoss, "lie-size": LieSize}.items():
        read = config.load(start + f'[attack]\nname = "{name}"\ncount = 1\nclaim = {written}\n')
        assert read.make_attack() == kind(count=1, claim=meant)
        assert config.load(config.dump(read)) == read
