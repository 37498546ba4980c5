"""Whose numbers count: honest clients with test samples; and what the same ones had without an attack.

An attack changes who is honest. A mean over all clients, without it, is one over other people: those that turn
malicious may have been served better or worse than the rest, and a method that lets nobody suffer would seem to lose
or to gain.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from equipoise.audit.plan import CLEAN
from equipoise.audit.resampling import OF_CLIENTS
from equipoise.results import Table

Run = tuple[str, str, int]
"""Method, attack, seed."""
Rows = NDArray[np.int64]


def honest(clients: Table) -> dict[Run, Rows]:
    """The rows of every run's honest clients with test samples."""
    if not {"method", "attack", "seed"} <= set(clients.columns) or not len(clients):
        return {}
    codes = [np.unique(clients[name], return_inverse=True)[1] for name in ("method", "attack", "seed")]
    order = np.lexsort(codes)
    steps = np.flatnonzero(np.any([np.diff(code[order]) != 0 for code in codes], axis=0)) + 1
    found: dict[Run, Rows] = {}
    for rows in np.split(order, steps):
        i = rows[0]
        run = str(clients["method"][i]), str(clients["attack"][i]), int(clients["seed"][i])
        found[run] = rows[_counted(clients, rows)]
    return found


def _counted(clients: Table, rows: Rows) -> NDArray[np.bool_]:
    keep = np.ones(len(rows), bool)
    if "malicious" in clients:
        keep &= ~clients["malicious"][rows].astype(bool)
    if "n" in clients:
        keep &= clients["n"][rows] > 0
    return keep


def before(clients: Table, measure: str = "accuracy_mean") -> dict[Run, float]:
    """A measure of clients' accuracy without an attack, over those that are honest under it; where both runs are."""
    known = {"client", "accuracy"} <= set(clients.columns)
    runs, statistic = honest(clients) if known else {}, OF_CLIENTS[measure][1]
    found = {}
    for (method, attack, seed), rows in runs.items():
        clean = runs.get((method, CLEAN, seed))
        if clean is None or not len(rows):
            continue
        same = clean[np.isin(clients["client"][clean], clients["client"][rows])]
        if len(same):
            found[method, attack, seed] = float(statistic(clients["accuracy"][same].astype(np.float64)))
    return found


def means(found: Mapping[Run, float]) -> dict[tuple[str, str], float]:
    """The mean over seeds, by method and attack."""
    seeds: dict[tuple[str, str], list[float]] = {}
    for (method, attack, _), value in found.items():
        seeds.setdefault((method, attack), []).append(value)
    return {key: float(np.mean(values)) for key, values in seeds.items()}
