"""The server's whole run, whoever carries its messages: rounds, evaluations, checkpoints and the run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise import tracking
from equipoise.engine.deployment import Deployment
from equipoise.engine.post import Post
from equipoise.experiment import Experiment, _Course, environment
from equipoise.results import Result, RunFolder, load_result


def carry_out(experiment: Experiment, post: Post, out: Path) -> Result:
    """Run it to the end, from the last finished round in `out` if there is one; a finished run is only read."""
    often = replace(experiment, run=replace(experiment.run, checkpoint_every=1))  # a crash costs a round, not ten
    deployment: Any = Deployment(experiment.scenario, experiment.method, experiment.run, post)
    with RunFolder.create(out, experiment.config.encode(), environment(deployment)) as folder:
        if folder.finished:
            return load_result(out)
        with tracking.Tracked(None, "", {}) as tracked:
            return _Course(often, deployment, folder, None, tracked).finish()
