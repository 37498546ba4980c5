"""What a report's cards say of methods: what ran, and not what the method's name alone would have run."""

import pytest

from equipoise.audit.cards import attack_card, method_card


def test_a_rule_put_into_a_method_is_on_its_card() -> None:
    plain = method_card("fedavg", {"name": "fedavg"})
    card = method_card("krum", {"name": "fedavg", "server": {"name": "multi-krum", "f": 1}, "filters": ["clip"]})
    assert card.equation.startswith(plain.equation)
    assert "server rule in place of its own, multi-krum:\n" in card.equation
    assert "filter in front of the rule, clip:\n" in card.equation
    assert "multi-krum: " in card.departures and plain.departures in card.departures
    assert "Blanchard" in card.reference and plain.reference in card.reference
    assert card.parameters == {"server": {"name": "multi-krum", "f": 1}, "filters": ["clip"]}


def test_a_base_is_on_the_card_of_what_comes_after_it() -> None:
    assert "rounds, fedprox:\n" in method_card("tuned", {"name": "finetuning", "base": "fedprox"}).equation


@pytest.mark.parametrize(
    ("table", "robust"),
    [
        ({"name": "fedavg"}, False),
        ({"name": "fedavg", "server": "krum"}, True),
        ({"name": "fedavg", "server": {"name": "krum"}, "filters": ["nnm"]}, True),
        ({"name": "rffl"}, False),
        ({"name": "rffl", "clip": 0.5}, True),
    ],
)
def test_a_method_tolerates_attackers_if_its_rule_does(table: dict[str, object], robust: bool) -> None:
    assert method_card("it", table).robust == robust


def test_attacks_and_none() -> None:
    assert attack_card("none", None).summary == "Nobody attacks."
    flip = attack_card("flip", {"name": "sign-flip", "fraction": 0.2})
    assert flip.equation and flip.parameters == {"fraction": 0.2} and not flip.robust
