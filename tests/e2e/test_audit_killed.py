"""An audit that is killed, workers and all, and started again ends in the same report, to the byte."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from equipoise.audit import audit, gather, load_plan, run_audit
from equipoise.report import write_report

TEXT = """
[audit]
methods = ["fedavg", { name = "eagle", window = 2, cap = 4 }]
attacks = ["none", { name = "sign-flip", fraction = 0.25, scale = 5.0 }]
seeds = [0, 1]
alone_epochs = 4
[data]
dataset = "digits"
clients = 8
partition = { kind = "dirichlet", alpha = 0.5, min_size = 20 }
validation = 0.1
[model]
kind = "linear"
[train]
rounds = 9
steps = 2
lr = 0.2
[run]
eval_every = 3
checkpoint_every = 2
"""


def killed(out: Path, workers: int, jobs: int, seconds: float) -> int:
    """Start the audit in a process group of its own and kill the group that long after so many jobs; how it ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.write(write, b".")  # on a busy machine there would be no group to kill yet
            run_audit(load_plan(TEXT), out, workers=workers, report=lambda step: os.write(write, b".") and None)
        finally:
            os._exit(0)
    os.close(write)
    for _ in range(1 + jobs):
        assert os.read(read, 1) == b"."
    time.sleep(seconds)
    os.killpg(pid, signal.SIGKILL)
    os.close(read)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs process groups")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])  # starting workers is slow
def test_killed_at_random_moments_and_started_again_it_writes_the_same_report(workers: int, tmp_path: Path) -> None:
    rng, out = random.Random(7), tmp_path / "killed"
    for jobs in (0, 1, 3):  # jobs that were done before count, so each start gets further
        assert killed(out, workers, jobs, rng.uniform(0.0, 0.06)) == -signal.SIGKILL
    assert len(list(out.glob("cells/*/checksums.json"))) < len(load_plan(TEXT).cells)
    again = gather(load_plan(TEXT), out, run_audit(load_plan(TEXT), out))
    whole = audit(TEXT, tmp_path / "whole")
    assert set(whole.cells["status"]) == {"done"}
    pages = [write_report(d.without_times(), tmp_path / f"{i}.html").read_bytes() for i, d in enumerate((again, whole))]
    assert pages[0] == pages[1]
