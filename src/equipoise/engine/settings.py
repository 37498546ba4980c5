"""The numbers that make a run: how clients train, who takes part, what is admitted, where it runs.

These are plain dataclasses so that the engine needs nothing else; the config reader validates against the same classes,
so a config section and a class here are one thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from equipoise.errors import EquipoiseError, positive, require

_STRICT = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class Train:
    """Local training. `steps`, if given, take the place of `epochs`; `batch = 0` is the full batch."""

    rounds: int = 50
    """How many rounds there are."""
    epochs: int = 1
    """How often a client goes through its training samples in a round."""
    steps: int | None = None
    """Local steps in a round, in place of epochs."""
    batch: int = 10
    """How many samples a local step sees."""
    lr: float = 0.05
    """The step size of local training."""
    lr_decay: float = 1.0
    """The step size of round t is lr * lr_decay^t."""
    loss: Literal["auto", "cross-entropy", "squared", "hinge"] = "auto"
    """ "auto" is cross-entropy where there are classes, and squared where there are none."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        require(self.rounds >= 0, "train.rounds", self.rounds, "0 or more")
        require(self.epochs >= 1, "train.epochs", self.epochs, "1 or more")
        require(self.steps is None or self.steps >= 1, "train.steps", self.steps, "1 or more, or leave it out")
        one = self.steps is None or self.epochs == 1  # which is what a config says that was written with all defaults
        require(one, f"train.steps with epochs = {self.epochs}", self.steps, "leave out one of them")
        require(self.batch >= 0, "train.batch", self.batch, "1 or more; 0 is the full batch")
        require(positive(self.lr), "train.lr", self.lr, "a step size above 0")
        require(0 < self.lr_decay <= 1, "train.lr_decay", self.lr_decay, "above 0, at most 1 (no decay)")


@dataclass(frozen=True)
class Participation:
    """Who takes part in a round. Nothing given: everyone, every round."""

    per_round: int | None = None
    """How many clients are drawn in a round."""
    fraction: float | None = None
    """The share of the clients that is drawn in a round, in place of per_round."""
    sampling: Literal["uniform", "size"] = "uniform"
    """Without replacement; "size" draws in proportion to training size."""
    dropout: float = 0.0
    """The chance that a drawn client never answers."""
    trace: str | None = None
    """A CSV file with columns client,from,to: a client can be drawn in rounds from..to (inclusive), and no others."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        both = self.per_round is not None and self.fraction is not None
        require(not both, "participation", (self.per_round, self.fraction), "give per_round or fraction, not both")
        require(self.per_round is None or self.per_round >= 1, "participation.per_round", self.per_round, "1 or more")
        ok = self.fraction is None or 0 < self.fraction <= 1
        require(ok, "participation.fraction", self.fraction, "above 0, at most 1")
        require(0 <= self.dropout < 1, "participation.dropout", self.dropout, "from 0 up to (not including) 1")


@dataclass(frozen=True)
class Admission:
    """What an update must pass before any server rule sees it. Finiteness and shape are always checked."""

    norm_cap: float | None = None
    """Quarantine an update whose L2 norm is more than this many times the cohort's median norm."""
    size_cap: float | None = None
    """Lower a self-reported size that is more than this many times the cohort's median size to that cap."""
    guard: Literal["redescend", "winsorise", "rank", "off"] = "redescend"
    """Keeps reported losses, signals and sizes within what the cohort makes believable, see `engine.guard`."""
    guard_width: float = 3.0
    """How many spreads from the median a report may lie, and how many times the median a size may be."""
    quorum: int = 1
    """With fewer admitted updates than this, the model stays as it is."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        require(self.norm_cap is None or self.norm_cap > 0, "admission.norm_cap", self.norm_cap, "above 0")
        require(self.size_cap is None or self.size_cap >= 1, "admission.size_cap", self.size_cap, "1 or more")
        require(self.guard_width >= 1, "admission.guard_width", self.guard_width, "1 or more")
        require(self.quorum >= 1, "admission.quorum", self.quorum, "1 or more")

    def check(self, asked: int) -> None:
        """Complain about a quorum that no round can reach, of so many clients as it asks for."""
        if self.quorum > asked:
            told = f"admission.quorum is {self.quorum}, but a round asks for {asked} clients: all would be skipped"
            raise EquipoiseError(told, "lower it, or ask for more clients (participation)")


@dataclass(frozen=True)
class Run:
    """Where and how a run is carried out. On one machine `seed`, `dtype` and `precision` change its numbers, `executor`
    and `replay` their last digits."""

    seed: int = 0
    """What every draw follows from: the split, the initial model, cohorts, batches, the attack."""
    eval_every: int = 10
    """Evaluate every client after this many rounds, and always after the last; 0 evaluates only after the last."""
    splits: Literal["all", "validation"] = "all"
    """Which splits are evaluated; "validation" leaves the test split untouched, for choosing hyper-parameters."""
    device: str = "auto"
    """ "auto" (a CUDA device where there is one), "cpu", "cuda" or "cuda:1"."""
    executor: Literal["auto", "loop", "vmap"] = "auto"
    """ "vmap" trains clients as rows of one tensor, "loop" one after the other; "auto" chooses."""
    replay: Literal["auto", "on", "off"] = "auto"
    """Whether local steps are recorded once and played back (`engine.replay`), which differs in the last digits.

    "auto": if the largest client would take 300 steps or more in the whole run, drawn in every round. What clients
    train alone (EAGLE) is played back on a GPU unless this is "off".
    """
    workers: int = 1
    """Threads of the loop executor; results do not depend on it."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of models, and of everything that is computed with them."""
    precision: Literal["full", "tf32", "bf16"] = "full"
    """How exactly local training multiplies (`engine.precision`): "tf32", for GPUs, keeps about 3 decimal digits of
    what is multiplied, "bf16" 2. Reported losses, server rules and evaluation are always in full."""
    # Not in the repr, which is the record of runs made from Python: runs that differ in this alone are the same run.
    personal: Literal["auto", "device", "host", "disk"] = field(default="auto", repr=False)
    """Where clients' lasting state is kept, such as models of their own (`engine.store`); results do not depend on it.

    "auto": in the device's memory while that has room, then in the machine's, then in a file in the temporary folder.
    """
    own_models: Literal["all", "honest"] = "all"
    """Whose own models are trained and kept, of "all" clients or of the "honest" ones; what is sent is the same.

    "honest": malicious clients' own models stay as they began, where what they send does not follow from them (Ditto,
    APFL, what is finetuned after the last round): less time and memory. Measures are of honest clients: none changes.
    """
    checkpoint_every: int = 10
    """Save a point to resume from after this many rounds; one that took over a second pauses for ten times as long."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**63, "run.seed", self.seed, "0 or more, below 2^63")
        require(_is_device(self.device), "run.device", self.device, 'use "auto", "cpu" or "cuda"')
        require(self.eval_every >= 0, "run.eval_every", self.eval_every, "0 or more")
        require(self.workers >= 1, "run.workers", self.workers, "1 or more")
        require(self.checkpoint_every >= 1, "run.checkpoint_every", self.checkpoint_every, "1 or more")
        single = self.precision == "full" or self.dtype == "float32"
        require(single, f"run.precision with dtype {self.dtype!r}", self.precision, 'use "full", or dtype = "float32"')
        alone = self.precision != "tf32" or self.workers == 1  # TF32 is switched on for a process, not for a thread
        require(alone, 'run.workers with precision "tf32"', self.workers, "use 1: a GPU is not shared between threads")


def _is_device(name: str) -> bool:
    """Whether torch knows the name; whether this machine has it is seen where the run is."""
    if name == "auto":
        return True
    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True
