"""Whole FedAvg rounds on a GPU: milliseconds per cohort step, what a round adds to it, and one client after the other.

    python benchmarks/gpu_round.py [--device cuda] [--rounds 20] [--methods] [--models]

Random images of Fashion-MNIST's size, 600 samples per client, one local epoch. For every model and cohort, in one run:

- *step*: the wall time of whole rounds in a row (drawing, batches, gathering, training, admission, aggregation,
  bookkeeping) divided by their local steps: the median of five times --rounds, and from which to which
- *training*: the time of local training alone, by CUDA events around it, divided by the same steps
- *whole / training*: what everything else costs
- *one by one*: the same rounds with one client after the other, nothing recorded; the ratio to *step*

With --methods: rounds of FedAvg, FedLF, Ditto, FedTilt and RFFL (MLP, 10 of 100 clients, batch 50: FedLF's Table 1)
against the time of their own local training, which is that of their gradients and of the losses that they report; and
of RFFL as in its paper (ten participants, all of them in every round, its CNN, batch 16), where nobody is removed: on
random images nobody agrees with anybody; and of FedLF with its paper's CNN for CIFAR-10.

With --models: steps of the papers' CNNs (FedAvg, ten clients, their papers' batches), with kernels of their own for
convolutions and with grouped ones, in turn; and how far the models of a round in float32 are from each other.

The models of both ways are compared before any time is printed, in float64: in float32 one unit of a ReLU that rounding
moves across zero makes two runs on random images part company.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from equipoise import registry
from equipoise.core import Method
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine import convolutions
from equipoise.engine.clients import Executor
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Participation, Run, Train
from equipoise.models import build
from equipoise.streams import Stream

N, CLIENTS = 600, 100
METHODS: dict[str, dict[str, float]] = {
    **{"fedavg": {}, "fedlf": {}, "ditto": {"lam": 1.0}, "fedtilt": {}},
    "rffl": {"grace": 1 << 30},
}
BATCHES = {"cnn-rffl": 16, "cnn-ditto": 16, "cnn-femnist": 16, "cnn-fedlf": 50, "cnn-rffl-cifar": 64, "cnn-fedtilt": 10}
SHAPES = dict.fromkeys(("cnn-fedlf", "cnn-rffl-cifar", "cnn-fedtilt"), (3, 32, 32))
CASES = [("mlp", 10, 10), ("mlp", 100, 50), ("cnn", 10, 10), ("cnn", 100, 50)]


def federation(clients: int = CLIENTS, shape: tuple[int, ...] = (1, 28, 28)) -> Federation:
    g = Stream(0).torch()
    x = torch.randint(256, (clients * N, *shape), generator=g, dtype=torch.uint8)
    y = torch.randint(10, (clients * N,), generator=g)
    nobody = Split.of([torch.empty(0, dtype=torch.int64)] * clients)
    train = Split.of(list(torch.split(torch.arange(clients * N), N)))
    return Federation(Dataset("random", x, y, 10, 1 / 255), {"train": train, "validation": nobody, "test": nobody})


def model(name: str) -> nn.Module:
    if name == "mlp":
        return build("mlp", (1, 28, 28), 10, Stream(1), hidden=(200, 200))
    if name != "cnn":
        return build(name, SHAPES.get(name, (1, 28, 28)), 10, Stream(1))
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def simulation(
    fed: Federation,
    name: str,
    cohort: int,
    batch: int,
    device: str,
    executor: str,
    replay: str,
    dtype: str = "float32",
    method: Method | None = None,
) -> Simulation:
    scenario = Scenario(fed, model(name), Train(rounds=1000, batch=batch, lr=0.05), Participation(per_round=cohort))
    run = Run(device=device, executor=executor, replay=replay, dtype=dtype)  # type: ignore[arg-type]
    return Simulation(scenario, method or Method(), run)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(job: Callable[[], object], device: str) -> float:
    wait(device)
    began = time.perf_counter()
    job()
    wait(device)
    return time.perf_counter() - began


def per_round(sim: Simulation, device: str, rounds: int) -> list[float]:
    """Seconds, five times: of so many rounds in a row, as in a run, where one begins while the last is taken over."""

    def some() -> None:
        for _ in range(rounds):
            sim.step()

    return [timed(some, device) / rounds for _ in range(5)]


class Clock:
    """Adds up the time of local training, as the device sees it."""

    def __init__(self, device: str) -> None:
        self.device, self.spans, self.whole = device, [], Executor.run  # type: ignore[var-annotated]

    def __enter__(self) -> Clock:
        clock = self

        def run(self: Executor, *args: object) -> object:
            began = clock._mark()
            done = clock.whole(self, *args)  # type: ignore[arg-type]
            clock.spans.append((began, clock._mark()))
            return done

        Executor.run = run  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Executor.run = self.whole  # type: ignore[method-assign]

    def _mark(self) -> object:
        if self.device != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> float:
        wait(self.device)
        spans = self.spans
        if self.device != "cuda":
            return sum(b - a for a, b in spans)
        return sum(a.elapsed_time(b) for a, b in spans) / 1000


def distance(fed: Federation, name: str, cohort: int, batch: int, device: str) -> float:
    """Of the two ways' updates after a round, in float64, relative to their length."""
    ends = []
    for executor, replay in (("vmap", "on"), ("loop", "off")):
        made = simulation(fed, name, cohort, batch, device, executor, replay, "float64")
        made.step()
        ends.append(made.server.w - made.simulator.w0)
    return float((ends[0] - ends[1]).norm() / ends[1].norm())


def case(fed: Federation, name: str, cohort: int, batch: int, device: str, rounds: int) -> None:
    fast = simulation(fed, name, cohort, batch, device, "vmap", "on")
    slow = simulation(fed, name, cohort, batch, device, "loop", "off")
    first = timed(fast.step, device)
    slow.step()
    away = distance(fed, name, cohort, batch, device)
    steps = -(-N // batch)
    for _ in range(9):  # until graphs are made
        fast.step()
    each = per_round(fast, device, rounds)
    with Clock(device) as clock:
        for _ in range(rounds):
            fast.step()
        training = clock.seconds() / rounds
    one = statistics.median([timed(slow.step, device) for _ in range(2)])
    whole = statistics.median(each)
    ms = 1000 / steps
    print(
        f"{name} C={cohort} B={batch}: step {whole * ms:.3f} ms ({min(each) * ms:.3f}-{max(each) * ms:.3f}), training "
        f"{training * ms:.3f}, whole/training {whole / training:.2f}, one by one {one * ms:.2f} = {one / whole:.0f} x, "
        f"first round {first:.1f} s, distance {away:.1e}",
        flush=True,
    )
    reasons = fast.simulator.replay.reasons if fast.simulator.replay else {}
    if reasons:
        print("   not as recorded:", reasons)


def rounds_of(fed: Federation, name: str, net: str, batch: int, device: str, rounds: int) -> None:
    """Whole rounds of a method against its own training."""
    made = registry.get("methods", name).make(**METHODS[name])
    sim = simulation(fed, net, 10, batch, device, "vmap", "on", method=made)
    for _ in range(100):  # until everyone has been drawn, FedLF remembers all, and graphs are made
        sim.step()
    each = per_round(sim, device, rounds)
    with Clock(device) as clock:
        for _ in range(rounds):
            sim.step()
        training = 1000 * clock.seconds() / rounds
    whole = 1000 * statistics.median(each)
    kind = f"{name}, {net}, 10 of {fed.n_clients}, batch {batch}"
    print(f"{kind}: round {whole:.2f} ms, its training {training:.2f} = {whole / training:.2f} x", flush=True)


@contextmanager
def grouped() -> Iterator[None]:
    """As if there were no kernels for convolutions."""
    known = convolutions.why_not
    convolutions.why_not = lambda device: "a benchmark"  # type: ignore[assignment]
    try:
        yield
    finally:
        convolutions.why_not = known


def both_ways(name: str, device: str, rounds: int) -> None:
    """Steps of a CNN with kernels of their own, and grouped."""
    fed, batch = federation(10, SHAPES.get(name, (1, 28, 28))), BATCHES[name]
    ours, theirs = (simulation(fed, name, 10, batch, device, "vmap", "on") for _ in range(2))
    first = timed(ours.step, device)
    with grouped():  # a step is recorded in the first round
        theirs.step()
    moved = [sim.server.w - sim.simulator.w0 for sim in (ours, theirs)]
    away = float((moved[0] - moved[1]).norm() / moved[1].norm())
    each = [(timed(ours.step, device), timed(theirs.step, device)) for _ in range(rounds)]
    new, old = (1000 * statistics.median(column) / -(-N // batch) for column in zip(*each, strict=True))
    print(f"{name} B={batch}: distance after a round {away:.0e}; first round {first:.1f} s", flush=True)
    print(f"  step {new:.3f} ms, grouped {old:.3f} = {old / new:.2f} x", *ours.remarks, flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cuda")
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--cases", type=int, default=len(CASES))
    options.add_argument("--methods", action="store_true")
    options.add_argument("--models", action="store_true")
    given = options.parse_args()
    if given.models:
        for name in BATCHES:
            both_ways(name, given.device, given.rounds)
        return
    fed = federation()
    if given.methods:
        for name in METHODS:
            rounds_of(fed, name, "mlp", 50, given.device, given.rounds)
        rounds_of(federation(10), "rffl", "cnn-rffl", 16, given.device, given.rounds)
        rounds_of(federation(shape=(3, 32, 32)), "fedlf", "cnn-fedlf", 50, given.device, given.rounds)
        return
    for name, cohort, batch in CASES[: given.cases]:
        case(fed, name, cohort, batch, given.device, given.rounds)


if __name__ == "__main__":
    main()
