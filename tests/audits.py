"""Audits made up for tests: known effects, honest and malicious clients, failed cells, in the shape of real ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from equipoise import metrics
from equipoise.audit.data import MEASURES, AuditData, Card
from equipoise.results import Table
from equipoise.streams import Stream

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Effect:
    """How a made-up method differs from the baseline."""

    mean: float = 0.0
    """Added to every client's accuracy."""
    spread: float = 1.0
    """Multiplies how far clients are from their mean."""
    best: float = 0.0
    """Added to the accuracy of the better-off half."""
    worst: float = 0.0
    """Added to the accuracy of the worse-off half."""
    harm: float = 1.0
    """Multiplies what an attack costs."""


def make_audit(
    methods: Sequence[str] = ("fedavg", "ditto", "rffl"),
    attacks: Sequence[str] = ("none", "sign_flip"),
    seeds: int = 3,
    clients: int = 20,
    effect: Mapping[str, Effect | float] | float = 0.0,
    *,
    luck: float = 0.01,
    noise: float = 0.02,
    damage: float = 0.25,
    share: float = 0.2,
    rounds: int = 5,
    classes: int = 4,
    failed: Collection[tuple[str, str, int]] = (),
    baseline: str | None = None,
    alone: bool = True,
    key: int = 0,
) -> AuditData:
    """A made-up audit. `effect`: a shift of accuracy, or an Effect, by method; one number is for all but the baseline.

    `luck` is the deviation, from run to run, of what all clients share; `noise` that of each client; `damage` what an
    attack by a `share` of the clients costs. `alone=False` leaves out what needs a client's own optimum.
    """
    first = baseline or methods[0]
    if not isinstance(effect, Mapping):
        effect = {name: effect for name in methods if name != first}
    chosen = {name: _effect(effect.get(name, 0.0)) for name in methods}
    stream = Stream(key).child("made-up audit")
    cells: list[dict[str, Any]] = []
    people: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    ledger: list[dict[str, Any]] = []
    clean: dict[tuple[str, int], Array] = {}
    for seed in range(seeds):
        world = _world(stream.child("world", seed), clients)
        for attack in attacks:
            for method in methods:
                cell = {"method": method, "attack": attack, "seed": seed}
                if (method, attack, seed) in failed:
                    cells.append({**cell, "status": "failed", "error": "the model diverged in round 3"})
                    continue
                rng = stream.child("run", seed, attack, method).numpy()
                malicious = np.arange(clients) >= clients - int(share * clients * (attack != "none"))
                hurt = damage * chosen[method].harm * (attack != "none")
                found = _clients(world, chosen[method], hurt, rng, luck, noise, alone)
                columns = {**found, "malicious": malicious}
                columns["filtered"] = np.where(malicious, 0.8, 0.05) * ("rffl" in method or "krum" in method)
                columns["influence"] = 1.0 - columns["filtered"]
                columns["downweighted"] = columns["filtered"] / 4
                people += [{**cell, "client": i, **{k: v[i] for k, v in columns.items()}} for i in range(clients)]
                numbers = _measures(columns, rng, rounds)
                if attack == "none":
                    clean[method, seed] = columns["accuracy"]
                had = clean.get((method, seed), np.full(clients, np.nan))[~malicious]
                numbers["drop"] = (had.mean() if len(had) else np.nan) - numbers["accuracy_mean"]
                cells.append({**cell, "status": "done", "error": "", **numbers})
                curves += [{**cell, "round": r, **_curve(numbers, r / rounds)} for r in range(1, rounds + 1)]
                if "rffl" in method:
                    ledger += _ledger(cell, malicious, rounds)
    names = ("method", "attack", "seed")
    return AuditData(
        title="A made-up audit",
        scenario={"dataset": "made up", "clients": clients, "partition": "dirichlet", "model": "mlp", "rounds": rounds},
        methods=tuple(_method(name) for name in methods),
        attacks=tuple(_attack(name, share) for name in attacks),
        seeds=tuple(range(seeds)),
        baseline=first,
        cells=_table(cells, (*names, "status", "error"), MEASURES),
        clients=_table(
            people,
            (*names, "client", "n", "malicious"),
            ("accuracy", "loss", "gap", "standalone", "filtered", "downweighted", "influence"),
        ),
        curves=_table(curves, (*names, "round"), ("accuracy_mean", "accuracy_std", "worst_10")),
        ledger=_table(ledger, (*names, "round", "client", "removed"), ("reputation", "quota")),
        partition=stream.child("partition").numpy().integers(0, 60, (clients, classes)),
        environment={"python": "3.11.0", "packages": {"torch": "2.6.0"}, "device": "cpu"},
        config='[data]\ndataset = "made up"\n',
    )


def _effect(given: Effect | float) -> Effect:
    return given if isinstance(given, Effect) else Effect(mean=given)


def _world(stream: Stream, clients: int) -> dict[str, Array]:
    """What all methods share under one seed: who is easy to serve, and how much test data each client has."""
    rng = stream.numpy()
    return {"ease": rng.normal(0.0, 0.08, clients), "n": rng.integers(40, 120, clients), "base": rng.normal(0, 0.01, 1)}


def _clients(
    world: Mapping[str, Array], e: Effect, hurt: float, rng: np.random.Generator, luck: float, noise: float, alone: bool
) -> dict[str, Array]:
    ease, n = world["ease"], world["n"]
    better = ease > np.median(ease)
    level = 0.8 + world["base"] + e.mean - hurt + luck * rng.normal() + np.where(better, e.best, e.worst)
    accuracy = np.round(np.clip(level + e.spread * ease + noise * rng.normal(size=len(ease)), 0, 1) * n) / n
    loss = 2.0 * (1.0 - accuracy) + 0.01 * rng.random(len(ease))
    missing = np.full(len(ease), np.nan)
    optimum = np.clip(0.35 - 2.0 * ease, 0.0, None)
    own = np.clip(0.7 + ease, 0, 1)
    return {
        "n": n,
        "accuracy": accuracy,
        "loss": loss,
        "gap": loss - optimum if alone else missing,
        "standalone": own if alone else missing,
    }


def _measures(columns: Mapping[str, Array], rng: np.random.Generator, rounds: int) -> dict[str, float]:
    honest = ~columns["malicious"]
    found = metrics.summary(columns["accuracy"], columns["n"], columns["loss"], malicious=columns["malicious"])
    gap, own, got = columns["gap"][honest], columns["standalone"][honest], columns["accuracy"][honest]
    several = len(gap) > 1 and bool(np.isfinite(gap).all())
    kept_out = columns["filtered"][~honest]
    found |= {
        "class_std_mean": 0.1 + 0.01 * rng.random(),
        "class_std_std": 0.03 + 0.01 * rng.random(),
        "gap_variance": float(gap.var(ddof=1)) if several else np.nan,
        "gap_max": float(gap.max()) if several else np.nan,
        "gap_min": float(gap.min()) if several else np.nan,
        "pearson": _correlation(own, got),
        "spearman": _correlation(_ranks(own), _ranks(got)),
        "caught": float(kept_out.mean()) if len(kept_out) else np.nan,
        "honest_filtered": float(columns["filtered"][honest].mean()) if honest.any() else np.nan,
        "honest_downweighted": float(columns["downweighted"][honest].mean()) if honest.any() else np.nan,
        "conflicts": 0.1 + 0.02 * rng.random(),
        "megabytes_up": 0.5 * rounds,
        "megabytes_down": 0.5 * rounds,
        "seconds": 2.0 + rng.random(),
    }
    return {name: float(found.get(name, np.nan)) for name in MEASURES}


def _correlation(a: Array, b: Array) -> float:
    if len(a) < 2 or not np.isfinite(a).all() or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Array) -> Array:
    return np.asarray(stats.rankdata(values, nan_policy="propagate"), dtype=np.float64)


def _curve(numbers: Mapping[str, float], progress: float) -> dict[str, float]:
    reached = 1.0 - 0.7 * (1.0 - progress) ** 2
    return {name: numbers[name] * reached for name in ("accuracy_mean", "accuracy_std", "worst_10")}


def _ledger(cell: Mapping[str, Any], malicious: Array, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for r in range(1, rounds + 1):
        reputation = np.where(malicious, 0.5 ** (r + 1), 1.0) / len(malicious)
        for i, value in enumerate(reputation):
            removed = bool(malicious[i]) and r > 2
            rows.append({**cell, "round": r, "client": i, "reputation": value, "quota": value * 10, "removed": removed})
    return rows


def _method(name: str) -> Card:
    return Card(
        name,
        summary=f"{name} in plain words.",
        reference="A. Author, A paper, 2020",
        equation="w <- w - mean_k u_k",
        departures="none",
        parameters={"lam": 1.0} if "ditto" in name else {},
        robust="krum" in name or "rffl" in name,
    )


def _attack(name: str, share: float) -> Card:
    return (
        Card(name) if name == "none" else Card(name, summary=f"{name} in plain words.", parameters={"fraction": share})
    )


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], numbers: Collection[str]) -> Table:
    """Columns of rows: `names` as they are, `numbers` as floats with NaN for what a row does not have."""
    columns: dict[str, Array] = {}
    for name in names:
        values = [row[name] for row in rows]
        text = not values or isinstance(values[0], str)
        columns[name] = np.array(values, dtype=object if text else None)
    for name in numbers:
        columns[name] = np.array([row.get(name, np.nan) for row in rows], dtype=np.float64)
    return Table(columns)
