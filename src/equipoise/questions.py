"""Small numbers to and from a GPU. Every question waits for whatever is still to be done there: ask once for all."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Of = TypeVar("Of")
Floats = npt.NDArray[np.float64]


_PLAIN = {torch.float64: np.float64, torch.float32: np.float32, torch.int64: np.int64, torch.bool: np.bool_}
"""Numbers that numpy reads as they come; others are turned into float64 on the way."""


def answer(*asked: Tensor) -> list[Floats]:
    """These in host memory, in float64 (whole numbers are exact up to 2^53): a GPU is asked once for all of them."""
    return ask(*asked)()


def ask(*asked: Tensor) -> Callable[[], list[Floats]]:
    """Asks now; to call what is given back waits for the answer, and for nothing that a GPU is told to do by then.

    What it has is put together byte by byte: to make numbers of one type of them first takes a launch for each.
    """
    here = [None if _far(t) else t.to(torch.float64, copy=True).numpy() for t in asked]
    far = [t if t.dtype in _PLAIN else t.double() for t in asked if _far(t)]
    if not far:
        return lambda: [t for t in here if t is not None]
    whole = torch.cat([t.flatten().view(torch.uint8) for t in far]).to("cpu", non_blocking=True)
    wait = _mark()

    def told() -> list[Floats]:
        wait()
        pieces = np.split(whole.numpy(), np.cumsum([t.numel() * t.itemsize for t in far])[:-1])
        parts = zip(pieces, far, strict=True)
        found = iter([piece.view(_PLAIN[t.dtype]).astype(np.float64).reshape(t.shape) for piece, t in parts])
        return [next(found) if t is None else t for t in here]

    return told


def _mark() -> Callable[[], object]:
    """Waits for all that a GPU has been told to do up to here; where none has been woken there is nothing."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize


@dataclass(frozen=True)
class Later(Generic[Of]):
    """Something as it is if nothing is out of the ordinary, and what a device has yet to be asked about it."""

    likely: Of
    asked: tuple[Tensor, ...] = ()
    settle: Callable[..., Of] | None = None
    """What it is, given the answers; None: as it seems."""

    def settled(self, *answers: Floats) -> Of:
        return self.likely if self.settle is None else self.settle(*answers)

    def now(self) -> Of:
        """With a question of its own."""
        return self.settled(*answer(*self.asked))


def once(work: Callable[..., tuple[Tensor, ...]], kind: Hashable, *given: Tensor) -> tuple[Tensor, ...]:
    """Work on tensors that is the same round after round and asks a device nothing: `work(kind, *given)` -> tensors.

    So it is done where nobody prepares it. On a GPU an engine may have it done in one launch, made for this kind and
    these shapes: all else that its numbers depend on has to be in `kind`, and `work` the same object each time, such as
    a rule's method.
    """
    return work(kind, *given)


def sent(small: Tensor, to: Tensor) -> Tensor:
    """From host memory to where `to` is, without waiting for what a GPU still has to do."""
    return small.to(to.device, non_blocking=True)


def moved(here: Tensor, device: torch.device) -> Tensor:
    """From host memory to a device, with a note of where it came from: `near` need not ask for it there."""
    there = here.to(device, non_blocking=True)
    if there is not here:
        there.came_from = here  # type: ignore[attr-defined]
    return there


def part(t: Tensor, where: slice) -> Tensor:
    """t[where], with the note, if there is one."""
    some = t[where]
    if hasattr(t, "came_from"):
        some.came_from = t.came_from[where]  # type: ignore[attr-defined]
    return some


def near(t: Tensor) -> Tensor:
    """In host memory; a GPU is asked only for what did not come from here."""
    found: Tensor = getattr(t, "came_from", None) if _far(t) else t  # type: ignore[assignment]
    return t.cpu() if found is None else found


def ascend(ids: Tensor) -> bool:
    """Whether these ids ascend, each above the one before."""
    here = near(ids).numpy()
    return bool((here[1:] > here[:-1]).all())


def _far(t: Tensor) -> bool:
    return t.device.type != "cpu"
