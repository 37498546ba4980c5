"""EAGLE: what its weights promise, who counts how, and what happens at the edges."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.core import SGD, Method, State, WeightedMean
from equipoise.data.federation import Federation, Split
from equipoise.engine.clients import Executor
from equipoise.engine.settings import Participation, Run, Train
from equipoise.errors import EquipoiseError
from equipoise.methods.eagle import EAGLE, GapWeights, Scale, eagle
from equipoise.threat import Attack, Claims
from tests.small import cohort, federation, relative, simulation

EXECUTORS = pytest.mark.parametrize("executor", ["vmap", "loop"])
SHORT = {"window": 5, "cap": 10}
gap_lists = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20)
lams = st.floats(0.0, 100.0)


def absorbed(
    gaps: list[float], rule: GapWeights, *, n: int | None = None, seed: int = 0, measured: Tensor | None = None
) -> State:
    """The state after a first round in which clients 0, 1, ... of n reported these gaps."""
    signals = {"gap": torch.tensor(gaps, dtype=torch.float64)}
    signals |= {} if measured is None else {"measured": measured.double()}
    seen = replace(cohort(k=len(gaps), seed=seed), signals=signals, n_clients=n or len(gaps))
    return rule(seen, rule.init(seen.start)).state


def sent(gaps: list[float], lam: float, scale: Scale = "none") -> Tensor:
    rule = GapWeights(lam, scale)
    return rule.plan(torch.arange(len(gaps)), absorbed(gaps, rule))["weight"]


def blind(fed: Federation, clients: list[int]) -> Federation:
    """The federation after these clients have lost their validation data."""
    s = fed.splits["validation"]
    size = s.size.clone()
    size[clients] = 0
    return replace(fed, splits={**fed.splits, "validation": Split(s.index, s.start, size)})


# ------------------------------------------------------------------------------------------------------- the weights


@given(gaps=gap_lists, lam=lams)
def test_weights_sum_to_the_number_of_clients(gaps: list[float], lam: float) -> None:
    weights = sent(gaps, lam)
    assert float(weights.sum()) == pytest.approx(len(gaps), abs=1e-9 * max(1.0, float(weights.abs().sum())))


@given(gaps=gap_lists, lam=lams)
def test_a_larger_gap_gets_a_larger_weight_in_every_scale(gaps: list[float], lam: float) -> None:
    order = torch.tensor(gaps).double().argsort()
    for scale in ("norm", "sqrt_k", "none"):
        assert bool((sent(gaps, lam, scale)[order].diff() >= 0).all())  # type: ignore[arg-type]


@given(gap=st.floats(-1e3, 1e3), k=st.integers(1, 9), lam=lams)
def test_equal_gaps_give_equal_weights(gap: float, k: int, lam: float) -> None:
    assert sent([gap] * k, lam).tolist() == pytest.approx([1.0] * k, abs=1e-9)


@given(gaps=gap_lists, lam=lams)
def test_the_norm_of_scaled_weights_is_one_and_its_sign_pattern_stays(gaps: list[float], lam: float) -> None:
    raw, unit, rooted = (sent(gaps, lam, scale) for scale in ("none", "norm", "sqrt_k"))
    assert float(unit.norm()) == pytest.approx(1.0, rel=1e-12)
    assert torch.allclose(unit * len(gaps) ** 0.5, rooted, rtol=1e-12)
    assert torch.equal(raw.sign(), unit.sign())


def test_the_first_weights_are_ones_and_scaled_too() -> None:
    for scale, expected in (("norm", 0.5), ("sqrt_k", 1.0), ("none", 1.0)):
        rule = GapWeights(2.0, scale)  # type: ignore[arg-type]
        assert rule.plan(torch.arange(4), rule.init(torch.zeros(3)))["weight"].tolist() == [expected] * 4


def test_a_negative_weight_is_kept_and_its_client_climbs() -> None:
    assert sent([0.0, 1.0], 1.0).tolist() == [-3.0, 5.0]
    sim = simulation(eagle(50.0, scale="none", **SHORT), train=Train(epochs=1, batch=0, lr=0.01))
    sim.step()
    weight = sim.server.plan().messages["weight"]
    assert float(weight.min()) < 0 < float(weight.max())
    start = sim.server.w.clone()
    before = sim.simulator.executor().risk(torch.arange(4), start.expand(4, -1))
    replies = sim.simulator(sim.server.plan())
    after = sim.simulator.executor().risk(torch.arange(4), start - replies.updates)
    assert torch.equal(after > before, weight < 0)


@EXECUTORS
def test_lam_zero_with_sqrt_k_is_fedavg_with_a_plain_mean_to_the_bit(executor: str) -> None:
    # Step by step: a recording joins FedAvg's gradient and step into one operation, which rounds once less.
    run = Run(executor=executor, dtype="float32", replay="off")  # type: ignore[arg-type]
    for participation in (Participation(), Participation(per_round=2)):
        ours = simulation(eagle(0.0, scale="sqrt_k", **SHORT), run=run, participation=participation)
        plain = simulation(Method("a", SGD(), WeightedMean("uniform")), run=run, participation=participation)
        for _ in range(4):
            ours.step()
            plain.step()
        assert torch.equal(ours.server.w, plain.server.w)


def test_lam_zero_with_norm_is_fedavg_with_shorter_steps() -> None:
    ours = simulation(eagle(0.0, **SHORT), train=Train(batch=5, lr=0.1))
    plain = simulation(Method("a", SGD(), WeightedMean("uniform")), train=Train(batch=5, lr=0.05))
    for _ in range(3):
        ours.step()
        plain.step()
    assert relative(ours.server.w, plain.server.w) < 1e-12


def test_one_client_has_weight_one() -> None:
    fed = federation((9,))
    ours, plain = simulation(eagle(5.0, **SHORT), fed), simulation(fed=fed)
    for _ in range(3):
        ours.step()
        plain.step()
    assert relative(ours.server.w, plain.server.w) < 1e-12


# ------------------------------------------------------------------------------------------------- what is measured


@EXECUTORS
def test_a_gap_is_the_received_models_validation_loss_above_what_the_client_reaches_alone(executor: str) -> None:
    sim = simulation(eagle(**SHORT), run=Run(executor=executor, dtype="float64"))  # type: ignore[arg-type]
    sim.step()
    received = sim.evaluate("validation")["global"].loss
    gap = sim.step().info["gap"]
    optimum = sim.simulator.store.get(torch.arange(4))["optimum"]
    assert gap.tolist() == pytest.approx(list(received - optimum.numpy()), rel=1e-9)
    assert float(optimum.min()) > 0


def test_gaps_act_in_the_round_after_they_were_measured() -> None:
    sim = simulation(eagle(1.0, scale="none", **SHORT))
    assert sim.server.plan().messages["weight"].tolist() == [1.0] * 4
    gap = sim.step().info["gap"]
    expected = 1 + 4 * 4 / 3 * (gap - gap.mean())
    assert torch.allclose(sim.server.plan().messages["weight"], expected, rtol=1e-12)


def test_optima_are_found_once_per_client() -> None:
    sim = simulation(eagle(**SHORT), participation=Participation(per_round=2))
    sim.step()
    first = sim.simulator.store.dump()
    for _ in range(5):
        sim.step()
    last = sim.simulator.store.dump()
    at = torch.searchsorted(last["ids"], first["ids"])
    assert torch.equal(last["rows/optimum"][at], first["rows/optimum"])
    assert len(last["ids"]) == 4


def test_a_resumed_run_ends_like_one_that_was_never_stopped() -> None:
    whole, first, second = (simulation(eagle(**SHORT), participation=Participation(per_round=2)) for _ in range(3))
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    second.load(first.dump())
    for _ in range(3):
        second.step()
    assert torch.equal(whole.server.w, second.server.w)


# ----------------------------------------------------------------------------------------------- who counts, and how


def test_clients_not_heard_of_count_with_the_mean_gap() -> None:
    rule = GapWeights(1.0, "none")
    state = absorbed([0.0, 1.0, 2.0], rule, n=5)
    weights = rule.plan(torch.arange(5), state)["weight"]
    assert weights.tolist() == pytest.approx([1 - 5.0, 1.0, 1 + 5.0, 1.0, 1.0])
    assert float(weights.sum()) == pytest.approx(5.0)


def test_the_last_known_gap_of_an_absent_client_is_kept() -> None:
    rule = GapWeights(1.0, "none")
    state = absorbed([0.0, 1.0, 2.0], rule, n=3)
    later = replace(cohort(k=1, ids=[1]), signals={"gap": torch.tensor([4.0]).double()}, n_clients=3)
    state = rule(later, state).state
    assert state["ids"].tolist() == [0, 1, 2]
    assert state["gap"].tolist() == [0.0, 4.0, 2.0]
    assert rule.plan(torch.tensor([2]), state)["weight"].tolist() == [1.0]


@given(gaps=st.lists(st.floats(-10, 10), min_size=3, max_size=8), lam=st.floats(0, 5), drawn=st.integers(1, 3))
def test_weights_of_the_drawn_do_not_depend_on_who_else_was_drawn(gaps: list[float], lam: float, drawn: int) -> None:
    rule = GapWeights(lam, "sqrt_k")
    state = absorbed(gaps, rule)
    whole, some = (rule.plan(torch.arange(k), state)["weight"] for k in (len(gaps), drawn))
    assert torch.equal(whole[:drawn], some)


@EXECUTORS
def test_a_client_without_validation_data_counts_with_the_mean_gap(executor: str) -> None:
    run = Run(executor=executor, dtype="float64")  # type: ignore[arg-type]
    sim = simulation(eagle(1.0, scale="none", **SHORT), blind(federation(), [1]), run=run)
    record = sim.step()
    assert record.info["measured"].tolist() == [1, 0, 1, 1]
    weights = sim.server.plan().messages["weight"]
    assert float(weights[1]) == 1.0
    assert float(weights.sum()) == pytest.approx(4.0)
    assert len(set(weights.tolist())) == 4


@EXECUTORS
def test_no_validation_data_anywhere_is_an_error_and_nobody_trains_alone_for_it(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("trained alone for nothing")

    monkeypatch.setattr(Executor, "fit_alone", never)
    run = Run(executor=executor, dtype="float64")  # type: ignore[arg-type]
    with pytest.raises(EquipoiseError, match=r"none of the 4 clients has any\n  hint: set data.validation"):
        simulation(eagle(), blind(federation(), [0, 1, 2, 3]), run=run)


def test_a_client_whose_training_alone_diverges_counts_with_the_mean_gap() -> None:
    @dataclass(frozen=True)
    class Lost(EAGLE):
        def prepare(self, state: State, at: object) -> State:
            class Wild:
                size, fit_alone = staticmethod(at.size), staticmethod(at.fit_alone)  # type: ignore[attr-defined]

                @staticmethod
                def risk(rows: Tensor, split: str) -> Tensor:
                    return torch.tensor([0.1, torch.inf, torch.nan, 0.2], dtype=rows.dtype)

            return super().prepare(state, Wild())  # type: ignore[arg-type]

    sim = simulation(Method("e", Lost(eagle(**SHORT).client.stop), GapWeights(1.0, "none")))  # type: ignore[attr-defined]
    record = sim.step()
    assert record.info["measured"].tolist() == [1, 0, 0, 1]
    assert record.quarantined == {}
    assert sim.server.plan().messages["weight"][1:3].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("claim", [1e308, -1e308, 1e30])
def test_an_absurd_claim_leaves_everything_finite(claim: float) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Liar(Attack):
        def lie(self, claims: Claims, stream: object) -> Claims:  # type: ignore[override]
            return replace(claims, signals={**claims.signals, "gap": torch.full_like(claims.signals["gap"], claim)})

    for scale in ("norm", "sqrt_k"):
        sim = simulation(eagle(5.0, scale=scale, **SHORT), attack=Liar(clients=(2,)))  # type: ignore[arg-type]
        for _ in range(3):
            assert sim.step().skipped == ""
        assert bool(torch.isfinite(sim.server.w).all())


# ------------------------------------------------------------------------------------------- parts in the wrong place


def test_its_clients_refuse_a_server_that_sends_no_weights() -> None:
    sim = simulation(Method("e", EAGLE(eagle(**SHORT).client.stop)))  # type: ignore[attr-defined]
    with pytest.raises(EquipoiseError, match=r"sent no weight(.|\n)*GapWeights"):
        sim.step()


def test_its_server_refuses_clients_that_report_no_gaps() -> None:
    assert "clients report no gap" in simulation(Method("e", SGD(), GapWeights())).step().skipped


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"lam": -1.0}, "lam is -1.0"),
        ({"lam": float("nan")}, "lam is nan"),
        ({"lam": float("inf")}, "lam is inf"),
        ({"scale": "sqrt"}, "scale is 'sqrt'"),
        ({"tolerance": -0.1}, "tolerance is -0.1"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"window": 0}, "window is 0"),
        ({"cap": 0}, "cap is 0"),
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(EquipoiseError, match=f"eagle: .*{told}"):
        eagle(**wrong)  # type: ignore[arg-type]
