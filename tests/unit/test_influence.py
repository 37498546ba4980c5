"""How much of what clients sent was used, from the log of a run."""

import numpy as np

from equipoise.audit.influence import influence, says


def a_round(drawn: list[int], **more: object) -> dict[str, object]:
    return {"drawn": drawn, "admitted": drawn, "quarantined": {}, **more}


def test_without_a_word_from_the_rule_everyone_has_an_equal_say() -> None:
    found = influence([a_round([0, 1, 2])], 4)
    assert found["influence"][:3].tolist() == [1, 1, 1] and np.isnan(found["influence"][3])
    assert found["filtered"][:3].tolist() == [0, 0, 0] == found["downweighted"][:3].tolist()


def test_weights_and_what_filters_left_multiply() -> None:
    info = a_round([2, 5], weights=[0.75, 0.25], **{"Clip.scale": [0.5, 1.0], "bound": 3.0})
    assert says(info).tolist() == [0.75, 0.5]


def test_the_chosen_one_has_all_and_the_others_were_kept_out() -> None:
    found = influence([a_round([0, 1, 2], weights=[0, 1, 0])] * 2, 3)
    assert found["influence"].tolist() == [0, 3, 0] and found["filtered"].tolist() == [1, 0, 1]


def test_little_is_less_than_half_of_an_equal_say() -> None:
    found = influence([a_round([0, 1], weights=[0.8, 0.2]), a_round([0, 1], weights=[0.5, 0.5])], 2)
    assert found["downweighted"].tolist() == [0, 0.5] and found["filtered"].tolist() == [0, 0]


def test_the_quarantined_and_the_removed_say_nothing_and_the_silent_are_not_blamed_on_anyone() -> None:
    first = {"drawn": [0, 1, 2, 3], "admitted": [0, 1], "quarantined": {"2": "norm"}, "excluded": [1]}
    found = influence([first, a_round([0])], 4)
    assert found["filtered"][:3].tolist() == [0, 0.5, 1] and np.isnan(found["filtered"][3])
