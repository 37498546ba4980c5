"""Real processes: a SuperLink and SuperNodes on loopback end with the simulator's bits; helpers for its siblings."""

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise import config, experiment, files
from equipoise.engine.messages import Parcel, Raw
from equipoise.engine.run import Simulation
from equipoise.results import load_result

MARKS = [
    pytest.mark.flower,
    pytest.mark.skipif(find_spec("flwr") is None, reason="flwr is not installed"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Flower's own
]
pytestmark = MARKS

CONFIG = """
[method]
{method}
[data]
dataset = "digits"
clients = {clients}
validation = 0.1
[model]
kind = "mlp"
hidden = [16]
[train]
rounds = {rounds}
lr = 0.1
{more}
[run]
executor = "loop"
replay = "off"
device = "cpu"
eval_every = 0
"""
METHODS = {
    **{name: f'name = "{name}"' for name in ("fedavg", "ditto", "fedtilt", "fedlf", "rffl")},
    "eagle": 'name = "eagle"\nwindow = 2\ncap = 4',
    "krum": 'name = "fedavg"\nserver = { name = "krum", f = 1 }',
}


def wanted(method: str = "fedavg", clients: int = 4, rounds: int = 3, more: str = "") -> config.Config:
    return config.load(CONFIG.format(method=METHODS[method], clients=clients, rounds=rounds, more=more))


def simulated(chosen: config.Config, missing: Iterable[tuple[int, int]] = ()) -> Simulation:
    """The run in one process, without the clients that were missing: (round, client)."""
    made = experiment.build(chosen)
    near = Simulation(made.scenario, made.method, made.run)
    gone = set(missing)
    for round in range(chosen.train.rounds):
        away = torch.tensor([(round, k) in gone for k in range(near.n_clients)])
        near.server.excluded, near.server._next = away, (-1, near.server._next[1])
        near.step()
    near.finish()
    return near


def has_bits_of(near: Simulation, out: Path) -> None:
    """The run folder's model is the simulator's, and so is what clients keep."""
    model, _ = files.read_tensors(out / "model.safetensors")
    assert all(torch.equal(t, model[n]) for n, t in near.server.layout.tensors(near.server.w).items())
    for k in near.simulator.store.ids().tolist():
        (path,) = (out.with_name(out.name + ".flower") / f"client-{k}").glob("*.safetensors")
        kept, _ = files.read_tensors(path)
        own = near.simulator.store.get(torch.tensor([k]))
        assert own and all(torch.equal(t, kept[f"after/{n}"]) for n, t in own.items()), k


def missing(out: Path) -> dict[tuple[int, int], str]:
    """{(round, client): why} of all that did not count in a finished run."""
    rounds = load_result(out).rounds
    told = [(int(r), json.loads(info)["quarantined"]) for r, info in zip(rounds["round"], rounds["info"], strict=True)]
    return {(r, int(k)): why for r, quarantined in told for k, why in quarantined.items()}


def processes(folder: Path) -> list[str]:
    """What still runs with this folder in its command line."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(folder) in line]


def until(ready: Callable[[], bool], what: str, patience: float = 300.0) -> None:
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not happen in {patience} s"
        time.sleep(0.2)


@pytest.mark.parametrize("name", METHODS)
def test_a_deployed_run_ends_with_the_simulators_bits(name: str, tmp_path: Path) -> None:
    from equipoise.flower import local

    chosen = wanted(name)
    local.run(chosen, tmp_path / "far", limit=800)
    assert processes(tmp_path) == []
    has_bits_of(simulated(chosen), tmp_path / "far")


APP_DATA = """
from equipoise.flower.sites import Own

def load(node):
    import numpy as np
    with np.load("{folder}/site-%d.npz" % node["partition-id"]) as held:
        return held["x"], held["y"]

own = Own(load, shape=(5,), classes=3)
"""


def test_every_site_loads_its_own_data_and_the_server_none(tmp_path: Path) -> None:
    from equipoise.flower import local, writing

    rng = np.random.default_rng(0)
    sizes = (40, 60)
    for k, n in enumerate(sizes):
        x = rng.normal(size=(n, 5)).astype(np.float32)
        np.savez(tmp_path / f"site-{k}.npz", x=x, y=(x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 1))
    chosen, out = wanted(clients=2, rounds=2), tmp_path / "far"
    with local.prepared(chosen, out) as here:
        app = writing.new(here.work / "app", chosen, out, 100, here.roster())
        (app / "federation" / "data.py").write_text(APP_DATA.format(folder=tmp_path))
        local.start(here)
        here.submit(app)
        here.wait(out, 400)
    found = load_result(out).clients
    assert missing(out) == {}
    assert found["n"][found["split"] == "test"].tolist() == [8, 12]


LAZY = """from equipoise.core import SGD, Method, ServerRule, WeightedMean


def lazy(*, server: ServerRule = WeightedMean()) -> Method:
    return Method("lazy", SGD(), server)
"""
TAMPERED = """
import shutil
from pathlib import Path

from flwr.clientapp import ClientApp

from equipoise.flower.apps import client_app

there = Path(__file__).parent
app = ClientApp()


def answer(message, context):
    if context.node_config["partition-id"] != 2:
        return client_app(there / "run.toml")(message, context)
    other = Path(context.node_config["folder"]) / "app" / "federation"
    shutil.copytree(there, other, dirs_exist_ok=True)
    {tampered}
    return client_app(other / "run.toml")(message, context)


app.train()(answer)
app.query()(answer)
"""


FASTER = 'run = other / "run.toml"; run.write_text(run.read_text().replace("lr = 0.1", "lr = 0.2"))'


@pytest.mark.parametrize(
    ("tampered", "told"),
    [
        ("", "not the server's"),
        ('(other / "own" / "lazy.py").write_text("import os")', "own/lazy.py is not the server's: sha256"),
        (FASTER, "[train] in run.toml is not the server's: sha256"),
    ],
)
def test_parts_of_ones_own_travel_with_the_app_and_a_node_with_another_file_is_refused(
    tampered: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise import registry
    from equipoise.flower import local, parts, writing

    monkeypatch.setattr(registry, "_OWN", {})
    (tmp_path / "lazy.py").write_text(LAZY)
    own, out = parts.gathered([tmp_path / "lazy.py"]), tmp_path / "far"
    chosen = config.load(CONFIG.format(method='name = "lazy"', clients=3, rounds=2, more=""))
    with local.prepared(chosen, out) as here:
        app = writing.new(here.work / "app", chosen, out, 100, here.roster(), own)
        if tampered:
            (app / "federation" / "client_app.py").write_text(TAMPERED.format(tampered=tampered))
        local.start(here)
        here.submit(app)
        here.wait(out, 400)
        said = here.log("run").read_text() + here.log("superexec").read_text()
    assert missing(out) == ({(0, 2): "error", (1, 2): "error"} if tampered else {})
    assert (told in said) == bool(tampered)
    has_bits_of(simulated(chosen, missing(out)), out)


def test_records_carry_a_parcel_and_nothing_that_claims_too_much() -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from equipoise.flower.records import from_records, to_records

    sent = Parcel({"loss": Raw.of(torch.tensor(0.5)), "flag": Raw.of(torch.tensor(True))}, {"kind": "train", "lr": 0.1})
    assert from_records(to_records(sent)) == sent
    huge = RecordDict(
        {
            "arrays": ArrayRecord({"a": Array("float32", (1 << 40,), "equipoise.raw", b"1234")}),
            "facts": ConfigRecord({"kind": "train"}),
        }
    )
    got = from_records(huge)
    assert isinstance(got, Parcel) and got.fault(1 << 20) == "oversized"
    assert (
        from_records(RecordDict({"arrays": ArrayRecord({"a": Array("float32", (1,), "pickle", b"1234")})})) == "garbage"
    )


def test_a_fingerprint_is_what_ssh_keygen_prints(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    from equipoise.flower import keys
    from equipoise.flower.roster import fingerprint

    made = keys.make(tmp_path / "keys", ["node-0"])
    public = made.public("node-0").read_bytes()
    printed = subprocess.run(
        ["ssh-keygen", "-lf", str(made.public("node-0"))], capture_output=True, text=True, check=True
    )
    assert fingerprint(public) in printed.stdout.split()
    pem = load_ssh_public_key(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert fingerprint(pem) == fingerprint(public)
    assert fingerprint(b"noise") == fingerprint(b"-----BEGIN noise") == fingerprint(b"") == ""
