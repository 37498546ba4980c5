"""One page about a run on this machine: the report of an audit whose only cell is that run."""

from __future__ import annotations

import tomllib
from pathlib import Path

from equipoise import audit, files
from equipoise import config as configs
from equipoise.audit import plan as plans
from equipoise.audit.runner import folder
from equipoise.config.parts import write
from equipoise.report import write_report

_EPOCHS = 50  # for what clients reach alone: a page to look at should not take longer than the run


def report(config: configs.Config, out: Path, work: Path) -> Path:
    """Write OUT/report.html; `work` is for what is needed on the way."""
    sections = tomllib.loads(configs.dump(config))
    told = {"methods": [sections.pop("method")], "seeds": [config.run.seed], "alone_epochs": _EPOCHS}
    sections = {"audit": {**told, "title": "A run on Flower"}, **sections}
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {write(v)}\n" for k, v in table.items()) for name, table in sections.items()
    ]
    plan = plans.load("\n".join(lines))
    files.write_atomic(files.make_folder(work) / "audit.toml", plan.text.encode())
    (cell,) = plan.cells
    place = folder(work, cell)
    files.make_folder(place.parent)
    if not place.exists():
        place.symlink_to(out.resolve(), target_is_directory=True)
    return write_report(audit.read(work), out / "report.html")
