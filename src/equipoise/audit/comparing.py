"""Every method against the baseline: how far apart, and is it real?

The unit of a test is the seed. Clients of one run share its model, so a lucky start helps all of them: to count them
as independent witnesses (swapping methods client by client, say) finds "significant" differences between two runs of
the same method. Tests that look only at signs or ranks of seeds cannot find any at five seeds: 2 of 2^5 outcomes are
as extreme as the most extreme one, p = 0.0625. What is left, and used here, is the paired t-test over seeds; a mixed
model of clients within seeds comes to the same. It assumes that the difference varies about normally from seed to seed,
as a mean over clients does, and that seeds are the only thing that varies: another dataset is another question.

The p-values of all methods for the same measure and attack are corrected together (Holm, "A simple sequentially
rejective multiple test procedure", 1979); each interval is for its own difference alone. The effect size is the mean
difference over its deviation between seeds, Cohen's d of pairs, times Hedges' correction for few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from equipoise.audit.data import MEASURES, AuditData, Measure
from equipoise.errors import EquipoiseError, nearest
from equipoise.results import Table
from equipoise.results.rows import table_of, typed

Floats = NDArray[np.float64]
Verdict = Literal["better", "worse", "no significant difference", "too few seeds to tell"]
ENOUGH = 5
"""Seeds that a test needs."""
LEVEL = 0.05
_NAN = float("nan")
_KEYS = ("method", "attack", "measure")
_COLUMNS = (*_KEYS, "difference", "low", "high", "effect", "p", "p_holm", "seeds", "verdict", "note")


def tests(data: AuditData, baseline: str = "", measures: Iterable[str] = MEASURES) -> Table:  # noqa: PT028
    """Each method against the baseline (the audit's own unless another is named): a row per (attack, measure, method).

    `difference` is the method's number minus the baseline's, over the seeds that both have; low and high are its 95%
    interval, `effect` has its sign, and p_holm is the p-value that `verdict` counts.
    """
    known, base = check_measures(measures), baseline or data.baseline
    found, rows = numbers(data), []
    others = [card.name for card in data.methods if card.name != base]
    for attack in (card.name for card in data.attacks):
        for measure in known:
            if not any((card.name, attack, measure) in found for card in data.methods):
                continue
            theirs = found.get((base, attack, measure), {})
            compared = [_compare(found.get((name, attack, measure), {}), theirs) for name in others]
            corrected = holm(np.array([row["p"] for row in compared], np.float64)).tolist()
            for name, row, p in zip(others, compared, corrected, strict=True):
                row |= {"method": name, "attack": attack, "measure": measure, "p_holm": p}
                row |= {"verdict": _verdict(row, MEASURES[measure]), "note": left_out(row["seeds"], len(data.seeds))}
                rows.append(row)
    return table_of(typed(rows, _COLUMNS))


def against(mine: Mapping[int, float], theirs: Mapping[int, float], measure: Measure) -> Verdict:
    """One method against another by numbers of seeds; they alone are compared, so nothing is to be corrected."""
    row = _compare(mine, theirs)
    return _verdict({**row, "p_holm": row["p"]}, measure)


def _compare(mine: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, Any]:
    both = sorted(mine.keys() & theirs.keys())
    a, b = np.array([mine[s] for s in both]), np.array([theirs[s] for s in both])
    d = np.where(np.isclose(a, b, rtol=1e-12, atol=0.0), 0.0, a - b)  # rounding is no difference
    low, high = paired_interval(d)
    size = float(d.mean()) if len(d) else _NAN
    return {"difference": size, "low": low, "high": high, "effect": hedges(d), "p": paired(d), "seeds": len(d)}


def paired(differences: Floats) -> float:
    """The two-sided p-value of the paired t-test; NaN below five seeds."""
    if len(differences) < ENOUGH:
        return _NAN
    if _constant(differences):  # what does not depend on the seed, such as bytes sent, is known for certain
        return 0.0 if differences.any() else 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def paired_interval(differences: Floats) -> tuple[float, float]:
    """The 95% interval that belongs to that test; NaN for a single seed."""
    n = len(differences)
    if n < 2:
        return _NAN, _NAN
    centre = float(differences.mean())
    half = 0.0 if _constant(differences) else stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / np.sqrt(n)
    return centre - float(half), centre + float(half)


def hedges(differences: Floats) -> float:
    """Cohen's d of paired differences, times 1 - 3 / (4 (n - 1) - 1); NaN where they do not vary, unless they are 0."""
    n = len(differences)
    if n < 2 or _constant(differences):
        return 0.0 if n and not differences.any() else _NAN
    return float(differences.mean() / differences.std(ddof=1) * (1.0 - 3.0 / (4.0 * (n - 1) - 1.0)))


def _constant(values: Floats) -> bool:
    """Whether they differ by rounding only."""
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def holm(p: Floats) -> Floats:
    """p-values corrected for being several; NaN stays NaN and does not count."""
    out = np.full(len(p), np.nan)
    there = np.flatnonzero(np.isfinite(p))
    order = there[np.argsort(p[there], kind="stable")]
    out[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)))
    return out


def _verdict(row: Mapping[str, Any], measure: Measure) -> Verdict:
    if row["seeds"] < ENOUGH:
        return "too few seeds to tell"
    if row["p_holm"] > LEVEL:
        return "no significant difference"
    return "better" if (row["difference"] > 0) == (measure.better == "high") else "worse"


def numbers(data: AuditData) -> dict[tuple[str, str, str], dict[int, float]]:
    """(method, attack, measure) -> the number of each seed whose run was finished and gave one."""
    cells = data.cells
    if not {"method", "attack", "seed"} <= set(cells.columns) or not len(cells):
        return {}
    done = cells["status"] == "done" if "status" in cells else np.ones(len(cells), bool)
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for measure in (m for m in MEASURES if m in cells):
        values = cells[measure].astype(np.float64)
        for i in np.flatnonzero(done & np.isfinite(values)):
            run = str(cells["method"][i]), str(cells["attack"][i]), measure
            found.setdefault(run, {})[int(cells["seed"][i])] = float(values[i])
    return found


def average(found: Mapping[int, float]) -> float:
    """The mean over seeds, NaN without any."""
    return float(np.mean(list(found.values()))) if found else _NAN


def check_measures(names: Iterable[str]) -> list[str]:
    """The names, if all are measures."""
    chosen = list(names)
    for name in chosen:
        if name not in MEASURES:
            raise EquipoiseError(f"evidence: there is no measure {name!r}", nearest(name, MEASURES))
    return chosen


def left_out(seeds: int, planned: int) -> str:
    """What to say of seeds that are not counted."""
    return f"{planned - seeds} of {planned} seeds left out: failed or not measured" if seeds < planned else ""
