"""The command that looks at the machine: doctor."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from equipoise import __version__
from equipoise.cli.terminal import FAILED, Json, Verbose, guarded, put_json, put_table
from equipoise.engine.memory import may_keep

_PACKAGES = ("torch", "numpy", "safetensors", "pydantic", "typer", "rich", "pooch", "pyarrow", "scipy")


@guarded
def doctor(
    folder: Annotated[Path, typer.Option("--folder", help="Where runs are to be written.")] = Path(),
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Look at versions, devices, memory, disk and data; exit with 1 if something is broken.

    \b
    Examples:
      equipoise doctor
      equipoise doctor --folder /scratch/runs
    """
    checks: dict[str, Callable[[], str]] = {"python": platform.python_version, "platform": platform.platform}
    checks |= {"equipoise": lambda: __version__}
    checks |= {name: partial(importlib.metadata.version, name) for name in _PACKAGES}
    checks |= {
        "device": _device,
        "kernels": _kernels,
        "threads": _threads,
        "memory": _memory,
        "disk": lambda: _disk(folder),
    }
    checks |= {"write": lambda: _write(folder), "data": _data, "parts": _parts}
    rows = [(name, *_outcome(check)) for name, check in checks.items()]
    if as_json:
        put_json({name: {"ok": state == "ok", "found": found} for name, state, found in rows})
    else:
        put_table(("what", "state", "found"), rows)
    if any(state != "ok" for _, state, _ in rows):
        raise typer.Exit(FAILED)


def _outcome(check: Callable[[], str]) -> tuple[str, str]:
    """A check is broken when it raises; whatever that is, the others still run."""
    try:
        return "ok", check()
    except Exception as error:
        return "BROKEN", " ".join(f"{type(error).__name__}: {error}".split())


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    torch.ones(2, 2, device="cuda").sum().item()  # a driver that does not fit shows only when it is used
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _kernels() -> str:
    import torch

    from equipoise.engine import convolutions, custom

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    why = custom.why_not(device)
    if why is None:
        one = torch.ones(1, 1, 1, 1, 1, device=device)
        convolutions.forward(one, one, (0, 0)).item()  # a compiler that is missing shows only when it is used
    return "convolutions, pools and products have their own" if why is None else f"none of our own: {why}"


def _threads() -> str:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{torch.get_num_threads()} threads on {cores} cores"


def _memory() -> str:
    freed = "kept" if may_keep() else "given back"
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return f"unknown on this platform; what is freed is {freed}"
    return f"{_size(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))}; what is freed is {freed}"


def _disk(folder: Path) -> str:
    return f"{_size(shutil.disk_usage(folder).free)} free in {folder.resolve()}"


def _write(folder: Path) -> str:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"equipoise")
        file.flush()
        os.fsync(file.fileno())
    return f"can write in {folder.resolve()}"


def _size(n: int) -> str:
    return f"{n / 2**30:.1f} GiB"


def _data() -> str:
    from equipoise.data import datasets, find

    root = os.environ.get("EQUIPOISE_DATA")
    if root and not Path(root).expanduser().is_dir():
        raise FileNotFoundError(f"EQUIPOISE_DATA is {root}, which is no folder")
    here = [info.name for info in datasets.catalogue() if datasets.where(info.name)]
    return f"{', '.join(here)} (EQUIPOISE_DATA: {root or 'not set'}; downloads: {find.cache()})"


def _parts() -> str:
    from equipoise import registry

    return ", ".join(f"{len(registry.entries(kind))} {kind}" for kind in registry.KINDS)
