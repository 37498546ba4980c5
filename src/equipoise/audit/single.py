"""A finished run, simulated or deployed, as an audit whose only cell it is: for a report of one run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from equipoise import audit, files
from equipoise import config as configs
from equipoise.audit import plan as plans
from equipoise.audit.data import AuditData
from equipoise.audit.runner import folder, require_same_data
from equipoise.config.parts import write
from equipoise.errors import EquipoiseError, require
from equipoise.provenance import same_files
from equipoise.results import RunFolder, load_result

_EPOCHS = 50  # for what clients reach alone: a page to look at should not take longer than the run


def of_run(run: Path, work: Path) -> AuditData:
    """What an audit would tell of this run; `work` is for what is needed on the way."""
    held = RunFolder.open(run)
    if held.in_python:
        hint = "eq.load_result and equipoise compare tell its numbers; a page needs a config, for equipoise run"
        raise EquipoiseError(f"{run} was made from Python, so its data and parts are not in a config", hint)
    config = configs.load(held.config.decode())
    same_files(config, run)
    result = load_result(run)
    if result.note:
        raise EquipoiseError(f"{run} is {result.note}", held.goes_on)
    used = result.summary()["dataset"]
    here = used == config.data.dataset  # else what clients reach alone would be that of other data
    require(here, f"{run}: the data", used, "a report needs the samples, and these are at the sites; use compare")
    require_same_data(config, [run])
    sections = tomllib.loads(configs.dump(config))
    told: dict[str, Any] = {"methods": [sections.pop("method")], "attacks": [sections.pop("attack", "none")]}
    told |= {"alone_epochs": _EPOCHS, "title": f"The run {run.resolve().name}"}
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {write(v)}\n" for k, v in table.items())
        for name, table in {"audit": told, **sections}.items()
    ]
    plan = plans.load("\n".join(lines))
    files.write_atomic(files.make_folder(work) / "audit.toml", plan.text.encode())
    (cell,) = plan.cells
    place = folder(work, cell)
    files.make_folder(place.parent)
    if not place.exists():
        place.symlink_to(run.resolve(), target_is_directory=True)
    return audit.read(work)
