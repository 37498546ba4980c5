"""Real nginx before a real SuperLink: nodes work through it, and nothing else gets through."""

import os
import shutil
import ssl
import subprocess
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_flower import MARKS, has_bits_of, missing, processes, simulated, until, wanted

pytestmark = [*MARKS, pytest.mark.skipif(shutil.which("nginx", path="/usr/sbin:/usr/bin") is None, reason="no nginx")]

MANAGE = ["/v1/control/start-run", "/v1/control/list-runs", "/v1/control/register-node"]
SIDEWAYS = [
    "/v1/runtime/acquire-task",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/pull-messages/../../control/list-runs",
    "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2flist-runs",
    "/v1/fleet/pull-messages;/../../control/list-runs",
    "//v1/control/list-runs",
    "/V1/CONTROL/LIST-RUNS",
    "/docs",
    "/openapi.json",
    "/",
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run whose nodes all come through the proxy, and what others got who tried."""
    from equipoise.flower import local, writing
    from equipoise.flower.loopback import _free_ports
    from equipoise.flower.proxy import nginx

    folder = tmp_path_factory.mktemp("guarded")
    chosen, out = wanted(clients=3, rounds=2), folder / "far"
    (port,) = _free_ports(1)
    with local.prepared(chosen, out, tls=True) as here:
        assert here.keys is not None
        here.start_link()
        here.start_executor()
        own = {"certificate": here.keys.certificate, "key": here.keys.server, "authority": here.keys.authority}
        text = nginx(listen=f"127.0.0.1:{port}", superlink=here.address, folder=here.work, **own)
        (here.work / "nginx.conf").write_text(text)
        as_is = "daemon off; user root;" if os.geteuid() == 0 else "daemon off;"
        program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
        here.start("nginx", str(program), "-c", str(here.work / "nginx.conf"), "-g", as_is)
        for k in range(3):
            here.register(f"node-{k}")
            here.start_node(k, superlink=f"127.0.0.1:{port}")
        context = ssl.create_default_context(cafile=str(here.keys.authority))
        until(lambda: _status(context, port, "/") == 403, "nginx answering", 30)
        told = {path: _status(context, port, path) for path in (*MANAGE, *SIDEWAYS)}
        inside = {path: _status(context, here.port, path) for path in MANAGE}
        got = _status(context, port, "/v1/fleet/pull-messages", "GET")
        app = writing.new(here.work / "app", chosen, out, 100, here.roster())
        outside = here.work / "outside"
        outside.mkdir()
        connection = (here.work / "home" / "config.toml").read_text().replace(here.address, f"127.0.0.1:{port}")
        (outside / "config.toml").write_text(connection)
        commands = {
            "run": ["run", str(app), "here"],
            "register": ["supernode", "register", str(here.keys.public("node-0")), "here"],
            "list": ["list", "here"],
        }
        calls = {name: _outside(here, outside, command) for name, command in commands.items()}
        here.submit(app)
        here.wait(out, 500)
    assert processes(folder) == []
    return {"out": out, "chosen": chosen, "told": told, "inside": inside, "get": got, "calls": calls}


def _status(context: ssl.SSLContext, port: int, path: str, method: str = "POST") -> int:
    """The answer's status; 0 if there was none."""
    line = HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    try:
        line.putrequest(method, path, skip_accept_encoding=True)
        line.putheader("Content-Length", "0")
        line.endheaders()
        return line.getresponse().status
    except OSError:
        return 0
    finally:
        line.close()


def _outside(here: Any, home: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**here.env, "FLWR_HOME": str(home)}
    program = shutil.which("flwr", path=env["PATH"])
    return subprocess.run([str(program), *command], env=env, capture_output=True, text=True, timeout=120, check=False)


def test_nodes_work_through_the_proxy_to_the_same_bits(guarded: dict[str, Any]) -> None:
    assert missing(guarded["out"]) == {}
    has_bits_of(simulated(guarded["chosen"]), guarded["out"])
    log = (guarded["out"].with_name("far.flower") / "nginx-access.log").read_text()
    for call in ("activate-node", "pull-messages", "push-messages", "push-object", "pull-object"):
        assert f'"POST /v1/fleet/{call} HTTP/1.1" 200' in log


@pytest.mark.parametrize("path", [*MANAGE, *SIDEWAYS])
def test_no_other_call_gets_through(path: str, guarded: dict[str, Any]) -> None:
    assert guarded["told"][path] in (400, 403)


def test_without_the_proxy_anybody_may_manage_the_superlink(guarded: dict[str, Any]) -> None:
    # Why it is needed. Should this fail one day, Flower asks for credentials, and the guide can say so.
    assert all(status not in (0, 401, 403, 404) for status in guarded["inside"].values()), guarded["inside"]


def test_only_posts_get_through(guarded: dict[str, Any]) -> None:
    assert guarded["get"] == 403


@pytest.mark.parametrize("command", ["run", "register", "list"])
def test_flwr_from_outside_is_refused(command: str, guarded: dict[str, Any]) -> None:
    done = guarded["calls"][command]
    assert done.returncode != 0, done.stdout
    assert "Successfully" not in done.stdout + done.stderr
