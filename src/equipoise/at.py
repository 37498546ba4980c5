"""Where a client rule stands: what it can see during a local step, and what it can ask the engine to do there.

The engine implements `At` twice, for one client after the other and for the whole cohort as rows; a rule cannot tell
which one it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """How much a client trains in one round: `epochs` over its data, or `steps` batches; batch None is all of it."""

    epochs: int = 1
    steps: int | None = None
    batch: int | None = 10


@dataclass(frozen=True)
class Stop:
    """When training alone ends: the loss changed by no more than `tolerance` (relative) over `window` epochs, or `cap`
    epochs are done. The model of the lowest loss at a window's end is kept."""

    tolerance: float = 1e-4
    window: int = 100
    cap: int = 2000


class Forward(NamedTuple):
    """What a custom loss may look at: the batch's outputs [K, B, ...] and its per-sample losses [K, B]."""

    outputs: Tensor
    losses: Tensor
    features: tuple[Tensor, ...] = ()
    """[K, B, ...]: what the model's first layers put out, as many as the rule's `features` asks for."""


CustomLoss = Callable[[Forward], Tensor]


class At(Protocol):
    """A client rule's view: its batch, what the server sent, and how to evaluate models there. Rows are clients."""

    @property
    def x(self) -> Tensor:
        """[K, B, ...]: the inputs of this step's batch; also y, mask (True: a real sample) and index (its number)."""

    @property
    def y(self) -> Tensor: ...

    @property
    def mask(self) -> Tensor: ...

    @property
    def index(self) -> Tensor: ...

    @property
    def received(self) -> Tensor:
        """[K, d]: the model that came from the server this round."""

    @property
    def message(self) -> Mapping[str, Tensor]:
        """[K] each: what the server rule's `plan` sent along."""

    @property
    def lr(self) -> float: ...

    @property
    def round(self) -> int: ...

    def grad(self, rows: Tensor, loss: CustomLoss | None = None, batch: int = 0) -> Tensor:
        """Gradient of the rule's objective (or of a custom loss) at `rows`, on one of this step's batches.

        `rows` may be C models for each client, [K, C, d]; a custom loss is then asked about all K * C of them.
        """

    def loss(self, rows: Tensor, batch: int = 0) -> Tensor:
        """[K]: the rule's objective at `rows`, on one of this step's batches."""

    def outputs(self, rows: Tensor, batch: int = 0) -> Tensor:
        """[K, B, ...]: what the models `rows` answer on one of this step's batches."""

    def features(self, rows: Tensor, batch: int = 0) -> tuple[Tensor, ...]:
        """[K, B, ...] each: what the first layers of the models `rows` put out on one of this step's batches."""

    def descend(self, rows: Tensor, grad: Tensor) -> Tensor:
        """`rows - lr * grad`, in one pass."""

    def risk(self, rows: Tensor, split: str = "train") -> Tensor:
        """[K]: the mean loss of `rows` over the whole of a split ("train", "validation"); 0 where it is empty.

        [K, C] of C models for each client, [K, C, d].
        """

    def size(self, split: str = "train") -> Tensor:
        """[K]: how many samples each client has in a split."""

    def fit_alone(self, stop: Stop) -> Tensor:
        """[K, d]: the model that each client reaches alone, from the run's initial model. Slow; for `prepare`."""
