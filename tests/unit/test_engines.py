"""Where jobs are done: what they leave in memory does not stay."""

from __future__ import annotations

import gc
import weakref

import pytest

from equipoise.audit.engines import Local


class Part:
    """Refers to itself, as a run's parts do to each other."""

    def __init__(self) -> None:
        self.other = self


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_job_leaves_is_cleared_away_before_the_next(fails: bool) -> None:
    left: list[weakref.ref[Part]] = []

    def job() -> None:
        assert all(ref() is None for ref in left)
        left.append(weakref.ref(Part()))
        if fails:
            raise ValueError("as jobs do")

    gc.disable()
    try:
        for _, outcome in Local().ended({"first": job, "second": job}, ()):
            if fails:
                with pytest.raises(ValueError, match="as jobs do"):
                    outcome()
            else:
                outcome()
    finally:
        gc.enable()
    assert len(left) == 2 and left[1]() is None
