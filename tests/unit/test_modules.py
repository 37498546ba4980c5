"""Models that do not fit the engine, or the data, are refused before the first round, with a hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import equipoise as eq
from equipoise.data.federation import Federation
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Run, Train
from equipoise.errors import EquipoiseError
from equipoise.modules import adapt, check_forward

DRAW = np.random.default_rng(0)
X, CLIENT = DRAW.normal(size=(40, 5)).astype(np.float32), np.arange(40) % 4
Y, TOKENS = np.arange(40) % 3, np.arange(240).reshape(40, 6)[::-1] % 50
FLOATS = torch.from_numpy(X[:2])


def simulated(federation: Federation, module: nn.Module, executor: str = "auto", loss: Any = "auto") -> Simulation:
    run = Run(device="cpu", executor=executor)  # type: ignore[arg-type]
    return Simulation(Scenario(federation, module, Train(loss=loss, rounds=1)), eq.Method(), run)


class Words(nn.Module):
    """The mean of embedded tokens, then a linear layer."""

    def __init__(self, rows: int = 50, **options: Any) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(rows, 4, **options), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))  # type: ignore[no-any-return]


class Detached(nn.Linear):
    """Gives outputs that know nothing of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


def still(layer: nn.Module) -> nn.Module:
    """A layer with a spectral norm whose vectors have settled, so that a pass writes the same numbers again."""
    made = parametrizations.spectral_norm(layer).train()
    for _ in range(200):
        made(FLOATS)
    return made


@pytest.mark.parametrize("make", [parametrizations.spectral_norm, torch.nn.utils.spectral_norm, still])
def test_a_spectral_norm_remembers_even_where_it_stands_still(make: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(EquipoiseError, match=r"buffer .*_u changes in training"):
        check_forward(adapt(make(nn.Linear(5, 3))), FLOATS)


def test_parametrisations_without_memory_are_welcome() -> None:
    for make in (parametrizations.weight_norm, parametrizations.orthogonal):
        check_forward(adapt(make(nn.Linear(5, 3))), FLOATS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparse": True}, "gradient of words.weight is sparse\n.*sparse=False"),
        ({"max_norm": 1.0}, "parameter words.weight changes in a pass\n.*max_norm"),
        ({"rows": 10}, "index out of range.*\n.*run from 4[0-9] to 4[0-9], and an embedding of 10 rows takes 0 to 9"),
    ],
)
def test_embeddings_that_cannot_be_trained_for_many_clients_are_refused(options: Any, message: str) -> None:
    tokens = torch.arange(40, 46)[None]
    check_forward(adapt(Words()), tokens)
    with pytest.raises(EquipoiseError, match=message):
        check_forward(adapt(Words(**options)), tokens)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_modules_are_refused_by_their_path() -> None:
    inner = torch.jit.script(nn.Linear(5, 3))  # type: ignore[no-untyped-call]
    for module, path in ((inner, "the model itself"), (nn.Sequential(inner), "0")):
        with pytest.raises(EquipoiseError, match=f"{path} is a .*Script.*\n.*before torch.jit"):
            adapt(module)


def test_a_model_without_a_gradient_is_refused() -> None:
    with pytest.raises(EquipoiseError, match=r"Detached has no gradient on a batch \(2, 5\)"):
        check_forward(adapt(Detached(5, 3)), FLOATS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_and_outputs_that_are_not_finite_are_refused(value: float) -> None:
    broken, large = nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3))
    with torch.no_grad():
        broken.bias[1] = value
        for p in large.parameters():
            p.fill_(1e38)
    with pytest.raises(EquipoiseError, match="parameter bias holds NaN or infinity"):
        check_forward(adapt(broken), FLOATS)
    with pytest.raises(EquipoiseError, match=r"outputs for a batch \(2, 5\) hold NaN or infinity"):
        check_forward(adapt(large), torch.ones(2, 5))


def test_whole_numbers_for_a_model_of_floats_come_with_a_hint() -> None:
    with pytest.raises(EquipoiseError, match=r"same dtype.*\n.*make x float"):
        simulated(eq.from_arrays(TOKENS, Y, CLIENT), nn.Linear(6, 3))


def test_a_shape_that_does_not_fit_comes_with_the_shape_of_a_sample() -> None:
    with pytest.raises(EquipoiseError, match=r"fails on a batch.*\n.*each of shape \(5,\)"):
        check_forward(adapt(nn.Linear(4, 3)), FLOATS)


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_a_model_with_more_or_fewer_outputs_than_classes_is_refused_before_the_first_round(
    loss: str, outputs: int
) -> None:
    fed = eq.from_arrays(X, Y, CLIENT)
    with pytest.raises(EquipoiseError, match=f"model gives {outputs} outputs, the data has 3 classes"):
        simulated(fed, nn.Linear(5, outputs), loss=loss)
    with pytest.raises(EquipoiseError, match=f"model gives {outputs} outputs, the data has 3 classes"):
        eq.run(fed, model=nn.Linear(5, outputs), loss=loss, executor="loop", rounds=1)
    simulated(fed, nn.Linear(5, 3), loss=loss).step()


def test_one_output_does_for_hinge_and_one_for_each_target_for_a_regression() -> None:
    result = eq.run(eq.from_arrays(X, Y % 2, CLIENT), model=nn.Linear(5, 1), loss="hinge", rounds=1)
    assert 0 <= result.summary()["accuracy_mean"] <= 1
    simulated(eq.from_arrays(X, Y * 1.0, CLIENT), nn.Linear(5, 1)).step()
    simulated(eq.from_arrays(X, X[:, :2], CLIENT), nn.Linear(5, 2)).step()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear, "model is the class Linear\n.*not a class: Linear(...)"),
        (lambda: nn.Linear(5, 3), "model is a function\n.*nn.Module"),
        (3, "model is a int"),
        ({"hidden": [4]}, r"model is {'hidden': \[4\]}\n.*kind"),
        ({"kind": nn.Linear}, "model is {'kind'"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(EquipoiseError, match=message):
        eq.run(eq.from_arrays(X, Y, CLIENT), model=model, rounds=1)
