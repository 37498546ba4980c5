"""Real processes: a SuperLink and SuperNodes on loopback end with the simulator's bits."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from equipoise import config, experiment, files
from equipoise.engine.messages import Parcel, Raw
from equipoise.engine.run import Simulation

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(find_spec("flwr") is None, reason="flwr is not installed"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Flower's own
]

CONFIG = """
[method]
{method}
[data]
dataset = "digits"
clients = 4
validation = 0.1
[model]
kind = "mlp"
hidden = [16]
[train]
rounds = 3
lr = 0.1
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


@pytest.mark.parametrize("name", METHODS)
def test_a_deployed_run_ends_with_the_simulators_bits(name: str, tmp_path: Path) -> None:
    from equipoise.flower import local

    chosen = config.load(CONFIG.format(method=METHODS[name]))
    local.run(chosen, tmp_path / "far", limit=800)
    assert _processes(tmp_path) == []
    made = experiment.build(chosen)
    near = Simulation(made.scenario, made.method, made.run)
    for _ in range(3):
        near.step()
    near.finish()
    model, _ = files.read_tensors(tmp_path / "far" / "model.safetensors")
    assert all(torch.equal(t, model[n]) for n, t in near.server.layout.tensors(near.server.w).items())
    for k in near.simulator.store.ids().tolist():
        (path,) = (tmp_path / "far.flower" / f"client-{k}").glob("*.safetensors")
        kept, _ = files.read_tensors(path)
        own = near.simulator.store.get(torch.tensor([k]))
        assert own and all(torch.equal(t, kept[f"after/{n}"]) for n, t in own.items()), k


def _processes(folder: Path) -> list[str]:
    """What still runs with this folder in its command line."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(folder / "far") in line]


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
