"""Every number of an audit with its 95% interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from equipoise.audit.comparing import ENOUGH, average, check_measures, left_out, numbers
from equipoise.audit.data import MEASURES, AuditData, Measure
from equipoise.audit.people import honest
from equipoise.audit.resampling import OF_CLIENTS, Floats, bounds, picks, together, waver
from equipoise.results import Table
from equipoise.results.rows import table_of, typed
from equipoise.streams import Stream

_DRAWS = 2000
_STREAM = Stream(0).child("intervals")
_COLUMNS = ("method", "attack", "measure", "mean", "low", "high", "seeds", "note")


def intervals(data: AuditData, measures: Iterable[str] = MEASURES) -> Table:
    """A row per (method, attack, measure) that was measured: the mean over seeds, its 95% interval, and how it came.

    Measures of honest clients resample seeds and clients, those of a whole run (conflicts, bytes, seconds) seeds alone.
    """
    known, found, rows = check_measures(measures), numbers(data), []
    people = _Clients(data.clients)
    for method in (card.name for card in data.methods):
        for attack in (card.name for card in data.attacks):
            for measure in (m for m in known if (method, attack, m) in found):
                runs = dict(sorted(found[method, attack, measure].items()))
                wavers = people.wavers(measure, method, attack, runs)
                values, stream = np.array(list(runs.values())), _STREAM.child(method, attack)
                low, high = bounds(values, wavers, stream, _DRAWS, _limits(MEASURES[measure]))
                note = _note(len(runs), len(data.seeds), wavers is not None)
                row = (method, attack, measure, average(runs), low, high, len(runs), note)
                rows.append(dict(zip(_COLUMNS, row, strict=True)))
    return table_of(typed(rows, _COLUMNS))


class _Clients:
    """The per-client table, by run."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows = honest(table)
        self.picks: dict[tuple[int, int], Any] = {}

    def wavers(self, measure: str, method: str, attack: str, runs: Mapping[int, float]) -> Floats | None:
        """[S, P]: how each seed's number moves with the clients; None unless they are known in all seeds."""
        columns, statistic = OF_CLIENTS.get(measure, ((), None))
        if statistic is None or not set(columns) <= set(self.table.columns):
            return None
        pools = []
        for seed, number in runs.items():
            rows = self.rows.get((method, attack, seed), np.empty(0, np.int64))
            values = np.stack([self.table[name][rows].astype(np.float64) for name in columns])
            values = values[:, np.isfinite(values).all(0)]
            values = values[0] if len(columns) == 1 else values
            if values.shape[-1] < 2 or abs(float(statistic(values)) - number) > 1e-6 * max(1.0, abs(number)):
                return None  # the cell counts something else: what its clients say would be about another number
            pools.append(waver(values, statistic, self._picks(seed, values.shape[-1])))
        return together(pools)

    def _picks(self, seed: int, n: int) -> Any:
        """The same for all methods: what is drawn does not depend on what is measured."""
        if (seed, n) not in self.picks:
            self.picks[seed, n] = picks(n, _STREAM.child("clients", seed), _DRAWS)
        return self.picks[seed, n]


def _limits(measure: Measure) -> tuple[float, float]:
    """What a number cannot go beyond."""
    if measure.notion == "collaboration" or measure.name == "drop":
        return -1.0, 1.0
    if measure.name in ("loss_mean", "gap_max", "gap_min"):
        return -np.inf, np.inf
    return 0.0, 1.0 if measure.percent else np.inf


def _note(seeds: int, planned: int, clients: bool) -> str:
    if seeds == 1:
        words = ["one seed: over clients only" if clients else "one seed: no interval"]
    else:
        words = ["" if clients else "over seeds only", f"{seeds} seeds: a rough interval" if seeds < ENOUGH else ""]
    return "; ".join(filter(None, [*words, left_out(seeds, planned)]))
