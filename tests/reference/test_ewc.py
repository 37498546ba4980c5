"""EWC against a slow, literal transcription in numpy, both kinds of Fisher information, and its ends."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.at import Schedule
from equipoise.errors import EquipoiseError
from equipoise.methods.ewc import Fisher, ewc
from equipoise.methods.fedavg import fedavg
from equipoise.methods.finetuning import finetuning
from tests.reference._regression import BATCH, ROUNDS, ByHand, Vector, models, problem, simulate

TUNING = 2


def literal(hand: ByHand, lam: float, fisher: str) -> tuple[Vector, Vector]:
    w, own = hand.fedavg(), []
    for k in hand.clients:
        steps = hand.steps(k, ROUNDS, Schedule(TUNING + 1, None, BATCH))
        first = len(steps) // (TUNING + 1)
        information = np.zeros(3)
        if fisher == "sample":
            for z in hand.samples(k):
                information += hand.gradient(w, [z]) ** 2 / len(hand.samples(k))
        else:
            for (b,) in steps[:first]:
                information += len(b) / len(hand.samples(k)) * hand.gradient(w, b) ** 2
        v = w.copy()
        for (b,) in steps[first:]:
            v = v - hand.lr(ROUNDS) * (hand.gradient(v, b) + lam * information * (v - w))
        own.append(v)
    return w, np.stack(own)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), lam=st.floats(0, 5), fisher=st.sampled_from(["sample", "batch"]))
def test_ewc_is_its_equation(seed: int, lam: float, fisher: Fisher) -> None:
    hand = ByHand(problem(seed))
    w, own = literal(hand, lam, fisher)
    found, personal = models(simulate(ewc(lam, epochs=TUNING, fisher=fisher), hand.fed))
    assert found == pytest.approx(w, rel=1e-9)
    assert personal == pytest.approx(own, rel=1e-9)


def test_the_global_model_is_fedavgs_to_the_bit() -> None:
    assert torch.equal(simulate(ewc(epochs=1), problem(1)).server.w, simulate(fedavg(), problem(1)).server.w)


def test_without_a_pull_it_is_plain_finetuning() -> None:
    held, plain = (simulate(m, problem(2), batch=0) for m in (ewc(0.0, epochs=3), finetuning(3)))
    assert models(held)[1] == pytest.approx(models(plain)[1], rel=1e-12)


def test_a_stronger_pull_keeps_personal_models_closer_to_the_global_one() -> None:
    away = []
    for lam in (0.0, 1.0, 4.0):
        w, own = models(simulate(ewc(lam, epochs=20), problem(3)))
        away.append(np.linalg.norm(own - w))
    assert away[0] > 1.02 * away[1] > 1.02 * away[2]


def test_with_single_samples_as_batches_both_kinds_of_information_are_the_same() -> None:
    one, many = (simulate(ewc(2.0, epochs=2, fisher=f), problem(4), batch=1) for f in ("sample", "batch"))
    assert models(one)[1] == pytest.approx(models(many)[1], rel=1e-12)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="ewc: lam is nan"):
        ewc(float("nan"))
    with pytest.raises(EquipoiseError, match="ewc: epochs is 0"):
        ewc(epochs=0)
    with pytest.raises(EquipoiseError, match="ewc: fisher is 'true'"):
        ewc(fisher="true")  # type: ignore[arg-type]
