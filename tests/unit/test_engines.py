"""Where jobs are done: what they leave on a GPU does not stay."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref

import pytest
import torch

from equipoise.audit.engines import Local, side_by_side


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
        for _, outcome in Local().ended({"first": job, "second": job, "third": job}):
            with contextlib.suppress(ValueError):
                outcome()
    finally:
        gc.enable()
    assert len(left) == 3


def test_a_gpu_is_not_given_as_many_runs_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert side_by_side() == 64
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert side_by_side() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert side_by_side() == 2
