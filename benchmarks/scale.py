"""Whether a round's cost depends on the cohort alone, not on the number of clients nor on that of the round.

    python benchmarks/scale.py clients [--most 1000000] [--method fedavg] [--device cpu] [--picture scale.svg]
    python benchmarks/scale.py rounds [--rounds 5000] [--method fedavg ditto fedlf rffl]

`clients`: N = 10^3 to 10^6 clients, each with 60 of the same 60,000 random samples of MNIST's size; 1,000 are drawn per
round and take one step on 20 of them; an MLP 784-32-10. Every N runs in a process of its own. `rounds`: 20 clients of
the embedded digits, 5 per round, a linear model; time and memory by tenths of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import equipoise as eq
from equipoise import registry
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.models import build
from equipoise.streams import Stream

SAMPLES, HELD, COHORT, WARM, TIMED = 60_000, 60, 1000, 3, 10


def resident() -> float:
    """MiB of memory in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def shared_data(n: int) -> Federation:
    """n clients with 60 samples each, in ranges that overlap: a client costs three numbers."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (SAMPLES, 1, 28, 28), dtype=torch.uint8, generator=g)
    y = torch.randint(0, 10, (SAMPLES,), generator=g)
    start = torch.randint(0, SAMPLES - HELD, (n,), generator=g)
    train = Split(torch.arange(SAMPLES), start, torch.full((n,), HELD))
    none = Split(
        torch.empty(0, dtype=torch.int64), torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
    )
    return Federation(Dataset("random", x, y, 10, 1 / 255), {"train": train, "validation": none, "test": none})


def one(n: int, method: str, device: str) -> dict[str, float]:
    torch.set_num_threads(1)
    federation = shared_data(n)
    model = build("mlp", (1, 28, 28), 10, Stream(0).child("init"), hidden=(32,))
    train = Train(rounds=WARM + TIMED, steps=1, batch=20, lr=0.05)
    scenario = Scenario(federation, model, train, Participation(per_round=COHORT))
    simulation = Simulation(scenario, registry.get("methods", method).make(), Run(device=device))
    for _ in range(WARM):
        simulation.step()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(TIMED):
        simulation.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    ms = 1000 / TIMED
    return {
        "clients": n,
        "wall_ms": (time.perf_counter() - wall) * ms,
        "cpu_ms": (time.process_time() - cpu) * ms,
        "mib": resident(),
    }


def clients(given: argparse.Namespace) -> None:
    rows = []
    print(f"{given.method[0]}, {COHORT} of N clients per round")
    print(f"{'N':>9}{'CPU ms a round':>16}{'wall ms':>10}{'resident MiB':>14}", flush=True)
    n = 1000
    while n <= given.most:
        command = [sys.executable, __file__, "clients", "--only", str(n), "--device", given.device, "--method"]
        found = subprocess.run([*command, given.method[0]], capture_output=True, text=True, check=True)
        rows.append(json.loads(found.stdout.splitlines()[-1]))
        print("{clients:9d}{cpu_ms:16.1f}{wall_ms:10.1f}{mib:14.0f}".format(**rows[-1]), flush=True)
        n *= 10
    first, last = rows[0], rows[-1]
    print(
        f"most / fewest: {last['cpu_ms'] / first['cpu_ms']:.2f} x CPU time, {last['mib'] / first['mib']:.2f} x memory"
    )
    if given.picture:
        draw(rows, given.picture, given.method[0])


def draw(rows: list[dict[str, float]], path: Path, method: str) -> None:
    """Both curves over the number of registered clients, both axes of each logarithmic."""
    from plotly.graph_objects import Figure, Scatter
    from plotly.subplots import make_subplots

    figure: Figure = make_subplots(1, 2, subplot_titles=("CPU ms a round", "resident memory, MiB"))
    for column, name in enumerate(("cpu_ms", "mib"), 1):
        x, y = [r["clients"] for r in rows], [r[name] for r in rows]
        figure.add_trace(Scatter(x=x, y=y, mode="lines+markers", showlegend=False), row=1, col=column)
    figure.update_xaxes(type="log", title="registered clients")
    figure.update_yaxes(type="log", rangemode="tozero")
    for axis, name in (("yaxis", "cpu_ms"), ("yaxis2", "mib")):
        top = max(r[name] for r in rows)
        figure.layout[axis].update(range=[torch.tensor(top / 20).log10().item(), torch.tensor(top * 5).log10().item()])
    figure.update_layout(title=f"{method}: {COHORT} clients per round, N registered", width=900, height=380)
    figure.write_image(path)


def rounds(given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    federation = eq.partition(eq.load("digits"), "dirichlet", alpha=0.5, clients=20, test=0.2)
    blocks = 10
    for method in given.method:
        model = build("linear", (1, 8, 8), 10, Stream(0).child("init"))
        train = Train(rounds=given.rounds, steps=2, batch=10, lr=0.05, lr_decay=0.9995)
        scenario = Scenario(federation, model, train, Participation(per_round=5))
        simulation = Simulation(scenario, registry.get("methods", method).make(), Run(device=given.device))
        found = []
        for _ in range(blocks):
            cpu = time.process_time()
            for _ in range(given.rounds // blocks):
                simulation.step()
            found.append((1000 * (time.process_time() - cpu) / (given.rounds // blocks), resident()))
        times = " ".join(f"{ms:.2f}" for ms, _ in found)
        print(f"{method}: {given.rounds} rounds, CPU ms a round by tenths: {times}")
        grown = found[-1][1] - found[1][1]
        print(f"  last / second: {found[-1][0] / found[1][0]:.2f} x the time, {grown:+.1f} MiB", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("clients", "rounds"))
    options.add_argument("--most", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=5000)
    options.add_argument("--method", nargs="+", default=["fedavg"])
    options.add_argument("--device", default="cpu")
    options.add_argument("--picture", type=Path)
    options.add_argument("--only", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.only:
        print(json.dumps(one(given.only, given.method[0], given.device)))
    elif given.what == "clients":
        clients(given)
    else:
        rounds(given)


if __name__ == "__main__":
    main()
