"""What a run is warned of: combinations that do less than they seem to."""

from pathlib import Path
from typing import Any

import pytest

from equipoise.aggregators.clip import Clip
from equipoise.aggregators.trimmed_mean import TrimmedMean
from equipoise.attacks.label_noise import LabelNoise
from equipoise.attacks.lie_loss import LieLoss
from equipoise.attacks.pixel_corruption import PixelCorruption
from equipoise.attacks.send_nan import SendNaN
from equipoise.attacks.wrong_shape import WrongShape
from equipoise.core import Method, WeightedMean, chain
from equipoise.engine.cautions import cautions
from equipoise.engine.settings import Admission
from equipoise.experiment import run
from equipoise.methods.local import local
from equipoise.methods.qffl import qffl
from tests.small import federation

ON, OFF = Admission(), Admission(guard="off")
NOISE = LabelNoise(count=1)


def test_an_attack_on_a_method_without_a_defence_is_named() -> None:
    (told,) = cautions(Method(), NOISE, ON, 4)
    assert "nothing in fedavg defends against LabelNoise: WeightedMean" in told


def test_what_stands_in_the_way_is_named_even_if_it_claims_nothing() -> None:
    (told,) = cautions(Method(server=chain(Clip(), WeightedMean())), NOISE, ON, 4)
    assert "defends against LabelNoise but Clip: WeightedMean" in told
    (told,) = cautions(qffl(), LieLoss(count=1), ON, 4)
    assert "defends against LieLoss but the guard of admission: QFFL" in told
    (told,) = cautions(qffl(), LieLoss(count=1), OFF, 4)
    assert "defends against LieLoss: QFFL" in told


@pytest.mark.parametrize("method", [Method(server=TrimmedMean()), Method(server=chain(Clip(), TrimmedMean())), local()])
def test_a_robust_rule_and_a_run_without_attack_are_no_news(method: Method) -> None:
    assert cautions(Method(), SendNaN(count=1), OFF, 4) == cautions(Method(), WrongShape(count=1), ON, 4) == ()
    assert cautions(method, NOISE, ON, 4) == cautions(method, None, OFF, 4) == cautions(Method(), None, OFF, 4) == ()


def test_a_robust_rule_that_believes_sizes_nobody_guards_is_warned_of() -> None:
    for server in (TrimmedMean(weights="size"), chain(Clip(), TrimmedMean(weights="size"))):
        (told,) = cautions(Method(server=server), None, OFF, 4)
        assert "TrimmedMean" in told and 'weights = "size"' in told
        assert cautions(Method(server=server), None, ON, 4) == ()
        assert cautions(Method(server=server), None, Admission(guard="off", size_cap=2.0), 4) == ()
    assert cautions(Method(server=WeightedMean("size")), None, OFF, 4) == ()


@pytest.mark.parametrize("share", [{"fraction": 0.1}, {"added": 0.1}])
def test_a_share_of_attackers_that_rounds_to_none_is_warned_of(share: dict[str, float]) -> None:
    (told,) = cautions(Method(), LabelNoise(**share), ON, 4)
    assert told == f"LabelNoise has no attacker: {next(iter(share))} = 0.1 of 4 clients rounds to none"
    assert "has no attacker" not in str(cautions(Method(), LabelNoise(**share), ON, 5 * 4))


@pytest.mark.parametrize("none", [{"fraction": 0.0}, {"count": 0}, {"clients": ()}, {"added": 0.0}])
def test_who_asks_for_no_attacker_gets_none(none: dict[str, Any]) -> None:
    assert cautions(Method(), LabelNoise(**none), ON, 4) == ()


def test_a_run_of_attackers_alone_is_warned_of() -> None:
    robust = Method(server=TrimmedMean())
    (told,) = cautions(robust, LabelNoise(fraction=1.0), ON, 4)
    assert "all 4 clients are malicious" in told
    assert cautions(robust, PixelCorruption(fraction=1.0), ON, 4) == ()  # its clients are victims, and are measured


def test_the_log_of_a_run_says_it_once(tmp_path: Path) -> None:
    run(federation(), model="linear", attack=NOISE, out=tmp_path / "r", rounds=2, device="cpu")
    assert (tmp_path / "r" / "log.txt").read_text().count("nothing in fedavg defends against LabelNoise") == 1
