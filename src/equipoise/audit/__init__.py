"""Audits: any method, under any attack, measured on every notion at once, with the evidence.

plan      an [audit] section and a run's sections -> cells, one run each
runner    carries the cells out, side by side, and goes on where it was stopped
gather    reads the folder back into tables (data.AuditData)
evidence  intervals, tests, fronts: is a difference real?
sweep     hyper-parameters, chosen on validation data
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from equipoise.audit.data import AuditData
from equipoise.audit.gather import gather
from equipoise.audit.plan import load as load_plan
from equipoise.audit.runner import Step
from equipoise.audit.runner import run as run_audit
from equipoise.errors import EquipoiseError

__all__ = ["AuditData", "Step", "audit", "gather", "load_plan", "read", "run_audit"]


def audit(
    source: Path | str,
    out: Path | str,
    *,
    overrides: Sequence[str] = (),
    workers: int = 1,
    report: Callable[[Step], None] | None = None,
) -> AuditData:
    """Run an audit, given as a TOML file (a Path) or as its text, and read it back."""
    plan = load_plan(source, overrides)
    return gather(plan, Path(out), run_audit(plan, Path(out), workers=workers, report=report))


def read(folder: Path | str) -> AuditData:
    """An audit that was run before."""
    path = Path(folder) / "audit.toml"
    if not path.is_file():
        raise EquipoiseError(f"{folder} is not an audit's folder: it has no audit.toml", "give the --out of an audit")
    return gather(load_plan(path), Path(folder))
