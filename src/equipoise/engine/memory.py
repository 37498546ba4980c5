"""Memory that a process lets go is kept for its next operation, in processes that are ours.

On Linux, glibc asks the system for every tensor of some megabytes and gives it back when it is freed. The system fills
each page with zeros when it is first touched, so that a convolution, a copy or a sum that takes milliseconds waits as
long again for the place to put it: with large models or batches, for up to half of a run's CPU time.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # as malloc.h numbers them
OF_THE_USER = ("MALLOC_", "GLIBC_TUNABLES")
"""How the variables begin by which a user tells glibc what to do."""


def may_keep() -> bool:
    """Whether there is a glibc to tell, and the user has not told it already."""
    return _libc() is not None and not any(name.startswith(OF_THE_USER) for name in os.environ)


def keep_memory() -> bool:
    """From now on nothing is given back but by `give_back`; False where it may not be kept.

    It is the whole process's, so only processes that do nothing else ask for it: the command line's and its workers.
    """
    libc = _libc() if may_keep() else None
    return libc is not None and bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, -1))


def give_back() -> None:
    """What is free goes back to the system: between two runs in one process."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def _libc() -> Any | None:
    """The C library of this process, if it is one that can be told."""
    try:
        found = ctypes.CDLL(None)
        return found if found.mallopt and found.malloc_trim else None
    except (AttributeError, OSError, TypeError):  # another system's
        return None
