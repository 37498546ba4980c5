"""Finetuning against a slow, literal transcription in numpy, and against what it must be equal to."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.at import Schedule
from equipoise.core import WeightedMean
from equipoise.errors import EquipoiseError
from equipoise.methods.ditto import ditto
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedprox import fedprox
from equipoise.methods.finetuning import finetuning
from equipoise.methods.rffl import rffl
from tests.reference._regression import BATCH, ROUNDS, ByHand, models, problem, simulate


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), epochs=st.integers(0, 3))
def test_finetuning_is_its_equation(seed: int, epochs: int) -> None:
    hand = ByHand(problem(seed))
    w = hand.fedavg()
    own = []
    for k in hand.clients:
        v = w.copy()
        for (b,) in hand.steps(k, ROUNDS, Schedule(epochs, None, BATCH)):
            v = v - hand.lr(ROUNDS) * hand.gradient(v, b)
        own.append(v)
    found, personal = models(simulate(finetuning(epochs), hand.fed))
    assert found == pytest.approx(w, rel=1e-9)
    assert personal == pytest.approx(np.stack(own), rel=1e-9)


def test_no_epochs_are_fedavg_to_the_bit() -> None:
    tuned, plain = simulate(finetuning(0), problem(1)), simulate(fedavg(), problem(1))
    assert torch.equal(tuned.server.w, plain.server.w)
    assert np.array_equal(models(tuned)[1], np.stack([plain.server.w.numpy()] * 4))


def test_ditto_finetuned_without_pull_is_plain_finetuning_to_the_bit() -> None:
    tuned = simulate(finetuning(2, server=WeightedMean("uniform")), problem(2))
    pulled = simulate(ditto(0.0, solver="finetune", finetune_epochs=2), problem(2))
    assert np.array_equal(models(tuned)[1], models(pulled)[1])


def test_it_comes_after_any_method_and_keeps_its_global_model_to_the_bit() -> None:
    for base in (fedprox(0.5), ditto(0.3), rffl()):
        tuned, plain = simulate(finetuning(1, base=base), problem(3)), simulate(base, problem(3))
        assert torch.equal(tuned.server.w, plain.server.w)
        assert tuned.method.name == f"finetuning+{base.name}"
        assert not np.allclose(models(tuned)[1], tuned.server.w.numpy())


def test_a_negative_number_of_epochs_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="finetuning: epochs is -1"):
        finetuning(-1)
