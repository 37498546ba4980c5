"""Attacks that forge from honest updates: what is promised, odd rounds, and the search against the server's rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from equipoise import config, registry
from equipoise.aggregators.coordinate_median import CoordinateMedian
from equipoise.aggregators.krum import Krum
from equipoise.aggregators.multi_krum import MultiKrum
from equipoise.attacks._line_search import line_search
from equipoise.attacks.alie import ALIE, unnoticed
from equipoise.attacks.free_rider import FreeRider
from equipoise.attacks.ipm import IPM
from equipoise.attacks.mimic import Mimic
from equipoise.attacks.min_max import MinMax
from equipoise.attacks.min_sum import MinSum
from equipoise.attacks.sign_flip import SignFlip
from equipoise.core import Aggregator, Cohort, Method, ServerRule, WeightedMean
from equipoise.engine import checkpoint
from equipoise.engine.settings import Participation
from equipoise.errors import EquipoiseError
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery
from tests.small import federation, simulation

FORGING: list[Any] = [ALIE, IPM, MinMax, MinSum]
ALL: list[Any] = [*FORGING, Mimic]
MEAN = WeightedMean("uniform")


def honest(h: int = 8, d: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return 1 + torch.randn((h, d), generator=Stream(seed).torch(), dtype=dtype)


def forgery(x: Tensor, f: int = 2, rule: ServerRule = MEAN, asked: list[Tensor] | None = None) -> Forgery:
    n, d = len(x) + f, x.shape[1]

    def oracle(sent: Tensor) -> Tensor:
        if asked is not None:
            asked.append(sent)
        everyone = torch.cat([sent, x])
        return rule(Cohort(torch.arange(n), torch.zeros(d), everyone, torch.ones(n)), {}).direction

    own = torch.randn((f, d), generator=Stream(9).torch(), dtype=x.dtype)
    return Forgery(torch.arange(f), own, x, 0, 0.1, Stream(1), oracle, f + torch.arange(len(x)))


def named(attack: Attack) -> str:
    return f"{type(attack).__name__}-{'-'.join(str(v) for v in vars(attack).values() if isinstance(v, str | bool))}"


def sent_by(attack: Attack, seen: Forgery) -> Tensor:
    """What it sends, once it has taken in what it sees."""
    return attack.corrupt(replace(seen, memory=attack.remember(seen)))


# --------------------------------------------------------------------------------------------------- what is promised


@given(st.integers(2, 60), st.data())
def test_the_shift_of_alie_is_finite_for_any_numbers_and_grows_with_the_malicious_up_to_half(n: int, data: Any) -> None:
    f = data.draw(st.integers(0, n - 1))
    z = unnoticed(n, f)
    assert abs(z) < 5
    if 1 <= f < n // 2:
        assert unnoticed(n, f - 1) <= z


def test_alie_with_known_numbers() -> None:
    """n = 50, f = 24: s = 2, so that 24 of 26 honest clients may be nearer to the mean."""
    assert unnoticed(50, 24) == pytest.approx(1.4260768722)
    assert unnoticed(5, 1) == 0.0


@pytest.mark.parametrize("kind", ["unit", "std", "sign"])
@given(h=st.integers(2, 10), d=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_min_max_and_min_sum_reach_their_bound_and_do_not_pass_it(kind: Any, h: int, d: int, seed: int) -> None:
    x = honest(h, d, seed)
    apart = torch.cdist(x, x)
    sent = MinMax(count=1, perturbation=kind).corrupt(forgery(x))[:1]
    assert float(torch.cdist(sent, x).max()) == pytest.approx(float(apart.max()), rel=1e-9)
    sent = MinSum(count=1, perturbation=kind).corrupt(forgery(x))[:1]
    together = float(torch.cdist(sent, x).square().sum())
    assert together == pytest.approx(float(apart.square().sum(1).max()), rel=1e-9)


@pytest.mark.parametrize("kind", FORGING)
def test_forged_updates_lie_against_the_mean(kind: Any) -> None:
    """Updates are start - end: to go less along the mean is to learn less."""
    x = honest(40) + 2
    mu = x.mean(0)
    assert float((sent_by(kind(count=1), forgery(x, 10))[0] - mu) @ mu) < 0


def test_ipm_turns_the_mean_round_when_epsilon_times_f_is_more_than_the_honest() -> None:
    x = honest(8)
    for epsilon, sign in ((3.9, 1), (4.1, -1)):
        seen = forgery(x, 2)
        assert float(seen.oracle(IPM(count=1, epsilon=epsilon).corrupt(seen)) @ x.mean(0)) * sign > 0


def test_mimic_copies_the_client_that_is_not_like_the_others() -> None:
    x = honest(8)
    x[5] += 50
    assert torch.equal(sent_by(Mimic(count=1), forgery(x)), x[5].expand(2, -1))


def test_mimic_copies_the_first_of_several_that_are_as_far_out() -> None:
    one = torch.zeros((4, 3), dtype=torch.float64)
    one[1], one[2] = 1.0, -1.0
    assert torch.equal(sent_by(Mimic(count=1), forgery(one))[0], one[1])


# ------------------------------------------------------------------------------------------------ what is remembered


def after(attack: Attack, seen: Forgery, memory: Mapping[str, Tensor]) -> Forgery:
    return replace(seen, memory=attack.remember(replace(seen, memory=memory)))


def test_mimic_keeps_to_its_client_whoever_is_furthest_out_later() -> None:
    x, later = honest(8), honest(8, seed=1)
    x[5] += 50
    later[2] += 500
    attack = Mimic(count=1, warmup=2)
    first = after(attack, forgery(x), {})
    still_open = after(attack, forgery(later), first.memory)
    assert torch.equal(attack.corrupt(still_open)[0], later[2])
    attack = Mimic(count=1)
    fixed = after(attack, forgery(later), after(attack, forgery(x), {}).memory)
    assert int(fixed.memory["client"]) == 2 + 5
    assert torch.equal(attack.corrupt(fixed)[0], later[5])


def test_mimic_copies_whoever_is_there_and_furthest_along_while_its_client_is_not() -> None:
    x, attack = honest(8), Mimic(count=1)
    x[5], x[3] = x[5] + 50, x[3] - 20
    memory = after(attack, forgery(x), {}).memory
    without = replace(forgery(x[:5]), honest_ids=2 + torch.arange(5))
    assert torch.equal(attack.corrupt(after(attack, without, memory))[0], x[3])
    others = replace(forgery(x[5:]), honest_ids=2 + torch.arange(5, 8))
    assert torch.equal(attack.corrupt(after(attack, others, memory))[0], x[5])


@pytest.mark.parametrize("nobody", [torch.zeros(0, 6), torch.full((3, 6), torch.inf)], ids=["none", "inf"])
def test_mimic_learns_nothing_in_a_round_without_anyone_to_copy_and_sends_what_it_has(nobody: Tensor) -> None:
    attack, empty = Mimic(count=1), forgery(nobody.double())
    seen = after(attack, empty, {})
    assert seen.memory == {} and torch.equal(attack.corrupt(seen), empty.own)
    memory = after(attack, forgery(honest()), seen.memory).memory
    assert after(attack, empty, memory).memory == memory


def test_a_disguised_free_rider_sends_nothing_in_its_first_round_and_then_noise_that_fades_from_there() -> None:
    attack, seen = FreeRider(count=1, kind="disguised"), forgery(honest(d=4000))
    first = after(attack, replace(seen, round=7), {})
    assert not attack.corrupt(first).any()
    change = float(seen.oracle(torch.zeros_like(seen.own)).abs().mean())
    for round in (8, 17):
        later = after(attack, replace(seen, round=round), first.memory)
        assert float(attack.corrupt(later).std()) == pytest.approx(change / (round - 7), rel=0.05)


@dataclass(frozen=True, kw_only=True)
class Counting(Attack):
    """Sends how often it has been asked to remember."""

    def remember(self, seen: Forgery) -> dict[str, Tensor]:
        assert len(seen.honest_ids) == len(seen.honest) and not torch.isin(seen.honest_ids, seen.ids).any()
        return {"times": seen.memory.get("times", torch.tensor(0)) + 1}

    def corrupt(self, seen: Forgery) -> Tensor:
        assert int(seen.memory["times"]) == seen.round + 1
        return seen.own + seen.memory["times"]


def test_an_attack_remembers_once_in_every_round_before_it_forges_and_from_nothing_in_every_run() -> None:
    for _ in range(2):
        sim = simulation(attack=Counting(clients=(1,)))
        for round in range(3):
            sim.step()
            assert int(sim.dump()["attack/times"]) == round + 1


@pytest.mark.parametrize(
    "attack",
    [
        Mimic(clients=(0,), warmup=4),
        Mimic(clients=(0, 1)),
        FreeRider(clients=(0, 2), kind="disguised"),
        Counting(clients=(0,)),
    ],
    ids=named,
)
def test_a_run_that_is_saved_and_resumed_is_the_same_to_the_bit(attack: Attack, tmp_path: Path) -> None:
    participation = Participation(per_round=5) if not isinstance(attack, Counting) else Participation()
    whole, before, resumed = (
        simulation(fed=federation((9,) * 6), attack=attack, participation=participation) for _ in range(3)
    )
    for _ in range(8):
        whole.step()
    for _ in range(3):
        before.step()
    checkpoint.save(tmp_path, checkpoint.Checkpoint(3, before.dump()))
    saved = checkpoint.load_latest(tmp_path)
    assert saved is not None and any(name.startswith("attack/") for name in saved.tensors)
    resumed.load(dict(saved.tensors))
    for _ in range(5):
        resumed.step()
    assert torch.equal(resumed.server.w, whole.server.w)
    assert {n: t.tolist() for n, t in resumed.dump().items()} == {n: t.tolist() for n, t in whole.dump().items()}


# ---------------------------------------------------------------------------------------------------------- odd rounds


def variants() -> list[Any]:
    kinds: list[Any] = [k(count=1, search=s) for k in ALL for s in (False, True)]
    kinds += [k(count=1, perturbation=p) for k in (MinMax, MinSum) for p in ("std", "sign")]
    return [*kinds, *(FreeRider(count=1, kind=k) for k in ("noise", "unchanged", "disguised"))]  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", variants(), ids=named)
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(3, 4),
        torch.ones(3, 4),
        torch.ones(1, 4),
        torch.zeros(0, 4),
        torch.full((2, 4), 1e30) * torch.tensor([[1.0], [-0.5]]),
        torch.full((3, 4), 3e38),
        torch.full((2, 4), torch.nan),
    ],
    ids=["zero", "equal", "one", "none", "1e30", "largest", "nan"],
)
def test_a_round_with_nothing_to_forge_from_is_no_error_and_what_is_sent_is_finite(attack: Attack, x: Tensor) -> None:
    sent = sent_by(attack, forgery(x, 3))
    assert sent.shape == (3, 4) and sent.dtype == x.dtype
    assert bool(torch.isfinite(sent).all())


@pytest.mark.parametrize("kind", [ALIE, MinMax, MinSum, Mimic])
def test_where_honest_clients_agree_the_forged_update_is_theirs(kind: Any) -> None:
    x = torch.full((5, 4), 0.7, dtype=torch.float64)
    assert torch.allclose(sent_by(kind(count=1), forgery(x)), x[:2], rtol=1e-12)


@pytest.mark.parametrize("kind", ALL)
def test_an_honest_client_that_diverged_is_left_out(kind: Any) -> None:
    x = honest()
    spoilt = torch.cat([x, torch.full((1, 6), torch.nan, dtype=torch.float64)])
    assert torch.equal(sent_by(kind(count=1), forgery(spoilt)), sent_by(kind(count=1), forgery(x)))


@pytest.mark.parametrize("attack", variants(), ids=named)
def test_nothing_that_is_seen_is_changed(attack: Attack) -> None:
    seen = forgery(honest())
    before = seen.own.clone(), seen.honest.clone()
    sent_by(attack, seen)
    assert torch.equal(seen.own, before[0]) and torch.equal(seen.honest, before[1])


@pytest.mark.parametrize("kind", ALL)
def test_large_numbers_in_float32_are_as_good_as_small_ones(kind: Any) -> None:
    x = honest(dtype=torch.float32)
    small, large = (sent_by(kind(count=1), forgery(c * x)) for c in (1.0, 2.0**98))
    assert torch.allclose(small, large / 2.0**98, rtol=1e-5)


# ---------------------------------------------------------------------------------------------------------- the search


@given(st.floats(1e-3, 1e3), st.floats(-0.99, 0.99), st.integers(3, 40))
def test_the_search_finds_a_threshold_within_its_resolution_and_asks_as_often_as_it_may(
    start: float, at: float, evaluations: int
) -> None:
    """A defence that notices everything above a limit: the best scale is just below."""
    limit, asked = start * 100**at, list[float]()

    def gain(s: float) -> float:
        asked.append(s)
        return s if s <= limit else -s

    found = line_search(gain, start, evaluations)
    assert len(asked) == evaluations and found in asked and start in asked
    assert found == max(s for s in asked if s <= limit)
    coarse = max(3, evaluations // 2 | 1)
    ratio = 100 ** (2 / (coarse - 1))
    assert log(limit / found) <= 1.001 * 2 * log(ratio) / (evaluations - coarse + 1)


def test_gains_that_are_not_finite_are_never_chosen_and_ties_go_to_the_smallest() -> None:
    assert line_search(lambda s: float("nan") if s > 1 else float("inf") if s > 0.5 else s, 1.0, 17) <= 0.5
    assert line_search(lambda s: 0.0, 1.0, 17) == pytest.approx(0.01)


RULES = [MEAN, CoordinateMedian(), Krum(f=2), MultiKrum(f=2)]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("kind", FORGING)
@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_the_search_never_does_worse_than_the_equation(kind: Any, rule: ServerRule, seed: int) -> None:
    x = honest(9, 6, seed)
    mu, asked = x.mean(0), []
    plain, seen = kind(count=1, evaluations=9), forgery(x, 2, rule, asked)
    line = plain.line(x, 2)
    scale = abs(line.scale) or 1.0  # ALIE's own z is 0 or less in small rounds; the search looks at those above 0

    def reached(sent: Tensor) -> float:
        return float((seen.oracle(sent) - mu) @ line.p)

    named_by_equation = reached((line.origin + scale * line.p).expand(2, -1))
    asked.clear()
    best = sent_by(kind(count=1, evaluations=9, search=True), seen)
    assert len(asked) == 9
    assert reached(best) >= named_by_equation - 1e-9


def test_against_a_plain_mean_the_search_goes_as_far_as_it_may_and_against_krum_it_hides() -> None:
    x = honest(9)
    far, near = (IPM(count=1, search=True).corrupt(forgery(x, 2, rule)) for rule in (MEAN, Krum(f=2)))
    assert torch.allclose(far[0], -10 * x.mean(0), rtol=1e-9)
    assert float(near[0].norm()) < 2 * float(x.norm(dim=1).max())


def test_the_search_breaks_a_rule_that_the_equation_does_not() -> None:
    """A rule that takes the mean of what is shorter than a limit, which is far beyond what min-max dares."""
    x = honest(9)

    @dataclass(frozen=True)
    class Limit(Aggregator):
        def combine(self, cohort: Cohort) -> Tensor:
            return cohort.updates[cohort.updates.norm(dim=1) < 40].mean(0)

    plain, searched = (MinMax(count=1, search=s).corrupt(forgery(x, 2, Limit())) for s in (False, True))
    assert 20 < float(searched[0].norm()) < 40
    assert float(plain[0].norm()) < 10


def test_mimic_with_search_copies_the_client_that_leads_the_server_furthest_away() -> None:
    x, asked = honest(9), []
    sent = sent_by(Mimic(count=1, search=True), forgery(x, 2, Krum(f=2), asked))
    assert len(asked) == 9
    away = [float((forgery(x, 2, Krum(f=2)).oracle(row.expand(2, -1)) - x.mean(0)).norm()) for row in x]
    assert float((forgery(x, 2, Krum(f=2)).oracle(sent) - x.mean(0)).norm()) == max(away)
    assert bool((x == sent[0]).all(1).any())


@pytest.mark.parametrize("kind", ALL)
def test_in_a_run_the_search_asks_the_servers_own_rule_and_leaves_no_trace_in_its_state(kind: Any) -> None:
    runs = [
        simulation(
            Method("x", server=MultiKrum(f=1)), federation((9, 9, 9, 9, 9, 9)), attack=kind(clients=(0,), search=s)
        )
        for s in (True, True, False)
    ]
    for _ in range(2):
        records = [sim.step() for sim in runs]
        assert all(r.skipped == "" and len(r.admitted) == 6 for r in records)
    assert torch.equal(runs[0].server.w, runs[1].server.w)
    assert bool(torch.isfinite(runs[2].server.w).all())


# -------------------------------------------------------------------------------------------------- settings and names


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ALIE(count=1, z=float("nan")), "alie: z is nan"),
        (lambda: IPM(count=1, epsilon=-0.1), "ipm: epsilon is -0.1"),
        (lambda: IPM(count=1, evaluations=2), "IPM: evaluations is 2"),
        (lambda: Mimic(count=1, evaluations=0), "mimic: evaluations is 0"),
        (lambda: Mimic(count=1, warmup=0), "mimic: warmup is 0"),
        (lambda: SignFlip(count=1, scale=float("inf")), "sign-flip: scale is inf"),
        (lambda: MinMax(count=1, perturbation="mean"), "MinMax: perturbation is 'mean'"),  # type: ignore[arg-type]
        (lambda: MinSum(count=1, perturbation=""), "MinSum: perturbation is ''"),  # type: ignore[arg-type]
        (lambda: FreeRider(count=1, kind="lazy"), "free-rider: kind is 'lazy'"),  # type: ignore[arg-type]
        (lambda: FreeRider(count=1, sigma=-1.0), "free-rider: sigma is -1.0"),
        (lambda: FreeRider(count=1, gamma=float("inf")), "free-rider: gamma is inf"),
        (lambda: MinMax(), "give exactly one"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Attack], said: str) -> None:
    with pytest.raises(EquipoiseError, match=said):
        make()


def test_all_can_be_named_in_a_config() -> None:
    start = '[data]\ndataset = "digits"\nclients = 5\n[model]\nkind = "linear"\n[method]\nname = "fedavg"\n[attack]\n'
    for text, attack in {
        'name = "alie"\nfraction = 0.2\nz = 1.5': ALIE(fraction=0.2, z=1.5),
        'name = "ipm"\ncount = 2\nepsilon = 100.0\nsearch = true': IPM(count=2, epsilon=100.0, search=True),
        'name = "min-max"\ncount = 2\nperturbation = "std"': MinMax(count=2, perturbation="std"),
        'name = "min-sum"\ncount = 2\nevaluations = 5': MinSum(count=2, evaluations=5),
        'name = "mimic"\ncount = 2\nwarmup = 5': Mimic(count=2, warmup=5),
        'name = "free-rider"\nadded = 0.5\nkind = "disguised"': FreeRider(added=0.5, kind="disguised"),
    }.items():
        read = config.load(start + text)
        assert read.make_attack() == attack
        assert config.load(config.dump(read)) == read
    assert not {n for n in registry.attacks() if n.startswith("-") or n in ("forging", "perturbed", "lying")}
