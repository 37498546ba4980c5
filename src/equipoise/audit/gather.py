"""Reads an audit's folder back into tables: every measure of every cell, and the rows of every client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import files, metrics
from equipoise.audit.cards import attack_card, method_card
from equipoise.audit.data import MEASURES, AuditData
from equipoise.audit.influence import influence
from equipoise.audit.people import before
from equipoise.audit.plan import Plan
from equipoise.audit.runner import federation, folder, optima, require_same_files
from equipoise.errors import EquipoiseError, first_line
from equipoise.results import Result, RunFolder, Table, load_result
from equipoise.standalone import Optima

_FLOAT = 4  # bytes of one number on the wire
_STARTS = ("accuracy", "worst", "best", "loss", "class_", "angle", "gini", "attack_success")
_FROM_SUMMARY = [name for name in MEASURES if name.startswith(_STARTS)]


def gather(plan: Plan, out: Path, errors: Mapping[str, str] | None = None) -> AuditData:
    """All that the cells under `out` have to say; cells that are not finished count as failed."""
    require_same_files(plan, out)
    alone = {seed: optima(plan, seed, out) for seed in plan.seeds}
    found: dict[str, Result] = {}
    missing: dict[str, str] = {}
    for cell in plan.cells:
        try:
            found[cell.name] = _finished(folder(out, cell))
        except EquipoiseError as error:
            missing[cell.name] = first_line((errors or {}).get(cell.name, error.message))
    cells: list[dict[str, Any]] = []
    clients, curves, ledger = [], [], []
    for cell in plan.cells:
        key = {"method": cell.method, "attack": cell.attack, "seed": cell.seed}
        if cell.name in missing:
            cells.append({**key, "status": "failed", "error": missing[cell.name], **dict.fromkeys(MEASURES, np.nan)})
            continue
        result, own = found[cell.name], found[cell.name].served()
        served = _clients(result, own, alone[cell.seed])
        numbers = _measures(result, served, folder(out, cell))
        cells.append({**key, "status": "done", "error": "", **numbers})
        clients.append(_with(key, served))
        curves.append(_with(key, _curve(result)))
        ledger.append(_with(key, metrics.ledger(_infos(result))))
    people = _stack(clients)
    had = before(people)
    for row in cells:
        row["drop"] = had.get((row["method"], row["attack"], row["seed"]), np.nan) - row["accuracy_mean"]
    return AuditData(
        title=plan.audit.title,
        scenario=_scenario(plan),
        methods=tuple(method_card(label, table) for label, table in plan.methods.items()),
        attacks=tuple(attack_card(label, table) for label, table in plan.attacks.items()),
        seeds=plan.seeds,
        baseline=plan.baseline,
        cells=_rows(cells),
        clients=people,
        curves=_stack(curves),
        ledger=_stack(ledger),
        partition=federation(plan, plan.seeds[0]).class_counts().numpy(),
        environment=_environment([folder(out, cell) for cell in plan.cells if cell.name in found]),
        config=plan.text,
    )


def _finished(path: Path) -> Result:
    result = load_result(path)
    if result.note:
        raise EquipoiseError(f"not finished: {result.note}")
    return result


def _environment(paths: list[Path]) -> dict[str, Any]:
    """Of the first run, with the files of the user's own that any of them had."""
    first = files.read_json(paths[0] / "environment.json") if paths else {}
    own = {name: sha256 for path in paths for name, sha256 in (RunFolder.open(path).own or {}).items()}
    return {**first, **({"own": own} if own else {})}


# -------------------------------------------------------------------------------------------------- one cell


def _clients(result: Result, own: Table, alone: Optima) -> dict[str, Any]:
    n, honest = len(own), len(alone.accuracy["test"])
    pad = np.full(n - honest, np.nan)  # clients that the attack added have nothing to compare with
    out = {name: own[name] for name in ("client", "accuracy", "loss", "n", "malicious")}
    out["standalone"] = np.concatenate([alone.accuracy["test"], pad])
    with np.errstate(invalid="ignore"):  # a client that diverged in both has no gap to speak of
        out["gap"] = own["loss"] - np.concatenate([alone.loss["test"], pad])
    return out | influence((info for _, info in _infos(result)), n)


def _infos(result: Result) -> list[tuple[int, dict[str, Any]]]:
    # Rounds are counted from 0 where they are planned and from 1 where they are looked at.
    return [(int(r) + 1, json.loads(i)) for r, i in zip(result.rounds["round"], result.rounds["info"], strict=True)]


def _measures(result: Result, served: Mapping[str, Any], path: Path) -> dict[str, float]:
    summary, bad = result.summary(), np.asarray(served["malicious"], bool)
    numbers = {name: _number(summary.get(name)) for name in _FROM_SUMMARY}
    with np.errstate(invalid="ignore"):
        numbers |= metrics.gaps(served["loss"], served["loss"] - served["gap"], bad)
    numbers |= metrics.collaborative(served["standalone"], served["accuracy"], bad)
    numbers["caught"], numbers["honest_filtered"] = (_mean(served["filtered"][mask]) for mask in (bad, ~bad))
    numbers["honest_downweighted"] = _mean(served["downweighted"][~bad])
    admitted = result.rounds["admitted"].astype(float)
    numbers["conflicts"] = _mean(metrics._ratio(result.rounds["conflicts"].astype(float), admitted))
    size = 0 if result.model is None else result.model.numel() * _FLOAT / 1e6
    numbers["megabytes_up"] = float((admitted + result.rounds["quarantined"]).sum() * size)
    numbers["megabytes_down"] = float(result.rounds["drawn"].sum() * size)
    numbers["seconds"] = float(sum(row["train"] for row in files.read_json(path / "timings.json")["rounds"]))
    return {name: numbers.get(name, float("nan")) for name in MEASURES}


def _curve(result: Result) -> dict[str, Any]:
    test = result.clients.filter(split="test")
    kind = "personal" if "personal" in set(test["model"]) else "global"
    rounds = sorted({int(r) for r in test["round"]})
    rows = [metrics.summarise(_columns(test.filter(round=r, model=kind)), "test", kind) for r in rounds]
    out: dict[str, Any] = {"round": np.array(rounds, dtype=int)}
    return out | {name: np.array([row[name] for row in rows]) for name in ("accuracy_mean", "accuracy_std", "worst_10")}


def _columns(table: Table) -> dict[str, Any]:
    return {name: table[name] for name in table}


# -------------------------------------------------------------------------------------------------- small things


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _mean(values: np.ndarray[Any, Any]) -> float:
    good = values[~np.isnan(values)]
    return float(good.mean()) if len(good) else float("nan")


def _with(key: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    n = len(next(iter(columns.values())))
    return {**{name: np.full(n, value) for name, value in key.items()}, **columns}


def _stack(parts: list[dict[str, Any]]) -> Table:
    if not parts:
        return Table({})
    return Table({name: np.concatenate([np.asarray(p[name]) for p in parts]) for name in parts[0]})


def _rows(rows: list[dict[str, Any]]) -> Table:
    return Table({name: np.array([row[name] for row in rows]) for name in rows[0]})


def _scenario(plan: Plan) -> dict[str, Any]:
    config = plan.cells[0].config
    facts: Iterator[tuple[str, Any]] = iter(
        (
            ("dataset", config.data.dataset),
            ("clients", config.data.clients),
            ("partition", ", ".join(f"{k} {v}" for k, v in config.data.partition.items())),
            ("model", config.model.name),
            ("rounds", config.train.rounds),
            ("clients per round", config.participation.per_round or config.participation.fraction),
        )
    )
    return {name: value for name, value in facts if value is not None}
