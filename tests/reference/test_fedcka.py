"""FedCKA against a literal transcription: one client, one batch, one layer at a time, kernels centred by a matrix."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from equipoise.at import Schedule
from equipoise.core import Method, WeightedMean
from equipoise.data.federation import Federation
from equipoise.engine.batches import plan_batches
from equipoise.engine.run import Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.methods.fedavg import fedavg
from equipoise.methods.fedcka import FedCKA, cka, fedcka
from equipoise.streams import Stream
from tests.small import federation, relative, simulation

ROUNDS, EPOCHS, BATCH, LR = 3, 2, 4, 0.1
SIZES = (9, 4, 13, 5)
HIDDEN = (6, 5)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, HIDDEN[0]), nn.Tanh(), nn.Linear(HIDDEN[0], HIDDEN[1]), nn.ReLU(), nn.Linear(5, 3)
    )


def simulate(method: Method, fed: Federation, per_round: int | None = None, rounds: int = ROUNDS) -> Simulation:
    train = Train(rounds=rounds, epochs=EPOCHS, batch=BATCH, lr=LR)
    participation = Participation(per_round=per_round) if per_round else Participation()
    sim = simulation(method, fed, model=model().double(), train=train, participation=participation)
    for _ in range(rounds):
        sim.step()
    return sim


def literal_cka(x: Tensor, y: Tensor) -> Tensor:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)), HSIC(K, L) = tr(K H L H) / (n - 1)^2."""
    n = len(x)
    centre = torch.eye(n, dtype=x.dtype) - torch.full((n, n), 1 / n, dtype=x.dtype)
    k, l_ = x @ x.T, y @ y.T

    def hsic(a: Tensor, b: Tensor) -> Tensor:
        return torch.trace(a @ centre @ b @ centre) / (n - 1) ** 2

    return hsic(k, l_) / (hsic(k, k) * hsic(l_, l_)).sqrt()


def outputs(w: Tensor, x: Tensor) -> list[Tensor]:
    """Of all three linear layers, by hand: weights and biases lie in the vector one after the other."""
    found, at, sizes = [], 0, (6, *HIDDEN, 3)
    for n, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        weight = w[at : at + fan_in * fan_out].view(fan_out, fan_in)
        bias = w[at + fan_in * fan_out : at + fan_in * fan_out + fan_out]
        at += fan_in * fan_out + fan_out
        found.append(x @ weight.T + bias)
        x = torch.tanh(found[-1]) if n == 0 else torch.relu(found[-1])
    return found


def literal(fed: Federation, mu: float, layers: int, temperature: float) -> Tensor:
    data, w = fed.data, torch.cat([p.detach().double().reshape(-1) for p in model().parameters()])
    previous = dict.fromkeys(range(len(SIZES)), w)
    for t in range(ROUNDS):
        stream = Stream(0).child("batch", t)
        batches = plan_batches(fed.splits["train"], torch.arange(len(SIZES)), Schedule(EPOCHS, None, BATCH), stream)
        total, ends = torch.zeros_like(w), {}
        for k in range(len(SIZES)):
            wk = w
            for s in range(batches.steps[k]):
                samples = batches.index[s, 0, k][batches.mask[s, 0, k]]
                x, y = data.x[samples].double(), data.y[samples]
                wk = wk.detach().requires_grad_()
                mine, received, past = outputs(wk, x), outputs(w, x), outputs(previous[k], x)
                loss = -torch.log_softmax(mine[2], 1)[torch.arange(len(y)), y].mean()
                for n in range(layers) if len(samples) > 1 else ():
                    near = torch.exp(literal_cka(mine[n], received[n]) / temperature)
                    far = torch.exp(literal_cka(mine[n], past[n]) / temperature)
                    loss = loss + mu / layers * -torch.log(near / (near + far))
                (gradient,) = torch.autograd.grad(loss, wk)
                wk = (wk - LR * gradient).detach()
            ends[k] = wk
            total = total + SIZES[k] / sum(SIZES) * wk
        w, previous = total, ends
    return w


@pytest.mark.parametrize(
    ("mu", "layers", "temperature"), [(3.0, 2, 1.0), (10.0, 1, 1.0), (0.5, 3, 1.0), (3.0, 2, 0.2), (0.0, 2, 1.0)]
)
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_it_is_its_equations(mu: float, layers: int, temperature: float, executor: str) -> None:
    fed = federation(SIZES)
    method = fedcka(mu, layers=layers, temperature=temperature)
    train = Train(rounds=ROUNDS, epochs=EPOCHS, batch=BATCH, lr=LR)
    run = Run(dtype="float64", executor=executor)  # type: ignore[arg-type]
    sim = simulation(method, fed, model=model().double(), train=train, run=run)
    for _ in range(ROUNDS):
        sim.step()
    assert relative(sim.server.w, literal(fed, mu, layers, temperature)) < 1e-9


def test_mu_zero_is_fedavg_to_the_bit() -> None:
    fed = federation(SIZES)
    assert torch.equal(simulate(fedcka(0.0), fed).server.w, simulate(fedavg(), fed).server.w)


def test_the_first_round_is_fedavg_and_the_second_is_not() -> None:
    """Before a client trained, its previous model is the received one, and the term pulls neither way."""
    fed = federation(SIZES)
    for rounds, same in ((1, True), (2, False)):
        ours, plain = (simulate(m, fed, rounds=rounds).server.w for m in (fedcka(), fedavg()))
        assert torch.equal(ours, plain) == same


def test_a_client_keeps_the_model_it_trained_last_and_before_that_the_initial_one() -> None:
    fed = federation(SIZES)
    sim = simulate(fedcka(), fed, per_round=2, rounds=1)
    known = [k for k in range(4) if bool(sim.simulator.store.known(torch.tensor([k])))]
    assert len(known) == 2
    ends = torch.stack([sim.simulator.store.get(torch.tensor([k]))["previous"][0] for k in known])
    sizes = torch.tensor([SIZES[k] for k in known], dtype=torch.float64)
    assert torch.allclose(sim.server.w, (sizes / sizes.sum()) @ ends)
    assert torch.equal(FedCKA().init(sim.simulator.w0[None])["previous"][0], sim.simulator.w0)


# ------------------------------------------------------------------------------------------------------------ CKA


def rows(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=Stream(seed).torch(), dtype=torch.float64)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 12), st.integers(1, 12), st.integers(0, 4))
def test_cka_is_its_definition_over_the_real_samples(seed: int, n: int, p: int, q: int, padding: int) -> None:
    x, y = rows(seed, 1, n, p), rows(seed + 1, 1, n, q)
    junk = torch.full((1, padding, 1), 1e3, dtype=torch.float64)
    padded = [torch.cat([t, junk.expand(-1, -1, t.shape[2])], 1) for t in (x, y)]
    mask = torch.arange(n + padding)[None] < n
    assert float(cka(*padded, mask)) == pytest.approx(float(literal_cka(x[0], y[0])), rel=1e-9)


def test_cka_ignores_shift_scale_and_rotation_and_is_one_for_the_same() -> None:
    x, y, mask = rows(1, 2, 8, 5), rows(2, 2, 8, 5), torch.ones((2, 8), dtype=torch.bool)
    turn = torch.linalg.qr(rows(3, 5, 5))[0]
    assert cka(x, 3 * x @ turn + 7, mask).tolist() == pytest.approx([1, 1])
    assert torch.allclose(cka(1e30 * x, 1e-30 * y - 4e-30, mask), cka(x, y, mask))
    assert torch.allclose(cka(x.reshape(2, 8, 5, 1), y, mask), cka(x, y, mask))
    between = cka(x, y, mask)
    assert ((between > 0) & (between < 1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_that_do_not_differ_give_zero_without_a_gradient(dtype: torch.dtype) -> None:
    x = rows(1, 4, 6, 5).to(dtype)
    x[0] = 1 / 3  # constant
    x[1] = x[1, :1] * (1 + torch.finfo(dtype).eps * torch.arange(6, dtype=dtype)[:, None])  # up to rounding
    mask = torch.ones((4, 6), dtype=torch.bool)
    mask[2, 1:] = False  # one sample
    mask[3] = False  # none
    x.requires_grad_()
    found = cka(x, rows(2, 4, 6, 5).to(dtype), mask)
    found.sum().backward()
    assert found.tolist() == [0, 0, 0, 0] and x.grad is not None and not x.grad.any()


def test_large_float32_outputs_do_not_overflow() -> None:
    x, y, mask = rows(1, 1, 8, 5).float(), rows(2, 1, 8, 5).float(), torch.ones((1, 8), dtype=torch.bool)
    assert float(cka(1e30 * x, y, mask)) == pytest.approx(float(cka(x, y, mask)), rel=1e-5)


# --------------------------------------------------------------------------------------------------------- the rest


def test_models_with_fewer_layers_use_those_they_have() -> None:
    fed = federation(SIZES)
    sim = simulation(fedcka(), fed, train=Train(batch=4, lr=0.1))
    for _ in range(2):
        assert not sim.step().skipped
    assert torch.isfinite(sim.server.w).all()


def test_convolutions_have_outputs_too() -> None:
    fed = federation(SIZES, shape=(1, 8, 8))
    sim = simulation(fedcka(), fed, model="cnn", channels=(2, 3), kernel=3, hidden=(4,), train=Train(batch=4, lr=0.1))
    for _ in range(2):
        assert not sim.step().skipped
    assert torch.isfinite(sim.server.w).all()


def test_clients_end_nearer_to_the_global_model_in_comparison_with_their_own_past() -> None:
    """After the first round, which is FedAvg's, everyone stands where they would without the term."""
    fed, clients = federation((20, 20, 20, 20)), torch.arange(4)
    x, mask = fed.data.x[:20].double(), torch.ones((1, 20), dtype=torch.bool)

    def contrast(mu: float) -> float:
        sim = simulate(fedcka(mu), fed, rounds=1)
        received, past = sim.server.w, sim.simulator.store.get(clients)["previous"]
        sim.step()
        ends, gaps = sim.simulator.store.get(clients)["previous"], []
        for end, before in zip(ends, past, strict=True):
            mine, near, far = (outputs(w, x)[1][None] for w in (end, received, before))
            gaps.append(float(cka(mine, near, mask) - cka(mine, far, mask)))
        return float(np.mean(gaps))

    assert contrast(3.0) > contrast(0.3) > contrast(0.0)


def test_bad_options_are_named() -> None:
    bad = ({"mu": -1.0}, {"mu": math.inf}, {"layers": 0}, {"temperature": 0.0}, {"temperature": math.nan})
    for options in bad:
        with pytest.raises(EquipoiseError, match=f"fedcka: {next(iter(options))} is"):
            fedcka(**options)  # type: ignore[arg-type]
    assert FedCKA(layers=3).features == 3 and fedcka(server=WeightedMean("uniform")).server == WeightedMean("uniform")
