"""What a run is warned of: combinations that protect less than they seem to."""

from pathlib import Path

import pytest

from equipoise.aggregators.clip import Clip
from equipoise.aggregators.trimmed_mean import TrimmedMean
from equipoise.attacks.label_noise import LabelNoise
from equipoise.attacks.lie_loss import LieLoss
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
    (told,) = cautions(Method(), NOISE, ON)
    assert "nothing in fedavg defends against LabelNoise: WeightedMean" in told


def test_what_stands_in_the_way_is_named_even_if_it_claims_nothing() -> None:
    (told,) = cautions(Method(server=chain(Clip(), WeightedMean())), NOISE, ON)
    assert "defends against LabelNoise but Clip: WeightedMean" in told
    (told,) = cautions(qffl(), LieLoss(count=1), ON)
    assert "defends against LieLoss but the guard of admission: QFFL" in told
    (told,) = cautions(qffl(), LieLoss(count=1), OFF)
    assert "defends against LieLoss: QFFL" in told


@pytest.mark.parametrize("method", [Method(server=TrimmedMean()), Method(server=chain(Clip(), TrimmedMean())), local()])
def test_a_robust_rule_and_a_run_without_attack_are_no_news(method: Method) -> None:
    assert cautions(Method(), SendNaN(count=1), OFF) == cautions(Method(), WrongShape(count=1), ON) == ()
    assert cautions(method, NOISE, ON) == cautions(method, None, OFF) == cautions(Method(), None, OFF) == ()


def test_a_robust_rule_that_believes_sizes_nobody_guards_is_warned_of() -> None:
    for server in (TrimmedMean(weights="size"), chain(Clip(), TrimmedMean(weights="size"))):
        (told,) = cautions(Method(server=server), None, OFF)
        assert "TrimmedMean" in told and 'weights = "size"' in told
        assert cautions(Method(server=server), None, ON) == ()
        assert cautions(Method(server=server), None, Admission(guard="off", size_cap=2.0)) == ()
    assert cautions(Method(server=WeightedMean("size")), None, OFF) == ()


def test_the_log_of_a_run_says_it_once(tmp_path: Path) -> None:
    run(federation(), model="linear", attack=NOISE, out=tmp_path / "r", rounds=2, device="cpu")
    assert (tmp_path / "r" / "log.txt").read_text().count("nothing in fedavg defends against LabelNoise") == 1
