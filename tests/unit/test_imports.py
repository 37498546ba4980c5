"""Who may import whom, and that the core path runs on a machine that has little installed."""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import equipoise
from equipoise import provenance, standalone
from equipoise.at import Stop
from tests.small import simulation

SOURCE = Path(equipoise.__file__).parent
LAYERS = [
    {"errors", "streams", "layout", "losses", "files", "large", "weighting", "questions"},
    {"at"},
    {"core", "threat"},
    {"objectives", "solvers", "hull_kernels", "history"},
    {"methods", "aggregators", "attacks", "data", "models", "modules", "metrics", "conflicts"},
    {"engine"},
    {"contract", "registry", "results"},
    {"config"},
    {"experiment", "standalone", "tracking", "course", "provenance"},
    {"audit"},
    {"report", "reproduce"},
    {"reference"},
    {"cli", "demo", "flower"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
BARE = [
    *("objectives", "solvers", "hull_kernels", "history", "errors", "streams", "layout", "at", "core", "threat"),
    *("losses", "models", "modules", "metrics", "conflicts", "files", "large", "weighting", "questions"),
]
BLOCKED = ["pydantic", "typer", "click", "rich", "pooch", "pyarrow", "plotly", "scipy", "pandas", "sklearn", "flwr"]
BARE_PACKAGES = ("methods", "aggregators", "attacks", "engine")


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "equipoise" else [f"equipoise.{a.name}" for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("equipoise.")}
    return {name for name in found if not name.startswith("__")}


def test_imports_point_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        home = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if home == "__init__":
            continue
        for other in imports_of(path) - {home}:
            assert RANK[other] <= RANK[home], f"{path.relative_to(SOURCE)} imports {other}"


def test_methods_never_import_the_engine_or_each_others_layers() -> None:
    for package in ("methods", "aggregators", "attacks"):
        for path in (SOURCE / package).glob("*.py"):
            assert not imports_of(path) & {"engine", "data", "experiment", "results"}, path.name


def test_the_core_path_needs_torch_numpy_and_safetensors_only() -> None:
    modules = [f"equipoise.{m}" for m in BARE]
    for package in BARE_PACKAGES:
        modules += [f"equipoise.{package}.{p.stem}" for p in (SOURCE / package).glob("*.py") if p.stem != "__init__"]
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
import importlib
for name in {modules!r}:
    importlib.import_module(name)
import torch
from equipoise.contract import sample_run
from equipoise.methods.fedavg import fedavg
assert torch.isfinite(sample_run(fedavg(), "vmap").server.w).all()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_help_needs_no_torch() -> None:
    code = "import sys, equipoise.cli; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_core_is_short() -> None:
    assert len((SOURCE / "core.py").read_text().splitlines()) < 300


def test_a_checkout_that_is_not_installed_knows_its_version_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines where nothing can be installed: a path to the source has to do."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
    assert project["project"]["version"] == equipoise.__version__
    known = importlib.metadata.version

    def version(name: str) -> str:
        if name == "equipoise":
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(provenance, "version", version)
    sim = simulation()
    assert provenance.environment(sim)["packages"]["equipoise"] == equipoise.__version__
    assert standalone._basis(sim, Stop())["version"] == equipoise.__version__
