"""One federated run, carried out by Equipoise and by other simulators: CPU seconds, wall time, memory.

    python benchmarks/against_others.py [--envs FOLDER] [--rounds 20] [--repeats 5] [--only bmm,pfl]

100 clients x 60 samples of MNIST's size, MLP 784-200-200-10, batch 10, one local epoch, plain SGD with lr 0.01, 10
clients a round, mean weighted by size. Who is drawn, every batch and the initial weights are worked out once, by
Equipoise, and given to all; the final models are compared before any time is printed, and a system whose model is
another is not timed. CPU seconds are those of all processes of a system, wherever they hang (`_others/common.py`).
The first rounds (imports, worker processes, compilers) are start-up, and reported apart. One thread per operation;
repeats take turns; medians, and the spread.

Every other system gets a virtual environment of its own in FOLDER, made with pip when it is first needed. What cannot
be installed, or fails, is reported as that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "_others"))

import ours
from common import FOLDER, WORD, Problem, memory

from equipoise.at import Schedule
from equipoise.engine.batches import plan_batches
from equipoise.engine.participation import Participants
from equipoise.modules import weights
from equipoise.streams import Stream

HERE = Path(__file__).resolve().parent / "_others"
TORCH = "torch==2.13.0"  # first and alone: an open range would fetch gigabytes for GPUs


@dataclass(frozen=True)
class Setting:
    model: str = "mlp"
    rounds: int = 20
    warm: int = 3
    clients: int = 100
    samples: int = 60
    per_round: int = 10
    batch: int = 10
    lr: float = 0.01  # so small that a sample at the edge of a ReLU does not take a run elsewhere in float32


@dataclass(frozen=True)
class System:
    """A script in `_others`, and what it needs installed; nothing: it runs in this environment."""

    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
FEDLAB_USES = ("pynvml", "munch", "pandas", "scikit-learn", "tqdm", "pillow")  # torchvision wants a torch for GPUs
SYSTEMS = {
    "ours": System("ours"),
    "ours-loop": System("ours", ("--executor", "loop")),
    "bmm": System("bmm"),
    "bare": System("bare"),
    "pfl": System("pfl_torch", (), ((TORCH, "numpy"), ("pfl==0.6.0",))),
    "fedjax": System("fedjax_run", (), (("fedjax==0.0.17",),), {"XLA_FLAGS": ONE_THREAD, "JAX_PLATFORMS": "cpu"}),
    "flwr": System("flower", (), ((TORCH, "numpy"), ("flwr[simulation]==1.41.0",)), QUIET),
    "fedlab": System("fedlab_run", (), ((TORCH, "numpy"), ("--no-deps", "fedlab==1.3.0"), FEDLAB_USES)),
}


# ------------------------------------------------------------------------------------------- the problem


def export(setting: Setting) -> Problem:
    """The run, drawn as our own engine draws it with seed 0."""
    g = Stream(0).torch()
    n = setting.clients * setting.samples
    x, y = torch.rand((n, 1, 28, 28), generator=g) - 0.5, torch.randint(10, (n,), generator=g)
    fed = ours.federation(x, y, setting.clients)
    world = ours.scenario(fed, setting.model, setting.rounds, setting.per_round, setting.batch, setting.lr)
    people = Participants(world.participation, fed.sizes, Stream(0))
    nobody_out = torch.zeros(setting.clients, dtype=torch.bool)
    drawn = [people.draw(t, nobody_out) for t in range(setting.rounds)]
    index = []
    for t, ids in enumerate(drawn):
        stream = Stream(0).child("batch", t)
        index.append(plan_batches(fed.splits["train"], ids, Schedule(1, None, setting.batch), stream).index[:, 0])
    return Problem(
        x.numpy(),
        y.numpy(),
        torch.stack(drawn).numpy(),
        torch.stack(index).transpose(1, 2).contiguous().numpy(),
        fed.sizes.numpy(),
        {n: w.detach().numpy() for n, w in weights(world.model).items()},
        setting.model,
        setting.lr,
        setting.warm,
    )


def write(given: Problem, folder: Path) -> None:
    arrays = {n: getattr(given, n) for n in ("x", "y", "drawn", "index", "sizes")}
    told = {"model": given.model, "lr": given.lr, "warm": given.warm}
    named = {f"w:{n}": w for n, w in given.weights.items()}
    np.savez(folder / "problem.npz", **arrays, **named, told=np.array(json.dumps(told)))  # type: ignore[arg-type]


def apart(given: Problem, a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The distance of two models, relative to how far the second is from the start."""

    def flat(model: dict[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([np.asarray(model[n], np.float64).ravel() for n in given.weights])

    return float(np.linalg.norm(flat(a) - flat(b)) / np.linalg.norm(flat(b) - flat(given.weights)))


# ------------------------------------------------------------------------------------------- environments


def python_of(name: str, system: System, envs: Path) -> str:
    """The interpreter that has what the system needs; installs it if nobody has."""
    if not system.needs:
        return sys.executable
    home = envs / system.script
    python, ready = str(home / "bin" / "python"), home / "installed"
    if not ready.exists():
        shutil.rmtree(home, ignore_errors=True)
        print(f"{name}: installing {' '.join(' '.join(n) for n in system.needs)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        for packages in system.needs:
            done = subprocess.run([python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"cannot be installed: {last_line(done.stderr)}")
        ready.touch()
    return python


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


# ------------------------------------------------------------------------------------------- one measurement


@dataclass(frozen=True)
class Measured:
    startup_cpu: float
    startup_wall: float
    cpu: float
    wall: float
    peak: float
    end: dict[str, np.ndarray]
    versions: dict[str, str]


def measure(python: str, system: System, given: Problem, limit: float) -> Measured:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder, word = Path(name), uuid.uuid4().hex
        write(given, folder)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        extra = {**threads, WORD: word, FOLDER: name, "PYTHONPATH": str(HERE), "HOME": name, **system.environment}
        command = [python, str(HERE / f"{system.script}.py"), name, *system.arguments]
        began, peak = time.time(), 0
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(command, env={**os.environ, **extra}, stdout=log, stderr=log, cwd=folder)
            while process.poll() is None:
                if time.time() - began > limit:
                    process.kill()
                peak = max(peak, memory(word))
                time.sleep(0.1)
        if process.returncode or not (folder / "told.json").exists():
            raise RuntimeError(f"failed: {last_line((folder / 'log').read_text())}")
        told = json.loads((folder / "told.json").read_text())
        with np.load(folder / "end.npz") as file:
            end = {n: file[n] for n in file.files}
        (ready_cpu, ready), (done_cpu, done) = told["marks"]["ready"], told["marks"]["done"]
        rounds = given.rounds - given.warm
        return Measured(
            ready_cpu,
            ready - began,
            (done_cpu - ready_cpu) / rounds,
            (done - ready) / rounds,
            peak / 2**20,
            end,
            told["versions"],
        )


def spread(values: Sequence[float], digits: int = 1) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def collect(names: Sequence[str], given: Problem, envs: Path, repeats: int, limit: float) -> dict[str, list[Measured]]:
    """Everyone in turn, `repeats` times; whoever fails, or ends elsewhere than the bare loop, is out."""
    pythons, found = {}, {name: [] for name in names}

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"{name}: not compared; {error}", flush=True)
            found.pop(name)

    for name in names:
        attempt(name, lambda n=name: pythons.__setitem__(n, python_of(n, SYSTEMS[n], envs)))
    for repeat in range(repeats):
        for name in list(found):
            attempt(name, lambda n=name: found[n].append(measure(pythons[n], SYSTEMS[n], given, limit)))
            if repeat == 0 and name in found:
                away = apart(given, found[name][0].end, found["bare"][0].end)
                print(f"{name:12} distance from the bare loop's model, relative to the way: {away:.1e}", flush=True)
                if not away < 1e-3:
                    print(f"{name}: not timed; it trained another model", flush=True)
                    found.pop(name)
            if name in found:  # so that a run that is stopped early is not lost
                print(f"repeat {repeat + 1}, {name}: {1000 * found[name][-1].cpu:.1f} CPU ms a round", file=sys.stderr)
    return found


def table(found: dict[str, list[Measured]]) -> None:
    if "ours" not in found:
        raise SystemExit("ours is out (see above): there is nothing to compare the others with")
    heads = ("CPU ms a round", "x ours", "wall ms", "start-up CPU s", "peak MiB")
    print("\n" + " " * 10 + "".join(f"{head:>28}" for head in heads))
    for name, runs in found.items():
        ratios = [a.cpu / b.cpu for a, b in zip(runs, found["ours"], strict=True)]
        cells = [spread([1000 * r.cpu for r in runs]), spread(ratios, 2), spread([1000 * r.wall for r in runs])]
        cells += [spread([r.startup_cpu for r in runs]), spread([r.peak for r in runs], 0)]
        print(f"{name:10}" + "".join(f"{cell:>28}" for cell in cells))
    print("\nversions: " + "; ".join(f"{n}: {runs[0].versions}" for n, runs in found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "equipoise" / "benchmarks"
    parser.add_argument("--envs", type=Path, default=cache, help=f"where virtual environments are kept ({cache})")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help=f"some of {', '.join(SYSTEMS)}; bare and ours are always there")
    parser.add_argument("--limit", type=float, default=300, help="seconds that one run may take")
    asked = parser.parse_args()
    chosen = {n.strip() for n in asked.only.split(",")} if asked.only else set(SYSTEMS)
    names = ["bare", "ours", *(n for n in SYSTEMS if n in chosen and n not in ("bare", "ours"))]
    given = export(Setting(rounds=asked.rounds))
    asked.envs.mkdir(parents=True, exist_ok=True)
    print(f"{asked.rounds} rounds, of which {given.warm} are start-up; {asked.repeats} repeats\n", flush=True)
    table(collect(names, given, asked.envs.resolve(), asked.repeats, asked.limit))


if __name__ == "__main__":
    main()
