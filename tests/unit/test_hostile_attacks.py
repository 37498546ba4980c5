"""Messages that no rule should ever meet: NaN, infinity, tensors of another form."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise import config
from equipoise.attacks.send_nan import SendNaN
from equipoise.attacks.wrong_shape import WrongShape
from equipoise.engine.admission import decode
from equipoise.engine.settings import Run
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.streams import Stream
from equipoise.threat import Attack, Forgery
from tests.small import simulation

NAN: list[Any] = [SendNaN(clients=(1, 3), value=v, everywhere=e) for v in ("nan", "inf", "-inf") for e in (True, False)]  # type: ignore[arg-type]
SHAPES: list[Any] = [WrongShape(clients=(1, 3), form=f) for f in ("short", "long", "axis", "integers")]  # type: ignore[arg-type]


def named(attack: Any) -> str:
    return f"{type(attack).__name__}-{getattr(attack, 'form', '')}{getattr(attack, 'value', '')}" + (
        "-once" if not getattr(attack, "everywhere", True) else ""
    )


def forgery(own: Tensor) -> Forgery:
    return Forgery(torch.arange(len(own)), own, own[:0], 0, 0.1, Stream(0), lambda x: x[0])


@pytest.mark.parametrize("attack", NAN, ids=named)
def test_what_is_sent_is_not_finite_in_every_place_or_in_one(attack: SendNaN) -> None:
    own = torch.randn((6, 40), generator=Stream(0).torch())
    sent = attack.corrupt(forgery(own))
    bad = ~torch.isfinite(sent)
    assert bad.sum(1).tolist() == [40 if attack.everywhere else 1] * 6
    assert torch.equal(sent[~bad], own[~bad])
    assert torch.isnan(sent[bad]).all() if attack.value == "nan" else bool((sent[bad] == float(attack.value)).all())
    if not attack.everywhere:
        assert len(set(bad.int().argmax(1).tolist())) > 1


@pytest.mark.parametrize("attack", [*NAN, *SHAPES], ids=named)
def test_whoever_sends_it_is_turned_away_and_the_round_goes_on_as_without_them(attack: Attack) -> None:
    run = Run(executor="loop")
    attacked, absent = simulation(run=run, attack=attack), simulation(run=run)
    absent.server.excluded[[1, 3]] = True
    reason = {"SendNaN": "not-finite", "WrongShape": "shape"}[type(attack).__name__]
    reason = "dtype" if getattr(attack, "form", "") == "integers" else reason
    for _ in range(2):
        record = attacked.step()
        absent.step()
        assert record.quarantined == {1: reason, 3: reason} and record.skipped == ""
    assert torch.equal(attacked.server.w, absent.server.w)


@pytest.mark.parametrize("attack", [*NAN, *SHAPES], ids=named)
def test_where_everyone_sends_it_the_model_stays(attack: Any) -> None:
    everyone = type(attack)(**{**vars(attack), "clients": (0, 1, 2, 3)})
    sim = simulation(attack=everyone)
    before = sim.server.w.clone()
    record = sim.step()
    assert len(record.quarantined) == 4 and record.skipped
    assert torch.equal(sim.server.w, before)


@pytest.mark.parametrize("attack", SHAPES, ids=named)
def test_a_deployed_client_that_sends_it_as_a_message_is_refused_for_the_same_reason(attack: WrongShape) -> None:
    layout = Layout.of({"w": torch.zeros(2, 3), "b": torch.zeros(3)})
    parts = {
        "w": torch.randn((2, 3), generator=Stream(0).torch()),
        "b": torch.randn((1, 3), generator=Stream(1).torch()),
    }
    sent = {n: attack.corrupt(forgery(t)).numpy() for n, t in parts.items()}
    sent["b"] = sent["b"][0]
    assert decode(sent, layout) == (None, "dtype" if attack.form == "integers" else "shape")
    whole = {n: np.asarray(t if n == "w" else t[0]) for n, t in parts.items()}
    row, reason = decode(whole, layout)
    assert reason == "" and row is not None and len(row) == 9


@pytest.mark.parametrize("attack", NAN, ids=named)
def test_a_message_with_nan_has_the_right_form_and_is_left_to_the_second_stage(attack: SendNaN) -> None:
    layout = Layout.of({"w": torch.zeros(2, 3)})
    row, reason = decode({"w": attack.corrupt(forgery(torch.ones(2, 3))).numpy()}, layout)
    assert reason == "" and row is not None and not np.isfinite(row).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SendNaN(count=1, value="none"), "send-nan: value is 'none'"),  # type: ignore[arg-type]
        (lambda: WrongShape(count=1, form="round"), "wrong-shape: form is 'round'"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(EquipoiseError, match=said):
        make()


def test_both_can_be_named_in_a_config() -> None:
    start = '[data]\ndataset = "digits"\nclients = 5\n[model]\nkind = "linear"\n[method]\nname = "fedavg"\n[attack]\n'
    for text, attack in {
        'name = "send-nan"\ncount = 1\nvalue = "inf"\neverywhere = false': SendNaN(
            count=1, value="inf", everywhere=False
        ),
        'name = "wrong-shape"\ncount = 1\nform = "axis"': WrongShape(count=1, form="axis"),
    }.items():
        assert config.load(start + text).make_attack() == attack
