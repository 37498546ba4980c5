"""The server's whole run, whoever carries its messages: rounds, evaluations, checkpoints and the run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise import tracking
from equipoise.course import Course, Progress
from equipoise.engine.admission import REASONS
from equipoise.engine.deployment import Deployment
from equipoise.engine.messages import REFUSALS
from equipoise.engine.post import Post
from equipoise.engine.server import RoundRecord
from equipoise.experiment import Experiment
from equipoise.provenance import environment, recorded
from equipoise.results import Result, RunFolder, load_result


def carry_out(
    experiment: Experiment, post: Post, out: Path, progress: Callable[[Progress], None] | None = None
) -> Result:
    """Run it to the end, from the last finished round in `out` if there is one; a finished run is only read."""
    often = replace(experiment, run=replace(experiment.run, checkpoint_every=1))  # a crash costs a round, not ten
    deployment: Any = Deployment(experiment.scenario, experiment.method, experiment.run, post)
    with RunFolder.create(out, recorded(experiment, out), environment(deployment, experiment.own)) as folder:
        if folder.finished:
            return load_result(out)
        with tracking.Tracked(None, "", {}) as tracked:
            return FarCourse(often, deployment, folder, progress, tracked).finish()


class FarCourse(Course):
    """Rounds of one exchange each: how clients are served after a round comes with their answers to the next."""

    pause = 0  # clients know of their last round only, and nobody could go on from one before

    def __init__(self, experiment: Experiment, deployment: Any, folder: RunFolder, *more: Any) -> None:
        super().__init__(experiment, deployment, folder, *more)
        deployment.heard = self._heard
        if deployment.round:
            folder.log(f"goes on after round {deployment.round}")

    def _evaluate(self) -> None:
        far: Any = self.simulation
        over = far.round == self.experiment.scenario.train.rounds or self.stopped is not None
        if over or far.measured:
            super()._evaluate()
        else:
            far.evaluate_later()

    def _heard(self, record: RoundRecord, evaluated: int | None) -> None:
        for client, why in sorted(record.quarantined.items()):
            told = {**REASONS, **REFUSALS}.get(why, "")
            self.folder.log(f"round {record.round}: client {client} does not count ({why}): {told}")
        if record.skipped:
            self.folder.log(f"round {record.round}: the model stays as it was: {record.skipped}")
        if evaluated is not None:
            far: Any = self.simulation
            with far.looking_back(evaluated):
                super()._evaluate()
