"""Audits: any method, under any attack, measured on every notion at once, with the evidence.

plan      an [audit] section and a run's sections -> cells, one run each
runner    carries the cells out, side by side, and goes on where it was stopped
engines   where they are carried out: processes here, or a Ray cluster
gather    reads the folder back into tables (data.AuditData)
evidence  intervals, tests, fronts: is a difference real?
advice    which method to take for a wish
recording tells a tracker of every cell
sweep     hyper-parameters, chosen on validation data

The package can be called: `equipoise.audit(Path("audit.toml"), "runs/mine")` is `equipoise.audit.audit(...)`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from equipoise.audit.advice import Advice, advise
from equipoise.audit.data import AuditData
from equipoise.audit.engines import Engine
from equipoise.audit.gather import gather
from equipoise.audit.plan import load as load_plan
from equipoise.audit.recording import record
from equipoise.audit.runner import Step
from equipoise.audit.runner import run as run_audit
from equipoise.errors import EquipoiseError
from equipoise.tracking import Tracker

__all__ = ["Advice", "AuditData", "Step", "advise", "audit", "gather", "load_plan", "read", "record", "run_audit"]


def audit(
    source: Path | str,
    out: Path | str,
    *,
    overrides: Sequence[str] = (),
    workers: int = 1,
    engine: Engine | None = None,
    report: Callable[[Step], None] | None = None,
    track: Tracker | None = None,
) -> AuditData:
    """Run an audit, given as a TOML file (a Path) or as its text, and read it back."""
    plan = load_plan(source, overrides)
    data = gather(plan, Path(out), run_audit(plan, Path(out), workers=workers, engine=engine, report=report))
    if track:
        record(data, track)
    return data


def read(folder: Path | str) -> AuditData:
    """An audit that was run before."""
    path = Path(folder) / "audit.toml"
    if not path.is_file():
        raise EquipoiseError(f"{folder} is not an audit's folder: it has no audit.toml", "give the --out of an audit")
    return gather(load_plan(path), Path(folder))


class _Callable(ModuleType):
    """`equipoise.audit` is this package and, as `equipoise.run`, what one does with it."""

    __call__ = staticmethod(audit)


sys.modules[__name__].__class__ = _Callable
