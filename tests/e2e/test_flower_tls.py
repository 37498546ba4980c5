"""Real processes over TLS with node keys: who belongs takes part, and nobody else does."""

from pathlib import Path

import pytest

from tests.e2e.test_flower import MARKS, has_bits_of, missing, processes, simulated, until, wanted

pytestmark = MARKS

LIAR = """
from pathlib import Path

from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp

from equipoise.flower.apps import client_app

honest = client_app(Path(__file__).with_name("run.toml"))
app = ClientApp()


def answer(message, context):
    reply = honest(message, context)
    if context.node_config["partition-id"] == 2:
        reply.content["facts"]["client"] = 0
    return reply


app.train()(answer)
app.query()(answer)
"""


def test_tls_and_node_keys_change_no_bit(tmp_path: Path) -> None:
    from equipoise.flower import local

    chosen = wanted(clients=3)
    local.run(chosen, tmp_path / "far", tls=True, limit=600)
    assert processes(tmp_path) == []
    assert missing(tmp_path / "far") == {}
    has_bits_of(simulated(chosen), tmp_path / "far")


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three clients, the last of which speaks for the first, with three strangers at the door."""
    from equipoise.flower import keys, local, writing
    from equipoise.flower.loopback import _free_ports

    folder = tmp_path_factory.mktemp("besieged")
    chosen, out = wanted(clients=3, rounds=2), folder / "far"
    with local.prepared(chosen, out, tls=True) as here:
        assert here.keys is not None
        app = writing.new(here.work / "app", chosen, out, 100, here.roster())
        (app / "federation" / "client_app.py").write_text(LIAR)
        local.start(here)
        for name in ("unknown", "unlisted"):
            keys.make_node_key(here.keys, name)
        here.register("unlisted")
        strangers = {
            "unknown": [*here.trust(), "--auth-supernode-private-key", str(here.keys.node("unknown"))],
            "unlisted": [*here.trust(), "--auth-supernode-private-key", str(here.keys.node("unlisted"))],
            "keyless": here.trust(),
            "plain": ["--insecure"],
        }
        for (name, more), port in zip(strangers.items(), _free_ports(4), strict=True):
            node = ["flower-supernode", "--superlink", here.address, "--port", str(port), *more]
            node += ["--max-retries", "1", "--node-config", 'partition-id=0 folder="/nowhere"']
            here.start(name, *node)
        here.submit(app)
        here.wait(out, 500)
        for name in ("unknown", "keyless", "plain"):
            until(lambda name=name: here.processes[name].poll() is not None, f"{name} giving up", 60)  # type: ignore[misc]
            (folder / f"{name}.ended").write_text(str(here.processes[name].returncode))
        assert here.processes["unlisted"].poll() is None
    assert processes(folder) == []
    return folder


def log(folder: Path, name: str) -> str:
    return (folder / "far.flower" / f"{name}.log").read_text()


@pytest.mark.parametrize("name", ["unknown", "keyless", "plain"])
def test_a_node_with_an_unknown_key_or_none_or_without_tls_is_turned_away(name: str, besieged: Path) -> None:
    assert (besieged / f"{name}.ended").read_text() != "0"
    assert "Failed to initialize the connection to the SuperLink" in log(besieged, name)
    assert "Receiving" not in log(besieged, name)


def test_a_node_that_nodes_toml_does_not_name_is_let_in_and_never_written_to(besieged: Path) -> None:
    assert "is not in nodes.toml, and is not written to" in log(besieged, "run")
    assert "SuperNode ID" in log(besieged, "unlisted") and "Receiving" not in log(besieged, "unlisted")


def test_a_node_that_speaks_for_another_client_counts_for_nobody(besieged: Path) -> None:
    out = besieged / "far"
    assert missing(out) == {(0, 2): "identity", (1, 2): "identity"}
    assert "client 2 does not count (identity)" in (out / "log.txt").read_text()
    has_bits_of(simulated(wanted(clients=3, rounds=2), missing(out)), out)
