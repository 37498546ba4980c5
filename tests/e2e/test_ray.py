"""Audits and sweeps on a Ray of this machine: what they find, who does a lost job again, how they stop and go on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise import files, registry
from equipoise.audit import audit, gather, load_plan, run_audit
from equipoise.audit.engines import Ray
from equipoise.audit.sweep import load as load_grid
from equipoise.audit.sweep import run as run_grid
from equipoise.cli.audits import Where, engine_of
from equipoise.errors import EquipoiseError
from equipoise.report import write_report
from equipoise.results import load_result

# Ray leaves files and processes of its own to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed|subprocess .* is still running:ResourceWarning")

RUN = """
[data]
dataset = "digits"
clients = 6
partition = { kind = "dirichlet", alpha = 0.5, min_size = 20 }
validation = 0.2
[model]
kind = "linear"
[train]
rounds = 6
steps = 2
lr = 0.2
[run]
eval_every = 2
checkpoint_every = 2
"""
AUDIT = """
[audit]
methods = ["fedavg", { name = "fedprox", mu = 1.0 }]
seeds = [0, 1]
alone_epochs = 3
"""
MORTAL = '''
"""FedAvg, whose first process dies in its fourth round."""
import os, signal
from dataclasses import dataclass
from pathlib import Path
from equipoise.core import Aggregator, Method

ROUNDS, DIED = Path(__file__).with_name("rounds"), Path(__file__).with_name("died")

@dataclass(frozen=True)
class Once(Aggregator):
    def combine(self, cohort):
        with ROUNDS.open("a") as file:
            file.write(str(cohort.round))
        if cohort.round == 3 and not DIED.exists():
            DIED.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return cohort.updates.mean(0)

def mortal() -> Method:
    return Method("mortal", server=Once())
'''


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ray]:
    """A Ray that is open already: starting one takes long."""
    ray = pytest.importorskip("ray")
    os.environ.update(RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_USAGE_STATS_ENABLED="0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield Ray()
    assert ray.is_initialized()  # a connection that we did not open is not ours to close
    ray.shutdown()


@pytest.fixture(scope="module")
def done(cluster: Ray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audit") / "out"
    assert run_audit(load_plan(AUDIT + RUN), out, engine=cluster) == {}
    return out


def written(out: Path) -> dict[Path, int]:
    """When each file was written; not those that say who looked last."""
    found = [p for p in out.rglob("*") if p.is_file() and p.name not in (".lock", "status.json")]
    return {p: p.stat().st_mtime_ns for p in found}


@pytest.mark.slow
def test_an_audit_on_ray_ends_in_the_report_of_one_without_to_the_byte(done: Path, tmp_path: Path) -> None:
    here = audit(AUDIT + RUN, tmp_path / "here")
    assert set(here.cells["status"]) == {"done"} and len(here.cells) == 4
    both = (here, gather(load_plan(AUDIT + RUN), done))
    pages = [write_report(d.without_times(), tmp_path / f"{i}.html").read_bytes() for i, d in enumerate(both)]
    assert pages[0] == pages[1]


@pytest.mark.slow
def test_an_audit_that_is_finished_runs_nothing_again(cluster: Ray, done: Path) -> None:
    before = written(done / "cells") | written(done / "alone")
    seen: list[str] = []
    run_audit(load_plan(AUDIT + RUN), done, engine=cluster, report=lambda step: seen.append(step.what))
    assert len(seen) == 6
    assert written(done / "cells") | written(done / "alone") == before


@pytest.mark.slow
def test_a_job_whose_process_is_killed_is_done_again_from_its_checkpoint(cluster: Ray, tmp_path: Path) -> None:
    own = tmp_path / "mortal.py"
    own.write_text(MORTAL)
    registry.load_file(own, "methods")
    plan = load_plan('[audit]\nmethods = ["mortal"]\nseeds = [0]\nalone_epochs = 3\n' + RUN)
    assert run_audit(plan, tmp_path / "ray", engine=replace(cluster, own=(own,))) == {}
    assert int((tmp_path / "died").read_text()) != os.getpid()
    assert (tmp_path / "rounds").read_text() == "0123" + "2345"
    assert run_audit(plan, tmp_path / "here") == {}
    for name in ("summary.json", "model.safetensors", "clients.parquet"):
        one, other = (tmp_path / out / "cells" / plan.cells[0].name / name for out in ("ray", "here"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_what_a_job_raises_is_told_as_without_ray(cluster: Ray, tmp_path: Path) -> None:
    own = tmp_path / "broken.py"
    own.write_text(
        "from equipoise.core import Aggregator, Method\n"
        "class No(Aggregator):\n    def combine(self, cohort):\n        raise RuntimeError('this is broken')\n"
        "def broken() -> Method:\n    return Method('broken', server=No())\n"
    )
    registry.load_file(own, "methods")
    plan = load_plan('[audit]\nmethods = ["fedavg", "broken"]\nseeds = [0]\nalone_epochs = 3\n' + RUN)
    errors = run_audit(plan, tmp_path / "ray", engine=Ray(workers=1, own=(own,)))
    assert errors == run_audit(plan, tmp_path / "here") == {plan.cells[1].name: "RuntimeError: this is broken"}


@pytest.mark.slow
def test_a_sweep_on_ray_chooses_what_one_without_chooses(cluster: Ray, tmp_path: Path) -> None:
    grid = load_grid(RUN + '[method]\nname = "fedprox"\nmu = [0.01, 50.0]\n')
    there, here = run_grid(grid, tmp_path / "ray", engine=cluster), run_grid(grid, tmp_path / "here")
    assert (there.settings, there.scores) == (here.settings, here.scores)
    assert (tmp_path / "ray/sweep.json").read_bytes() == (tmp_path / "here/sweep.json").read_bytes()


@pytest.mark.slow
def test_ctrl_c_ends_the_round_saves_it_and_leaves_no_process(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "audit.toml").write_text(AUDIT + RUN.replace("rounds = 6", "rounds = 100000"))
    code = "from equipoise.cli import main; main()"
    options = ["audit.toml", "--out", "out", "--engine", "ray", "--workers", "1"]
    process = subprocess.Popen([sys.executable, "-c", code, "audit", *options], cwd=tmp_path, start_new_session=True)
    cell = next(iter(load_plan(tmp_path / "audit.toml").cells)).name
    while not list(tmp_path.glob(f"out/cells/{cell}/checkpoint/*")):
        assert process.poll() is None
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130
    status = files.read_json(tmp_path / "out" / "cells" / cell / "status.json")
    assert status["state"] == "interrupted"
    assert load_result(tmp_path / "out" / "cells" / cell).note
    for _ in range(50):  # the kernel may take a moment to bury them
        if not in_session(process.pid):
            break
        time.sleep(0.2)
    assert in_session(process.pid) == []


def in_session(leader: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(path.parent.joinpath("comm").read_text().strip())
    return found


# ------------------------------------------------------------------------------------------------- without Ray


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EquipoiseError, match="Ray is not installed") as told:
        next(Ray().ended({"one": print}))
    assert "equipoise[ray]" in told.value.hint


def test_no_jobs_need_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert list(Ray().ended({})) == []


def test_an_address_without_the_engine_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="--ray-address"):
        engine_of(Where.local, "10.0.0.1:6379", None)
    assert engine_of(Where.ray, "10.0.0.1:6379", None) == Ray("10.0.0.1:6379")
