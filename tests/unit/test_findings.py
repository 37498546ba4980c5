"""What is said of an audit: the right winner, the right doubts, and never more than the numbers hold."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.audit import evidence
from equipoise.audit.findings import attackers
from equipoise.results import Table
from tests.audits import Effect, make_audit

LEVELS = Effect(spread=0.5, best=-0.15, worst=-0.1)
LIFTS = Effect(spread=0.5, worst=0.05)


def levelled(effect: Effect, seeds: int = 6, **given: Any) -> tuple[str, str]:
    data = make_audit(("fedavg", "ditto"), ("none",), seeds, effect={"ditto": effect}, luck=0.002, **given)
    table = evidence.levelling_down(data)
    return str(table["verdict"][0]), str(table["sentence"][0])


def test_a_spread_that_shrank_at_the_top_is_levelling_down() -> None:
    verdict, sentence = levelled(LEVELS)
    assert verdict == "levelling down" and "levelling down: the best-served tenth of them lost" in sentence


def test_a_spread_that_shrank_from_below_is_not() -> None:
    verdict, sentence = levelled(LIFTS)
    assert verdict == "lifts the worst-off" and "the worst-served tenth gained" in sentence


def test_a_spread_that_did_not_shrink_is_not() -> None:
    assert levelled(Effect(mean=-0.1))[0] == "no smaller spread"
    assert levelled(Effect(spread=1.5))[0] == "no smaller spread"


def test_a_gain_of_the_worst_off_within_noise_does_not_count() -> None:
    data = make_audit(("fedavg", "ditto"), ("none",), 5, effect={"ditto": Effect(spread=0.5, best=-0.1)}, key=3)
    table = evidence.levelling_down(data)
    row = evidence.tests(data, measures=["worst_10"])
    assert row["low"][0] < 0 < row["difference"][0]
    assert table["verdict"][0] == "levelling down" and "(within noise)" in table["sentence"][0]


@pytest.mark.parametrize("seeds", [1, 3])
def test_few_seeds_give_a_perhaps(seeds: int) -> None:
    verdict, sentence = levelled(LEVELS, seeds)
    assert verdict == "perhaps levelling down" and "too few seeds to tell" in sentence


def test_a_smaller_spread_within_noise_is_called_neither_smaller_nor_not() -> None:
    data = make_audit(
        ("fedavg", "ditto"), ("none",), 5, effect={"ditto": Effect(spread=0.93)}, luck=0.002, noise=0.04, key=3
    )
    row, table = evidence.tests(data, measures=["accuracy_std"]), evidence.levelling_down(data)
    assert row["difference"][0] < 0 and row["p_holm"][0] > 0.05
    assert table["verdict"][0] == "within noise" and "is not clear" in table["sentence"][0]


def test_levelling_down_counts_how_many_methods_are_compared() -> None:
    """What one comparison would call significant, eleven do not."""
    names = ("fedavg", *(f"m{i}" for i in range(11)))
    found = []
    for key in range(8):
        data = make_audit(names, ("none",), 5, effect={"m0": Effect(spread=0.85)}, noise=0.03, key=key)
        row = evidence.tests(data, measures=["accuracy_std"]).filter(method="m0")
        verdict = evidence.levelling_down(data).filter(method="m0")["verdict"][0]
        if row["p"][0] < 0.05 < row["p_holm"][0] and row["difference"][0] < 0:
            found.append(verdict)
    assert found and set(found) == {"within noise"}


def test_nothing_in_common_is_not_measured() -> None:
    assert levelled(LEVELS, 1, failed=[("fedavg", "none", 0)])[0] == "not measured"


# ------------------------------------------------------------------------------------------------- headline

WINNERS: dict[str, Effect | float] = {"ditto": 0.08, "rffl": Effect(spread=0.4, harm=0.1)}


def test_a_headline_names_the_winners_and_says_that_it_is_real() -> None:
    accuracy, evenness, attack = evidence.headline(make_audit(seeds=6, effect=WINNERS))
    assert accuracy.startswith("Most accurate without an attack: ditto.") and "Chance hardly explains" in accuracy
    assert evenness.startswith("Most even without an attack: rffl.") and "Chance hardly explains" in evenness
    assert attack.startswith("Under sign_flip (20% of the clients malicious), rffl keeps the most")
    assert "at least 90% of what they had and 75% of the best accuracy without an attack: rffl." in attack


def survivors(effect: dict[str, Effect | float]) -> str:
    attack = evidence.headline(make_audit(seeds=6, effect=effect))[2]
    return attack.partition("accuracy without an attack: ")[2].removesuffix(".")


def test_a_method_that_is_useless_everywhere_does_not_survive() -> None:
    useless, good = Effect(mean=-0.7, harm=0.0), Effect(harm=0.1)
    assert survivors({"ditto": useless, "rffl": good}) == "rffl"
    assert survivors({"ditto": useless, "rffl": useless}) == "none"


def test_a_method_survives_by_both_of_the_bounds() -> None:
    # The best has about 80% without an attack, of which 75% are 60%; an attack costs 25 points times harm.
    assert survivors({"ditto": Effect(mean=-0.15, harm=0.0)}) == "ditto"
    assert survivors({"ditto": Effect(mean=-0.25, harm=0.0)}) == "none"
    assert survivors({"ditto": Effect(harm=0.5)}) == "none"


def test_few_seeds_are_called_too_few() -> None:
    for sentence in evidence.headline(make_audit(seeds=3, effect=WINNERS)):
        assert "too few seeds to tell (3 repeated runs; it takes 5)" in sentence and "is real (" not in sentence


def test_no_significant_difference_is_said_in_words() -> None:
    sentences = evidence.headline(make_audit(("fedavg", "ditto"), ("none",), seeds=5))
    assert all("no significant difference" in s for s in sentences)


def test_the_numbers_of_a_headline_are_those_of_the_cells() -> None:
    data = make_audit(seeds=6, effect=WINNERS)
    for method in ("ditto", "fedavg"):
        mean = data.cells.filter(method=method, attack="none")["accuracy_mean"].mean()
        assert f"{mean:.1%}" in evidence.headline(data)[0]


def test_a_baseline_that_wins_is_compared_with_the_second() -> None:
    accuracy = evidence.headline(make_audit(seeds=5, effect={"ditto": -0.05, "rffl": -0.2}))[0]
    assert (
        accuracy.startswith("Most accurate without an attack: fedavg.")
        and "with ditto. Chance hardly explains the difference" in accuracy
    )


def test_evenness_that_costs_accuracy_is_said_to() -> None:
    flat = Effect(mean=-0.6, spread=0.0)
    evenness = evidence.headline(make_audit(seeds=6, effect={"ditto": flat}))[1]
    assert "Most even without an attack: ditto" in evenness
    assert "It pays with accuracy" in evenness and "It levels down" in evenness


def test_one_seed_is_not_called_levelling_down() -> None:
    flat = Effect(mean=-0.3, spread=0.1, best=-0.1)
    evenness = evidence.headline(make_audit(seeds=1, effect={"ditto": flat}))[1]
    assert "too few seeds to tell" in evenness and "It levels down" not in evenness


def test_what_honest_clients_had_is_what_the_same_clients_had() -> None:
    """Attackers are the last fifth; without an attack they are served badly, which is no gain of the others."""
    data = make_audit(("fedavg", "ditto"), seeds=2, damage=0.0, luck=0.0, noise=0.0)
    people = {name: data.clients[name] for name in data.clients}
    people["accuracy"] = np.where(people["client"] >= 16, 0.1, 0.9)
    sentence = evidence.headline(replace(data, clients=Table(people)))[2]
    assert "where the same clients had 90.0%" in sentence


def test_failed_runs_are_mentioned() -> None:
    data = make_audit(seeds=2, failed=[("ditto", "none", 0), ("ditto", "sign_flip", 1), ("rffl", "none", 0)])
    assert evidence.headline(data)[-1] == "3 of 12 runs failed and are left out: ditto (2), rffl (1)."


def test_one_method_has_nothing_to_be_compared_with() -> None:
    sentences = evidence.headline(make_audit(("fedavg",), ("none",), seeds=5))
    assert len(sentences) == 1 and "nothing to compare" in sentences[0]


def test_a_failed_baseline_leaves_no_comparison() -> None:
    data = make_audit(("fedavg", "ditto"), ("none",), 1, failed=[("fedavg", "none", 0)])
    assert "Only ditto has a result" in evidence.headline(data)[0]


def test_nobody_is_called_fair() -> None:
    for seeds in (1, 6):
        data = make_audit(seeds=seeds, effect=WINNERS)
        words = " ".join([*evidence.headline(data), *evidence.levelling_down(data)["sentence"]])
        assert "fair" not in words.lower()


def test_the_share_of_attackers_is_counted_or_else_read() -> None:
    data = make_audit(share=0.3, clients=10)
    assert attackers(data, "sign_flip") == pytest.approx(0.3) and attackers(data, "none") == 0.0
