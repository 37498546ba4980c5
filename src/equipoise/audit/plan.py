"""An audit as a TOML file: a run's sections without [method] and [attack], and an [audit] section that lists them.

    [audit]
    methods = ["fedavg", { name = "ditto", lam = 1.0 }]
    attacks = ["none", { name = "label-noise", fraction = 0.2 }]
    seeds = [0, 1, 2]
    baseline = "fedavg"

Every method meets every attack with every seed: a cell each, which is an ordinary run. Within a seed all cells have the
same clients, partition, initial model, draws and batches. A part may have a `label` to go by in the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from equipoise import config as configs
from equipoise.config.checks import require_tests
from equipoise.config.parts import Table, section, shown, write
from equipoise.core import Stop
from equipoise.errors import EquipoiseError, nearest

_STRICT = {"extra": "forbid", "strict": True}
CLEAN = "none"


@dataclass(frozen=True)
class Audit:
    """What is compared, and under what: the [audit] section."""

    methods: list[Any]
    """Names that `equipoise list methods` prints, or tables of a name, parameters and, if wanted, a `label`."""
    attacks: list[Any] | None = None
    """The same of attacks; "none" is the run without one, which drops are measured against. Left out: that alone."""
    seeds: list[int] | None = None
    """Every method meets every attack once with each; it takes 5 to test a difference. Left out: the run's."""
    baseline: str | None = None
    """The method that the others are compared with; left out: the first."""
    title: str = "Audit"
    """At the top of the report."""
    alone_epochs: int = 500
    """At most so many epochs for the model that each client trains alone: gaps and rewards are measured against it."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        for name, values in (("methods", self.methods), ("attacks", self.attacks), ("seeds", self.seeds)):
            if values is not None and (not values or len({shown(v) for v in values}) < len(values)):
                raise EquipoiseError(f"audit.{name} is {shown(values)}", "at least one, and none twice")
        if self.alone_epochs < 1:
            raise EquipoiseError(f"audit.alone_epochs is {self.alone_epochs}", "1 or more")

    @property
    def stop(self) -> Stop:
        return Stop(window=min(50, self.alone_epochs), cap=self.alone_epochs)


@dataclass(frozen=True)
class Cell:
    """One run of an audit."""

    method: str
    attack: str
    seed: int
    config: configs.Config

    @property
    def name(self) -> str:
        return cell_name(self.method, self.attack, self.seed)


def cell_name(method: str, attack: str, seed: int) -> str:
    """A folder name that tells which cell it is."""
    plain = "".join(c if c.isalnum() or c in "-.=" else "_" for c in f"{method}--{attack}")
    return f"{plain}--s{seed}"


@dataclass(frozen=True)
class Plan:
    """A whole audit, with nothing left to decide."""

    audit: Audit
    methods: Mapping[str, Table]
    attacks: Mapping[str, Table | None]
    seeds: tuple[int, ...]
    baseline: str
    cells: tuple[Cell, ...]
    text: str
    """The resolved file."""


def load(source: Path | str, overrides: Sequence[str] = ()) -> Plan:
    """Read and check an audit. Every cell is resolved here: no typing error waits until the middle."""
    where = str(source) if isinstance(source, Path) else "audit"
    try:
        raw = configs.parse(configs.read_text(source))
        for change in overrides:
            configs.override(raw, change)
        return _resolve(raw)
    except EquipoiseError as error:
        raise EquipoiseError(f"{where}: {error.message}", error.hint or "see `equipoise audit --help`") from error


def _resolve(raw: Table) -> Plan:
    if "audit" not in raw:
        raise EquipoiseError("audit is missing", '[audit] with methods = ["fedavg", ...] says what to compare')
    for name in ("method", "attack"):
        if name in raw:
            raise EquipoiseError(f"{name}: a single run's section", f"list it in audit.{name}s")
    audit: Audit = section(Audit, raw["audit"], "audit")
    methods = _labelled(audit.methods, "audit.methods")
    attacks: dict[str, Table | None] = {}
    for label, table in _labelled(audit.attacks or [CLEAN], "audit.attacks").items():
        attacks[label] = None if table == {"name": CLEAN} else table
    baseline = audit.baseline or next(iter(methods))
    if baseline not in methods:
        raise EquipoiseError(f"audit.baseline is {baseline!r}, which is not compared", nearest(baseline, methods))
    base = {k: v for k, v in raw.items() if k != "audit"}
    seeds = seeds_of(audit.seeds, base, "audit")
    cells = tuple(
        Cell(m, a, s, _cell(base, methods[m], attacks[a], s, f"{m} under {a}"))
        for s in seeds
        for a in attacks
        for m in methods
    )
    return Plan(audit, methods, attacks, seeds, baseline, cells, _text(audit, base))


def seeds_of(listed: Sequence[int] | None, base: Table, section: str) -> tuple[int, ...]:
    """The seeds that a section lists, or else the run's own one."""
    run = base.get("run", {})
    if not isinstance(run, dict):
        raise EquipoiseError(f"run is {shown(run)}", "a table: a line [run], then key = value")
    if listed and "seed" in run:
        told = f"run.seed is {shown(run['seed'])}, and {section}.seeds is {shown(listed)}"
        raise EquipoiseError(told, f"leave out run.seed: {section}.seeds are what is run")
    return tuple(listed or [run.get("seed", 0)])


def _labelled(entries: list[Any], key: str) -> dict[str, Table]:
    """Parts by what they are called: their label, their name, or name and parameters where names repeat."""
    tables = [{"name": e} if isinstance(e, str) else e for e in entries]
    for i, table in enumerate(tables):
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            raise EquipoiseError(
                f"{key}[{i}] is {shown(table)}", 'a name, or a table such as { name = "ditto", lam = 1.0 }'
            )
    names = [t["name"] for t in tables]
    found: dict[str, Table] = {}
    for i, table in enumerate(tables):
        params = {k: v for k, v in table.items() if k not in ("name", "label")}
        told = ", ".join(f"{k}={_short(v)}" for k, v in params.items())
        unique = not told or names.count(table["name"]) == 1
        label = table.get("label") or (table["name"] if unique else f"{table['name']}({told})")
        if not isinstance(label, str) or label in found:
            raise EquipoiseError(f"{key}[{i}].label is {shown(label)}", "give each its own label")
        found[label] = {"name": table["name"], **params}
    return found


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("name", value.get("kind", "...")))
    return str(value) if isinstance(value, str) else write(value)


def _cell(base: Table, method: Table, attack: Table | None, seed: int, which: str) -> configs.Config:
    sections = {**base, "method": method, "run": {**base.get("run", {}), "seed": seed}}
    if attack is not None:
        sections["attack"] = attack
    try:
        config = configs.resolve(sections)
        require_tests(config, "an audit")
        return config
    except EquipoiseError as error:
        raise EquipoiseError(f"{which}: {error.message}", error.hint) from error


def _text(audit: Audit, base: Table) -> str:
    """The audit as TOML, canonical: what the folder is recognised by when it is resumed."""
    own = {f.name: getattr(audit, f.name) for f in fields(audit)}
    sections = {"audit": {k: v for k, v in own.items() if v is not None}, **base}
    lines = []
    for name, table in sections.items():
        lines += [f"[{name}]", *(f"{k} = {write(v)}" for k, v in table.items()), ""]
    return "\n".join(lines)
