"""Rougher products: what they change, what they leave alone, and where they are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise import registry
from equipoise.at import At, Stop
from equipoise.config import dump, load
from equipoise.core import SGD, Method, State
from equipoise.engine import clients, run
from equipoise.engine.precision import steps_in
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Run, Train
from equipoise.errors import EquipoiseError
from equipoise.methods import fedavg
from equipoise.provenance import environment
from tests.small import federation, relative, simulation

MODELS = {
    "mlp": ("mlp", {"hidden": (64, 64)}, (40,)),
    "cnn": ("cnn", {"channels": (3, 4), "kernel": 3, "hidden": (8,), "dropout": (0.3,)}, (1, 8, 8)),
}


def made(precision: str, method: Method | None = None, model: str = "mlp", **more: Any) -> Simulation:
    kind, params, shape = MODELS[model]
    fed = replace(federation((20, 25, 20, 15), shape=shape, classes=10), root=torch.arange(12))
    chosen = Run(**{"executor": "vmap", "replay": "off", "device": "cpu", "precision": precision, **more})
    return simulation(method, fed, model=kind, train=Train(epochs=2, batch=5), run=chosen, **params)


def moved(sim: Simulation) -> torch.Tensor:
    start = sim.server.w.clone()
    sim.step()
    return start - sim.server.w


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("model", MODELS)
def test_bf16_changes_updates_a_little(model: str, executor: str) -> None:
    full, rough = (moved(made(p, model=model, executor=executor)) for p in ("full", "bf16"))
    assert 1e-4 < relative(rough, full) < 0.05


@pytest.mark.parametrize("name", ["fedavg", "fedcka"])  # a plain step; one that looks inside the model
def test_bf16_steps_can_be_played_back(name: str) -> None:
    plain, played = (made("bf16", registry.methods()[name].make(), replay=r) for r in ("off", "on"))
    assert relative(moved(played), moved(plain)) < 1e-5
    assert played.simulator.replay is not None and played.simulator.replay.reasons == {}


def test_all_but_the_products_stays_float32() -> None:
    seen: list[torch.dtype] = []

    class Looks(SGD):
        def step(self, w: torch.Tensor, state: State, at: At) -> tuple[torch.Tensor, State]:
            grad = at.grad(w)
            seen.extend(t.dtype for t in (w, grad, at.loss(w), at.outputs(w), at.x))
            return at.descend(w, grad), state

    sim = made("bf16", Method("looks", Looks()), executor="loop")
    moved(sim)
    assert set(seen) == {torch.float32}
    assert {t.dtype for t in sim.dump().values() if t.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_losses_evaluation_and_training_alone_stay_exact(executor: str) -> None:
    full, rough = (made(p, executor=executor) for p in ("full", "bf16"))
    ids, stop = torch.arange(4), Stop(window=1, cap=2)
    for ask in (
        lambda s: torch.as_tensor(s.evaluate("test")["global"].loss),
        lambda s: s.simulator.probe(s.server.plan(), ids, s.server.w[None]),
        lambda s: s.simulator._alone(ids, stop),
        lambda s: s.simulator.root(s.server.plan()),
    ):
        assert torch.equal(ask(full), ask(rough))  # type: ignore[no-untyped-call]
    plans = [s.server.plan() for s in (full, rough)]
    wanted = [replace(p, needs=frozenset({"losses"})) for p in plans]
    told = [s.simulator.train(p, p.ids, {}) for s, p in zip((full, rough), wanted, strict=True)]
    assert told[0].losses is not None and told[1].losses is not None
    assert torch.equal(told[0].losses, told[1].losses) and not torch.equal(told[0].updates, told[1].updates)


def test_full_is_what_a_run_is_without_being_told() -> None:
    sim, named = (
        simulation(fedavg(), run=Run(device="cpu")),
        simulation(fedavg(), run=Run(device="cpu", precision="full")),
    )
    assert torch.equal(moved(sim), moved(named))
    assert environment(sim)["precision"] == "full"
    assert environment(made("bf16"))["precision"] == "bf16"


def flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_tf32_is_on_for_local_steps_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switches are there without a GPU: they only do nothing."""
    monkeypatch.setattr(run, "check_precision", lambda precision, device: None)
    seen: dict[str, tuple[bool, bool]] = {}

    class Looks(SGD):
        def report(self, state: State, at: At) -> dict[str, torch.Tensor]:
            seen["report"] = flags()
            return {}

        def step(self, w: torch.Tensor, state: State, at: At) -> tuple[torch.Tensor, State]:
            seen["step"] = flags()
            return super().step(w, state, at)

    class Sees(type(Method().server)):  # type: ignore[misc]
        def combine(self, cohort: Any) -> torch.Tensor:
            seen["server"] = flags()
            return super().combine(cohort)  # type: ignore[no-any-return]

    before = flags()
    for replay in ("off", "on"):
        seen.clear()
        made("tf32", Method("looks", Looks(), Sees()), replay=replay).step()
        assert seen == {"report": (False, False), "step": (True, True), "server": (False, False)}
        assert flags() == before


def test_switches_are_put_back_after_an_error() -> None:
    def fails() -> None:
        with steps_in("tf32"):
            assert flags() == (True, True)
            raise KeyError

    with clients.steady():
        with pytest.raises(KeyError):
            fails()
        assert flags() == (False, False)


def test_tf32_is_refused_on_a_cpu() -> None:
    with pytest.raises(EquipoiseError, match=r"device cpu, run.precision is 'tf32'(?s:.*)hint.*bf16"):
        made("tf32")


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_float64_is_for_full_precision_only(precision: str) -> None:
    with pytest.raises(EquipoiseError, match=f"run.precision with dtype 'float64' is '{precision}'"):
        Run(precision=precision, dtype="float64")  # type: ignore[arg-type]


def test_threads_do_not_share_tf32() -> None:
    with pytest.raises(EquipoiseError, match=r"run\.workers"):
        Run(precision="tf32", workers=2)
    assert Run(precision="bf16", workers=2).workers == 2


def test_a_config_can_ask_for_it() -> None:
    parts = '[data]\ndataset = "digits"\nclients = 4\n[model]\nkind = "mlp"\n[method]\nname = "fedavg"\n'
    text = parts + '[run]\nprecision = "{}"\n'
    assert load(text.format("bf16")).run.precision == "bf16"
    assert 'precision = "bf16"' in dump(load(text.format("bf16")))
    with pytest.raises(EquipoiseError, match="precision"):
        load(text.format("fp8"))
