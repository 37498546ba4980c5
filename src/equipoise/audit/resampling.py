"""How much a number would move with other seeds and other clients: the hierarchical bootstrap.

Seeds are drawn with replacement, and within each drawn seed its clients. What is drawn twice is resampled twice. Two
corrections make the result honest where there are few of either:

- A resample of clients is systematically more even than the clients themselves (its worst is never worse), so its
  deviation from the mean over all resamples is what counts, around the number that was measured.
- Drawing S of S seeds shows only (S - 1) / S of the variance between them; the rest is put back. And that variance is
  itself a guess from S numbers: what seeds move is widened as Student's t is wider than the normal distribution.

With two or three seeds the interval is still a rough one: it leans on the shape of a distribution that nobody saw.
Where clients differ far more than seeds do, it is on the wide side, for their variance is also in that of the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from equipoise.streams import Stream

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""From values [..., N] of N clients to a number [...]; of two columns, from [2, ..., N]."""

_NUMBERS = 100_000
"""About how many clients' values one pool of resamples may hold: many clients need fewer resamples."""
_MOST, _LEAST = 97.5, 2.5


# ------------------------------------------------------------------------------------------------- statistics


def _ratio(part: Floats, whole: Floats, where: NDArray[np.bool_], otherwise: float) -> Floats:
    out = np.full(np.shape(part), otherwise)
    np.divide(part, whole, out=out, where=where)
    return out


def mean(a: Floats) -> Floats:
    return np.asarray(a.mean(-1))


def deviation(a: Floats) -> Floats:
    """The population's; exactly 0 for equal values."""
    return np.asarray((a - a.min(-1, keepdims=True)).std(-1))


def variance(a: Floats) -> Floats:
    return np.square(deviation(a))


def sample_variance(a: Floats) -> Floats:
    """Divided by N - 1, NaN for one client."""
    n = a.shape[-1]
    return variance(a) * (n / (n - 1)) if n > 1 else np.full(a.shape[:-1], np.nan)


def tail(percent: int, *, best: bool = False) -> Statistic:
    """The mean of the ceil(percent% of N) smallest, or largest, values."""

    def of(a: Floats) -> Floats:
        count = -(-percent * a.shape[-1] // 100)
        return -of_low(-a, count) if best else of_low(a, count)

    def of_low(a: Floats, count: int) -> Floats:
        return np.asarray(np.partition(a, count - 1, axis=-1)[..., :count].mean(-1))

    return of


def gini(a: Floats) -> Floats:
    n, below = a.shape[-1], np.arange(1, a.shape[-1])
    pairs = np.asarray((np.diff(np.sort(a, axis=-1), axis=-1) * below * (n - below)).sum(-1))
    return _ratio(pairs, np.asarray(n * a.sum(-1)), pairs != 0, 0.0)


def angle(a: Floats) -> Floats:
    return np.asarray(np.arctan2(deviation(a), mean(a)))


def weighted_mean(a: Floats) -> Floats:
    """Of a[0], with the weights a[1]."""
    return np.asarray((a[0] * a[1]).sum(-1) / a[1].sum(-1))


def pearson(a: Floats) -> Floats:
    """The correlation of a[0] and a[1]; NaN where one of them is the same for all."""
    centred = a - a.mean(-1, keepdims=True)
    product = np.asarray((centred[0] * centred[1]).sum(-1))
    scale = np.sqrt(np.square(centred).sum(-1).prod(0))
    varied = (np.ptp(a, axis=-1) > 0).all(0)
    return _ratio(product, scale, varied & (scale > 0), np.nan)


def spearman(a: Floats) -> Floats:
    return pearson(stats.rankdata(a, axis=-1))


OF_CLIENTS: Mapping[str, tuple[tuple[str, ...], Statistic]] = {
    "accuracy_mean": (("accuracy",), mean),
    "accuracy_weighted": (("accuracy", "n"), weighted_mean),
    "loss_mean": (("loss",), mean),
    "accuracy_std": (("accuracy",), deviation),
    "accuracy_variance": (("accuracy",), variance),
    "worst_5": (("accuracy",), tail(5)),
    "worst_10": (("accuracy",), tail(10)),
    "best_5": (("accuracy",), tail(5, best=True)),
    "best_10": (("accuracy",), tail(10, best=True)),
    "angle": (("accuracy",), angle),
    "gini": (("accuracy",), gini),
    "gap_variance": (("gap",), sample_variance),
    "gap_max": (("gap",), lambda a: np.asarray(a.max(-1))),
    "gap_min": (("gap",), lambda a: np.asarray(a.min(-1))),
    "pearson": (("standalone", "accuracy"), pearson),
    "spearman": (("standalone", "accuracy"), spearman),
}
"""The measures that are a statistic of honest clients' values, and of which; all others are one number per run."""


# ------------------------------------------------------------------------------------------------- resampling


def picks(n: int, stream: Stream, draws: int) -> NDArray[np.int64]:
    """[P, n]: resamples of n clients. The same stream gives the same ones, so that methods can be compared on them."""
    size = min(draws, max(400, _NUMBERS // n))
    return stream.numpy().integers(0, n, (size, n))


def waver(values: Floats, statistic: Statistic, chosen: NDArray[np.int64]) -> Floats:
    """[P]: by how much resampled clients change the statistic of values [..., N]. Where it has no value, not at all."""
    found = statistic(np.take(values, chosen, axis=-1))
    there = np.isfinite(found)
    centre = found[there].mean() if there.any() else 0.0
    return np.where(there, found, centre) - centre


def spread(numbers: Floats, wavers: Floats | None, stream: Stream, draws: int) -> Floats:
    """[draws]: means of numbers [S] over resampled seeds, each moved by resampled clients if wavers are given."""
    s, rng = len(numbers), stream.numpy()
    seeds = rng.integers(0, s, (draws, s))
    centre = numbers.mean()
    moved = np.asarray(numbers[seeds].mean(1) - centre) * _few(s)
    if wavers is not None:
        moved += wavers[seeds, rng.integers(0, wavers.shape[1], (draws, s))].mean(1)
    return np.asarray(centre + moved)


def _few(seeds: int) -> float:
    """How much wider than resampled seeds the truth is spread, if there are no more than these."""
    if seeds < 2:
        return 1.0
    return float(np.sqrt(seeds / (seeds - 1)) * stats.t.ppf(_MOST / 100, seeds - 1) / stats.norm.ppf(_MOST / 100))


def bounds(
    numbers: Floats,
    wavers: Floats | None,
    stream: Stream,
    draws: int = 2000,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> tuple[float, float]:
    """The 95% interval of the mean over seeds. NaN where there is nothing to resample: one seed, and no clients."""
    if len(numbers) == 0 or (len(numbers) == 1 and wavers is None):
        return float("nan"), float("nan")
    low, high = np.percentile(spread(numbers, wavers, stream, draws), [_LEAST, _MOST])
    centre = numbers.mean()  # a long tail may have its mean outside of the middle 95%
    return max(limits[0], float(min(low, centre))), min(limits[1], float(max(high, centre)))


def interval(
    values: Mapping[int, Any],
    statistic: Statistic,
    stream: Stream,
    draws: int = 2000,
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> tuple[float, float]:
    """The 95% interval of a statistic of clients, meaned over seeds, by a hierarchical bootstrap.

        interval({0: accuracies, 1: accuracies}, lambda a: a.mean(-1), Stream(0))

    `values`: for each seed [N], or [c, N] for a statistic of c columns. One value per seed: seeds alone are resampled.
    One seed: clients alone. Neither: NaN. `limits` are what the statistic cannot go beyond.
    """
    arrays = {seed: np.asarray(v, np.float64) for seed, v in values.items()}
    arrays = {seed: v for seed, v in arrays.items() if v.shape[-1] and np.isfinite(v).all()}
    numbers = np.array([float(statistic(v)) for v in arrays.values()])
    alone = all(v.shape[-1] == 1 for v in arrays.values())
    pools = [waver(v, statistic, picks(v.shape[-1], stream.child("clients", s), draws)) for s, v in arrays.items()]
    return bounds(numbers, None if alone else together(pools), stream.child("seeds"), draws, limits)


def together(pools: list[Floats]) -> Floats:
    """[S, P]: pools of seeds with unequal numbers of clients, cut to the shortest."""
    size = min(map(len, pools))
    return np.stack([pool[:size] for pool in pools])
