"""Memory that a process lets go is kept for its next operation, in processes that are ours.

On Linux, glibc asks the system for every tensor of some megabytes and gives it back when it is freed. The system fills
each page with zeros when it is first touched, so that a convolution, a copy or a sum that takes milliseconds waits as
long again for the place to put it: with large models or batches, for half of a run's CPU time.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # as malloc.h numbers them
_THEIRS = ("MALLOC_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """From now on nothing is given back but by `give_back`; False where there is no glibc, or the user decided.

    It is the whole process's, so only processes that do nothing else ask for it: the command line's and its workers.
    """
    decided = any(name.startswith(_THEIRS) for name in os.environ)
    libc = None if decided else _libc()
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
