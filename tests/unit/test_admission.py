"""Admission: whatever a client sends, the round goes on as if it had not been there."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.core import Method
from equipoise.engine.admission import admit, all_finite, decode, glances, presume
from equipoise.engine.exchange import Replies
from equipoise.engine.settings import Admission, Participation, Run
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.threat import Attack, Claims, Forgery
from tests.small import simulation

LAYOUT = Layout.of({"w": torch.zeros(2, 3), "b": torch.zeros(3)})
WILD = st.floats(width=32, allow_nan=True, allow_infinity=True)


def replies(updates: list[list[float]], **more: object) -> Replies:
    rows = torch.tensor(updates)
    return Replies(torch.arange(len(rows)), rows, **{"sizes": torch.ones(len(rows)), **more})  # type: ignore[arg-type]


@given(st.lists(st.lists(WILD, min_size=3, max_size=3), min_size=1, max_size=6))
def test_only_finite_rows_pass_and_every_other_has_a_reason(rows: list[list[float]]) -> None:
    got = admit(replies(rows), Admission())
    finite = {k for k, r in enumerate(rows) if np.isfinite(r).all()}
    assert set(got.replies.ids.tolist()) == finite
    assert torch.equal(got.norms, torch.linalg.vector_norm(got.replies.updates, dim=1))
    assert got.quarantined == dict.fromkeys(set(range(len(rows))) - finite, "not-finite")


@given(
    st.lists(WILD, min_size=4, max_size=4),
    st.lists(WILD, min_size=4, max_size=4),
    st.lists(WILD, min_size=4, max_size=4),
)
def test_claims_must_be_finite_and_sizes_not_negative(
    sizes: list[float], losses: list[float], gap: list[float]
) -> None:
    got = admit(
        replies(
            [[1.0]] * 4, sizes=torch.tensor(sizes), losses=torch.tensor(losses), signals={"gap": torch.tensor(gap)}
        ),
        Admission(),
    )
    good = [k for k in range(4) if np.isfinite([sizes[k], losses[k], gap[k]]).all() and sizes[k] >= 0]
    assert got.replies.ids.tolist() == good
    assert set(got.quarantined.values()) <= {"size", "loss", "signal"}


def test_a_huge_update_is_too_large_for_its_cohort() -> None:
    got = admit(replies([[1.0, 0], [0, 1.1], [3e38, 3e38], [0.9, 0]]), Admission(norm_cap=10))
    assert got.quarantined == {2: "norm"}


def test_a_claimed_size_is_lowered_to_the_cap() -> None:
    got = admit(replies([[1.0]] * 3, sizes=torch.tensor([10, 20, 10**9])), Admission(size_cap=2))
    assert got.replies.sizes.tolist() == [10, 20, 40]
    assert got.capped == (2,)


def test_a_good_message_becomes_its_row() -> None:
    row, reason = decode({"b": np.arange(3.0), "w": np.ones((2, 3), dtype=np.float32)}, LAYOUT)
    assert reason == "" and row is not None
    assert row.tolist() == [1] * 6 + [0, 1, 2]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (None, "names"),
        ([], "names"),
        ({}, "names"),
        ({"w": np.ones((2, 3))}, "names"),
        ({"w": np.ones((2, 3)), "b": np.ones(3), "c": np.ones(3)}, "names"),
        ({"w": np.ones((3, 2)), "b": np.ones(3)}, "shape"),
        ({"w": np.ones(6), "b": np.ones(3)}, "shape"),
        ({"w": np.ones((2, 3), dtype=np.int64), "b": np.ones(3)}, "dtype"),
        ({"w": np.ones((2, 3), dtype=object), "b": np.ones(3)}, "dtype"),
        ({"w": [[1.0] * 3] * 2, "b": np.ones(3)}, "dtype"),
        ({"w": np.ones((2, 3), dtype=complex), "b": np.ones(3)}, "dtype"),
    ],
)
def test_a_malformed_message_is_refused_with_its_reason(message: object, reason: str) -> None:
    assert decode(message, LAYOUT) == (None, reason)


class _Bad(Attack):
    """Sends what `make` makes of the honest rows."""

    make = staticmethod(lambda own: own)

    def corrupt(self, seen: Forgery) -> torch.Tensor:
        return self.make(seen.own)


HOSTILE = {
    "nan": lambda own: own * torch.nan,
    "inf": lambda own: own / 0.0,
    "one nan": lambda own: own.index_fill(1, torch.tensor([0]), torch.nan),
    "shape": lambda own: own[:, :-1],
    "rank": lambda own: own[..., None],
    "integers": lambda own: own.long(),
    "nothing": lambda own: None,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_bad_client_leaves_the_bits_that_its_absence_leaves(what: str) -> None:
    run = Run(executor="loop")
    attack = type("Sends", (_Bad,), {"make": staticmethod(HOSTILE[what])})(clients=(1, 3))
    attacked, absent = simulation(run=run, attack=attack), simulation(run=run)
    absent.server.excluded[[1, 3]] = True
    for _ in range(3):
        record = attacked.step()
        absent.step()
        assert set(record.quarantined) == {1, 3}
    assert torch.equal(attacked.server.w, absent.server.w)


def test_below_the_quorum_the_model_stays() -> None:
    attack = type("Sends", (_Bad,), {"make": staticmethod(HOSTILE["nan"])})(clients=(0, 1))
    sim = simulation(attack=attack, admission=Admission(quorum=3))
    before = sim.server.w.clone()
    record = sim.step()
    assert "quorum 3" in record.skipped
    assert torch.equal(before, sim.server.w)


@pytest.mark.parametrize(("drawn", "asked"), [(Participation(), 4), (Participation(per_round=2), 2)])
def test_a_quorum_that_no_round_can_reach_is_refused_before_the_first(drawn: Participation, asked: int) -> None:
    simulation(participation=drawn, admission=Admission(quorum=asked))
    with pytest.raises(EquipoiseError, match=f"quorum is {asked + 1}, but a round asks for {asked} clients"):
        simulation(participation=drawn, admission=Admission(quorum=asked + 1))


def test_finite_updates_that_overflow_together_never_reach_the_model() -> None:
    attack = type("Sends", (_Bad,), {"make": staticmethod(lambda own: torch.full_like(own, 3e38))})(fraction=1.0)
    sim = simulation(Method(), attack=attack, run=Run())
    sim.server.w -= 3e38
    sim.server.w -= 0
    record = sim.step()
    assert record.skipped or bool(torch.isfinite(sim.server.w).all())
    assert bool(torch.isfinite(sim.server.w).all())


def test_a_lie_about_size_is_told_and_can_be_capped() -> None:
    class Boaster(Attack):
        def lie(self, claims: Claims, stream: object) -> Claims:
            return Claims(claims.sizes * 10**6, claims.losses, claims.signals)

    liar, as_told, at_most_the_median = Boaster(count=1), Admission(guard="off"), Admission(guard="off", size_cap=1)
    honest, fooled, capped = (
        simulation(attack=attack, admission=admission)
        for attack, admission in [(None, as_told), (liar, as_told), (liar, at_most_the_median)]
    )
    for sim in (honest, fooled, capped):
        sim.step()
    far = (fooled.server.w - honest.server.w).norm()
    assert float((capped.server.w - honest.server.w).norm()) < 0.9 * float(far)


def test_one_number_that_is_not_finite_is_found_and_a_sum_that_overflows_is_not_taken_for_one() -> None:
    large = torch.full((3, 4), 3e38)
    assert torch.isinf(large.sum())
    assert all_finite([large, torch.zeros(0), torch.arange(3)])
    for bad in (torch.nan, torch.inf, -torch.inf):
        spoiled = torch.ones(3, 4)
        spoiled[1, 2] = bad
        assert not all_finite([large, spoiled])
    assert all(bool(f) for f in glances([torch.ones(2)], torch.tensor(True)))
    assert not any(bool(f) for f in glances([torch.ones(2)], torch.tensor(False)))
    assert all_finite([])


def test_what_is_presumed_of_sound_rows_is_what_is_admitted_and_of_others_it_is_not() -> None:
    settings, rows = Admission(size_cap=2), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    sound = replies(rows, sizes=torch.tensor([10, 20, 10**9]))
    presumed = presume(sound, settings)
    assert presumed is not None and admit(sound, settings, presumed).replies is presumed.replies
    rows[1][0] = torch.nan
    spoiled = replies(rows, sizes=torch.tensor([10, 20, 10**9]))
    presumed = presume(spoiled, settings)
    got = admit(spoiled, settings, presumed)
    assert presumed is not None and got.replies is not presumed.replies
    assert got.ids == (0, 2) and got.quarantined == {1: "not-finite"} and got.capped == (2,)
