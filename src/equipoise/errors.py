"""The one exception that a user is meant to see."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class EquipoiseError(Exception):
    """What is wrong, where, the value found; then a hint. The command line prints it without a traceback."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message + (f"\n  hint: {hint}" if hint else ""))
        self.message, self.hint = message, hint

    def __reduce__(self) -> tuple[type[EquipoiseError], tuple[str, str]]:
        """So that it comes back whole from another process."""
        return EquipoiseError, (self.message, self.hint)


def first_line(told: str) -> str:
    """What is wrong, without the details."""
    return told.partition("\n")[0]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}" if names else "none is known"


def require(ok: bool, what: str, value: object, hint: str) -> None:
    """The error for a setting out of its range, unless it is `ok`."""
    if not ok:
        raise EquipoiseError(f"{what} is {value!r}", hint)


def not_negative(value: float) -> bool:
    """Whether a number is finite and 0 or more, which NaN is not: the range of most strengths and widths."""
    return 0 <= value < math.inf


def positive(value: float) -> bool:
    """Whether a number is finite and above 0, which NaN is not: the range of most lengths and step sizes."""
    return 0 < value < math.inf
