"""From what every client measures to the numbers of a report.

Spread is described, never judged: each notion of it in the literature is a column with a plain name. Conventions:
deviations and variances are over the population (divided by N), the "worst 5%" of N clients are the ceil(N / 20) least
accurate ones, angles are in radians. Without clients a number is NaN. Clients that are all equal have no spread (Gini
0, Jain 1, angle 0), also when all are equally bad: read these beside the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Array = NDArray[Any]


# ------------------------------------------------------------------------------------------------- per client


def _ratio(part: ArrayLike, whole: ArrayLike) -> Floats:
    """part / whole, NaN where whole is 0."""
    top, bottom = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    out: Floats = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=out, where=bottom != 0)
    return out


@dataclass(frozen=True)
class Evaluation:
    """What one kind of model does on one split of N clients' data; C is 0 for a regression."""

    n: Array
    correct: Array
    loss: Array
    """[N]: the mean over a client's samples."""
    class_n: Array
    """[N, C]: how many samples of each class; `class_correct` how many of them are right."""
    class_correct: Array

    @property
    def accuracy(self) -> Floats:
        """[N], NaN for a client without samples, and for a regression."""
        return _ratio(self.correct, self.n if np.shape(self.class_n)[1] else np.zeros_like(self.n))

    @property
    def per_class(self) -> Floats:
        """[N, C], NaN where the client has no sample of the class."""
        return _ratio(self.class_correct, self.class_n)

    @property
    def balanced_accuracy(self) -> Floats:
        """[N]: the mean over the classes that the client has."""
        return _ratio(np.nansum(self.per_class, axis=1), (np.asarray(self.class_n) > 0).sum(axis=1))


def table(
    evaluation: Evaluation, *, round: int, split: str, model: str, malicious: ArrayLike, quarantined: ArrayLike
) -> dict[str, Array]:
    """The per-client table's columns, a row per client; `model` is "global" or "personal". class_* are [N, C]."""
    n = len(evaluation.n)
    return {
        "round": np.full(n, round, np.int64),
        "client": np.arange(n),
        "split": np.full(n, split),
        "model": np.full(n, model),
        "accuracy": evaluation.accuracy,
        "balanced_accuracy": evaluation.balanced_accuracy,
        "loss": np.asarray(evaluation.loss, np.float64),
        "n": np.asarray(evaluation.n),
        "malicious": np.asarray(malicious, bool),
        "quarantined": np.asarray(quarantined, bool),
        "class_n": np.asarray(evaluation.class_n),
        "class_correct": np.asarray(evaluation.class_correct),
    }


# ------------------------------------------------------------------------------------------------- over clients


def mean(values: Floats) -> float:
    return float(values.mean()) if values.size else float("nan")


def deviation(values: Floats) -> float:
    """The population's standard deviation; exactly 0 for equal values."""
    return float((values - values.min()).std()) if values.size else float("nan")


def tail(values: Floats, percent: int, *, best: bool = False) -> float:
    """The mean of the ceil(percent% of N) smallest (or largest) values."""
    count = -(-percent * values.size // 100)
    ordered = np.sort(values)
    return mean(ordered[values.size - count :] if best else ordered[:count])


def gini(values: Floats) -> float:
    """Gini's coefficient, sum_ij |a_i - a_j| / (2 N sum_i a_i), of numbers >= 0: 0 if all are equal, below 1."""
    if not values.size:
        return float("nan")
    below = np.arange(1, values.size)
    # Neighbouring gaps, times the pairs that span them: no cancellation, so 0 only for equal values.
    pairs = float((np.diff(np.sort(values)) * below * (values.size - below)).sum())
    return pairs / (values.size * float(values.sum())) if pairs != 0 else 0.0


def jain(values: Floats) -> float:
    """Jain's index, (sum a)^2 / (N sum a^2): 1 if all are equal, 1/N if one has everything."""
    if not values.size:
        return float("nan")
    top = values.max()
    shape = np.ones_like(values) if top == 0 else values / top  # unscaled, the squares of tiny numbers vanish
    return float(shape.sum() ** 2 / (values.size * np.square(shape).sum()))


def angle(values: Floats) -> float:
    """The angle between the values and (1, ..., 1), FedLF's indicator: arctan(deviation / mean)."""
    return float(np.arctan2(deviation(values), mean(values)))


def summary(
    accuracy: ArrayLike,
    n: ArrayLike,
    loss: ArrayLike | None = None,
    *,
    malicious: ArrayLike | None = None,
    class_n: ArrayLike | None = None,
    class_correct: ArrayLike | None = None,
) -> dict[str, float]:
    """One number for each notion, over the benign clients with at least one sample. Always the same keys.

    accuracy_weighted counts samples, accuracy_mean counts clients. class_std_mean and class_std_std are FedTilt's: each
    client's deviation of accuracy over its classes, then the mean and the deviation of that over clients.
    """
    size = np.asarray(n, np.float64)
    keep = (size > 0) & (~np.asarray(malicious, bool) if malicious is not None else True)
    a, size = np.asarray(accuracy, np.float64)[keep], size[keep]
    losses = np.asarray(loss, np.float64)[keep] if loss is not None else np.empty(0)
    spread = np.empty(0)
    if class_n is not None and class_correct is not None:
        spread = _class_deviation(np.asarray(class_n)[keep], np.asarray(class_correct)[keep])
    with np.errstate(all="ignore"):  # a diverged model's losses are infinite or NaN, and so are their means
        return {
            "accuracy_mean": mean(a),
            "accuracy_weighted": float(_ratio((a * size).sum(), size.sum())),
            "accuracy_std": deviation(a),
            "accuracy_variance": deviation(a) ** 2,
            "accuracy_min": float(a.min()) if a.size else float("nan"),
            "accuracy_max": float(a.max()) if a.size else float("nan"),
            "worst_5": tail(a, 5),
            "worst_10": tail(a, 10),
            "best_10": tail(a, 10, best=True),
            "best_5": tail(a, 5, best=True),
            "gini": gini(a),
            "jain": jain(a),
            "angle": angle(a),
            "loss_mean": mean(losses),
            "loss_std": deviation(losses),
            "class_std_mean": mean(spread),
            "class_std_std": deviation(spread),
        }


def why_nobody(n: ArrayLike, malicious: ArrayLike) -> str:
    """Why `summary` has no clients to look at, if it has none."""
    bad, tested = np.asarray(malicious, bool), np.asarray(n) > 0
    if bool((tested & ~bad).any()):
        return ""
    return "all clients are malicious, and measures are of benign ones" if bad.all() else "no benign client was tested"


def _class_deviation(class_n: Array, class_correct: Array) -> Floats:
    """[N]: each client's deviation of accuracy over the classes it has."""
    has = class_n > 0
    rates = np.nan_to_num(_ratio(class_correct, class_n))
    count = has.sum(axis=1)
    centred = np.where(has, rates - _ratio(rates.sum(axis=1), count)[:, None], 0.0)
    out: Floats = np.sqrt(_ratio(np.square(centred).sum(axis=1), count))
    return out


def summarise(columns: Mapping[str, ArrayLike], split: str = "test", model: str | None = None) -> dict[str, float]:
    """`summary` of the last round in a per-client table; model None is the one that clients use: personal, if any."""
    splits, models, rounds = (np.asarray(columns[name]) for name in ("split", "model", "round"))
    rows = splits == split
    wanted = model or ("personal" if bool((rows & (models == "personal")).any()) else "global")
    rows &= models == wanted
    rows &= rounds == (rounds[rows].max() if rows.any() else -1)
    last = {name: np.asarray(columns[name])[rows] for name in ("accuracy", "n", "loss", "malicious")}
    return summary(**last, **{name: _matrix(columns[name], rows) for name in ("class_n", "class_correct")})


def _matrix(column: ArrayLike | Iterable[Sequence[int]], rows: NDArray[np.bool_]) -> Array:
    """Rows of a column of lists as [rows, C]; a file gives lists, `table` gives a matrix."""
    cells = np.asarray(column)[rows]
    if cells.ndim == 2:
        return cells
    return np.stack(list(cells)) if len(cells) else np.empty((0, 0))


def last_tenth(rounds: ArrayLike, values: ArrayLike) -> float:
    """The mean of a measurement over the last tenth of a run's rounds, counted from 1; at least the last round.

    A value stands for the rounds since the measurement before it, so unevenly spaced ones weigh what they should.
    """
    at, measured = np.asarray(rounds, np.float64), np.asarray(values, np.float64)
    if not at.size:
        return float("nan")
    order = np.argsort(at, kind="stable")
    at, measured = at[order], measured[order]
    start = at[-1] - max(1.0, np.ceil(at[-1] / 10))
    weights = np.diff(np.maximum(at, start), prepend=start)
    return float((weights * measured)[weights > 0].sum() / weights.sum())


# ------------------------------------------------------------------------------------- against what clients have alone


def _benign(malicious: ArrayLike | None, *columns: ArrayLike) -> list[Floats]:
    """The rows of benign clients in which no number is missing."""
    values = [np.asarray(c, np.float64) for c in columns]
    keep = ~np.isnan(values).any(axis=0) & (~np.asarray(malicious, bool) if malicious is not None else True)
    return [v[keep] for v in values]


def gaps(loss: ArrayLike, optimum: ArrayLike, malicious: ArrayLike | None = None) -> dict[str, float]:
    """EAGLE's loss gaps, loss [N] minus the loss [N] of the model that each client trains alone, over benign clients.

    The variance is the sample's (divided by N - 1), as in that paper, and NaN for a single client. A client without
    samples, whose loss is NaN, has no gap.
    """
    own, alone = _benign(malicious, loss, optimum)
    with np.errstate(all="ignore"):  # a diverged model has infinite gaps
        gap = own - alone
        even = gap - gap.min() if gap.size else gap  # equal gaps have a variance of exactly 0
        return {
            "gap_max": float(gap.max()) if gap.size else float("nan"),
            "gap_min": float(gap.min()) if gap.size else float("nan"),
            "gap_variance": float(even.var(ddof=1)) if gap.size > 1 else float("nan"),
            "gap_mean": mean(gap),
        }


def pearson(a: Floats, b: Floats) -> float:
    """The linear correlation of two columns without NaN; NaN where one of them is constant, or there is none."""
    if a.size == 0 or a.min() == a.max() or b.min() == b.max():
        return float("nan")
    with np.errstate(all="ignore"):
        x, y = (v - v.mean() for v in (a, b))
        x, y = (v / np.abs(v).max() for v in (x, y))  # squares of tiny numbers would vanish
        return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def ranks(values: Floats) -> Floats:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    out: Floats = (np.cumsum(count) - (count - 1) / 2)[place]
    return out


def collaborative(standalone: ArrayLike, received: ArrayLike, malicious: ArrayLike | None = None) -> dict[str, float]:
    """RFFL's collaborative fairness: does who brings more get more? Over benign clients.

    Correlation of the accuracies [N] that clients reach alone with those of the models that they receive; NaN where it
    is undefined, as when all receive the same.
    """
    alone, got = _benign(malicious, standalone, received)
    return {"pearson": pearson(alone, got), "spearman": pearson(ranks(alone), ranks(got))}


def ledger(rounds: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, Array]:
    """A row per round and client with a reputation: what it was, what share was given for it, and removals.

    `rounds` are (round, info) as in a run's rounds table: info["admitted"] are the clients' ids, info["reputation"] and
    info["quota"] have an entry for each of them, info["excluded"] are those removed. Why is in info["removed"], a
    {"client", "reason"} for each, or in info["reason"] for all. Rounds without reputations have no rows.
    """
    pages = [_page(round, info) for round, info in rounds if "reputation" in info]
    empty = _page(0, {"admitted": (), "reputation": ()})
    return {name: np.concatenate([column, *(p[name] for p in pages)]) for name, column in empty.items()}


def _page(round: int, info: Mapping[str, Any]) -> dict[str, Array]:
    client = np.asarray(info["admitted"], np.int64)
    removed = np.isin(client, np.asarray(info.get("excluded", ()), np.int64))
    why = {int(t["client"]): str(t["reason"]) for t in info.get("removed", ())}
    told = [why.get(k, str(info.get("reason", ""))) if r else "" for k, r in zip(client.tolist(), removed, strict=True)]
    return {
        "round": np.full(len(client), round, np.int64),
        "client": client,
        "reputation": np.asarray(info["reputation"], np.float64),
        "quota": np.asarray(info.get("quota", np.full(len(client), np.nan)), np.float64),
        "removed": removed,
        "reason": np.asarray(told, dtype=str),
    }
