"""What the adapter costs on Flower: seconds per round, Equipoise against a bare Flower app with as many messages.

Both run FedAvg of a tiny model on three clients, the same SuperLink, SuperNodes and messages per round, one after the
other, in turn, on a machine that should do nothing else. The bare app is what one would write by hand: torch, one
message a round to every client, `send_and_receive`. The first round of either is left out (nodes fetch the app in it).

    python benchmarks/flower_overhead.py [ROUNDS [TURNS]]

Needs `pip install equipoise[flower]`. A round costs 5 to 20 s, nearly all of it Flower's own.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from equipoise import config
from equipoise.flower import local, writing

CONFIG = """
[method]
name = "fedavg"
[data]
dataset = "digits"
clients = 3
[model]
kind = "mlp"
hidden = [16]
[train]
rounds = {rounds}
lr = 0.1
[run]
executor = "loop"
replay = "off"
device = "cpu"
eval_every = 0
"""
SERVER = """
import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp

from federation.task import net

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < 3:
        time.sleep(1)
    w, times = net().state_dict(), []
    for round in range({rounds}):
        began = time.monotonic()
        record = ArrayRecord(w)
        messages = [
            Message(RecordDict({{"arrays": record, "facts": ConfigRecord({{"round": round}})}}), node, "train")
            for node in grid.get_node_ids()
        ]
        replies = list(grid.send_and_receive(messages, timeout=300))
        found = [(r.content["metrics"]["n"], r.content["arrays"].to_torch_state_dict()) for r in replies]
        total = sum(n for n, _ in found)
        w = {{name: sum(n * other[name] for n, other in found) / total for name in w}}
        times.append(time.monotonic() - began)
    Path("{out}").write_text(json.dumps(times))
"""
CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federation.task import net, samples

app = ClientApp()


@app.train()
def train(message, context):
    torch.set_num_threads(1)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = samples(context.node_config["partition-id"])
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.randperm(len(x)).split(10):
        step.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        step.step()
    told = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"n": len(x)})}
    return Message(RecordDict(told), reply_to=message)
"""
TASK = """
import torch
from equipoise.data import load


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))


def samples(client):
    data = load("digits")
    return data.x[client::3].float() * data.scale, data.y[client::3]
"""


def bare(folder: Path, rounds: int) -> list[float]:
    chosen, out = config.load(CONFIG.format(rounds=rounds)), folder / "times.json"
    with local.prepared(chosen, folder / "bare") as here:
        app = writing.new(here.work / "app", chosen, folder / "bare", 300, here.roster())
        texts = {"server_app": SERVER.format(rounds=rounds, out=out), "client_app": CLIENT, "task": TASK}
        for name, text in texts.items():
            (app / "federation" / f"{name}.py").write_text(text)
        local.start(here)
        here.submit(app)
        deadline = time.monotonic() + 60 * (rounds + 2)
        while not out.exists():
            if time.monotonic() > deadline:
                sys.exit(f"the bare app did not finish; logs are in {here.work}")
            time.sleep(1)
    return list(json.loads(out.read_text()))[1:]


def adapter(folder: Path, rounds: int) -> list[float]:
    local.run(config.load(CONFIG.format(rounds=rounds)), folder / "far", limit=60 * (rounds + 2))
    timings = json.loads((folder / "far" / "timings.json").read_text())["rounds"]
    return [row["train"] for row in timings][1:]


def main() -> None:
    rounds, turns = (int(a) for a in (*sys.argv[1:], "6", "2")[:2])
    found: dict[str, list[float]] = {"bare": [], "adapter": []}
    for turn in range(turns):
        for name, measure in {"bare": bare, "adapter": adapter}.items():
            with tempfile.TemporaryDirectory() as folder:
                times = measure(Path(folder), rounds)
            found[name] += times
            print(f"turn {turn}, {name}: {' '.join(f'{t:.1f}' for t in times)} s", flush=True)
    middle = {name: statistics.median(times) for name, times in found.items()}
    print(f"median per round: bare {middle['bare']:.2f} s, adapter {middle['adapter']:.2f} s")
    print(f"ratio {middle['adapter'] / middle['bare']:.2f}")


if __name__ == "__main__":
    main()
