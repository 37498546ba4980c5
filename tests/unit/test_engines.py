"""Where jobs are done: what they leave on a GPU does not stay."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch

from equipoise.audit.engines import Local


class Part:
    """Refers to itself, as a run's parts do to each other."""

    def __init__(self) -> None:
        self.other = self


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_job_left_is_cleared_away_before_the_next(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    left: list[weakref.ref[Part]] = []

    def job() -> None:
        assert all(ref() is None for ref in left)
        part = Part()
        left.append(weakref.ref(part))
        if fails:
            raise ValueError("while it still has it")

    gc.disable()
    try:
        for _, outcome in Local().ended({"first": job, "second": job, "third": job}, ()):
            with contextlib.suppress(ValueError):
                outcome()
    finally:
        gc.enable()
    assert len(left) == 3
