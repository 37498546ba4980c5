"""Trade-offs: which methods are beaten in both of two measures, and by whom."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.audit.comparing import average, check_measures, left_out, numbers
from equipoise.audit.data import MEASURES, AuditData
from equipoise.results import Table
from equipoise.results.rows import table_of, typed

_COLUMNS = ("attack", "method", "x", "y", "front", "dominated", "by", "seeds", "note")


def beaten(points: NDArray[np.float64], high: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[M, M]: whether the row's point is dominated by the column's: as good in each of k measures, better in one.

    points [M, k]; high [k] says for which measures more is better. Equal points do not dominate each other, and NaN
    neither dominates nor is dominated. Differences below a millionth of a millionth are rounding.
    """
    scores = np.round(np.where(high, points, -points), 12)
    mine, other = scores[:, None], scores[None, :]
    return np.asarray((other >= mine).all(-1) & (other > mine).any(-1))


def fronts(data: AuditData, x: str = "accuracy_mean", y: str = "accuracy_std") -> Table:
    """A row per (attack, method): its means in the measures x and y, whether it is on the front, and who dominates it.

    A mean is over the seeds that have both numbers. A method without any is neither on the front nor dominated.
    """
    check_measures((x, y))
    high = np.array([MEASURES[x].better == "high", MEASURES[y].better == "high"])
    found, rows = numbers(data), []
    names = [card.name for card in data.methods]
    for attack in (card.name for card in data.attacks):
        both = [_both(found.get((name, attack, x), {}), found.get((name, attack, y), {})) for name in names]
        points = np.array([(px, py) for px, py, _ in both]).reshape(-1, 2)
        under = beaten(points, high)
        for i, (name, (px, py, seeds)) in enumerate(zip(names, both, strict=True)):
            by = [other for other, beats in zip(names, under[i], strict=True) if beats]
            row = (attack, name, px, py, seeds > 0 and not by, bool(by), ", ".join(by), seeds)
            rows.append(dict(zip(_COLUMNS, (*row, left_out(seeds, len(data.seeds))), strict=True)))
    return table_of(typed(rows, _COLUMNS))


def _both(xs: dict[int, float], ys: dict[int, float]) -> tuple[float, float, int]:
    seeds = sorted(xs.keys() & ys.keys())
    return average({s: xs[s] for s in seeds}), average({s: ys[s] for s in seeds}), len(seeds)
