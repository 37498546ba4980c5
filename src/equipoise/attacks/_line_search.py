"""How large a forged update should be: tried out, against what the server would do with it.

    s* = argmax_s  gain(s)      over `evaluations` values of s, from start / 100 to 100 start

Half of them lie on a coarse grid with equal ratios, `start` in its middle, so that the result is never worse than
`start`; the others between the two neighbours of the best so far. Gains often rise with s until a defence notices and
then drop to nothing, so a search that relied on one peak, or on slopes, would go astray.
"""

from collections.abc import Callable
from math import isfinite

from equipoise.errors import EquipoiseError

_REACH = 100.0  # how many times as small or as large as the start


def check_evaluations(where: str, evaluations: int) -> None:
    if evaluations < 3:
        raise EquipoiseError(f"{where}: evaluations is {evaluations}", "3 or more: each asks the server rule once")


def line_search(gain: Callable[[float], float], start: float, evaluations: int) -> float:
    """The s above 0 with the largest gain; the smallest of several. A gain that is not finite counts as the worst."""
    count = max(3, evaluations // 2 | 1)  # odd, for the start to be in the middle
    coarse = [start * _REACH ** (2 * i / (count - 1) - 1) for i in range(count)]
    coarse[count // 2] = start
    found = {s: _worth(gain(s)) for s in coarse}
    best = coarse.index(_best(found))
    low, high, rest = coarse[max(best - 1, 0)], coarse[min(best + 1, count - 1)], evaluations - count
    fine = [low * (high / low) ** ((i + 1) / (rest + 1)) for i in range(rest)]
    return _best(found | {s: _worth(gain(s)) for s in fine})


def _worth(gain: float) -> float:
    return gain if isfinite(gain) else float("-inf")


def _best(found: dict[float, float]) -> float:
    return max(sorted(found), key=lambda s: found[s])
