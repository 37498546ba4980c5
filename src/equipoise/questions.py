"""Small numbers to and from a GPU. Every question waits for whatever is still to be done there: ask once for all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def answer(*asked: Tensor) -> list[npt.NDArray[np.float64]]:
    """These in host memory, in float64 (whole numbers are exact up to 2^53): a GPU is asked once for all of them."""
    far = [t.flatten().double() for t in asked if _far(t)]
    told = np.split(torch.cat(far).cpu().numpy(), np.cumsum([len(t) for t in far])[:-1]) if far else []
    there = iter(told)
    return [next(there).reshape(t.shape) if _far(t) else t.to(torch.float64, copy=True).numpy() for t in asked]


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


def _far(t: Tensor) -> bool:
    return t.device.type != "cpu"
