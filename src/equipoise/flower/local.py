"""A whole federation on this machine's loopback: a SuperLink, a SuperNode for each client, one run, and a clean stop.

For trying out and for tests: no TLS, no node authentication, every client's data from the one config. Everything else
than the results, logs and the clients' state included, stays in a folder beside them, OUT.flower.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from equipoise import config as configs
from equipoise import files
from equipoise.errors import EquipoiseError
from equipoise.experiment import make_federation
from equipoise.results import Result, RunFolder, load_result

_PROJECT = """[project]
name = "federation"
version = "1.0.0"
description = "A federation set up by equipoise"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "equipoise"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
out = {out}
timeout = {timeout}
"""
_APP = """from pathlib import Path

from equipoise.flower.apps import {side}_app

app = {side}_app(Path(__file__).with_name("run.toml"))
"""


def new(folder: Path, config: configs.Config, out: Path, timeout: float) -> Path:
    """Write a small Flower app that runs the config; `flwr run` accepts the folder."""
    package = files.make_folder(folder / "federation")
    quoted = '"' + str(out.resolve()).replace("\\", "\\\\").replace('"', '\\"') + '"'
    texts = {
        folder / "pyproject.toml": _PROJECT.format(out=quoted, timeout=float(timeout)),
        package / "__init__.py": "",
        package / "run.toml": configs.dump(config),
        package / "server_app.py": _APP.format(side="server"),
        package / "client_app.py": _APP.format(side="client"),
    }
    for path, text in texts.items():
        files.write_atomic(path, text.encode())
    return folder


def run(
    config: configs.Config,
    out: Path,
    *,
    timeout: float = 300.0,
    limit: float = 3600.0,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Run the config on as many SuperNodes as it has clients. `timeout`: seconds a client may take to answer."""
    _require_flower()
    if (out / "config.toml").exists():
        before = RunFolder.open(out)
        if before.config != configs.dump(config).encode():
            raise EquipoiseError(f"{out} already holds another run: its config.toml differs", "choose another --out")
        if before.finished:
            return load_result(out)
    clients = config.data.clients or make_federation(config.data, config.run.seed).n_clients
    work = files.make_folder(out.with_name(out.name + ".flower").resolve())
    app = new(work / "app", config, out, timeout)
    (port, *ports), bin = _free_ports(1 + clients), Path(sys.executable).parent
    address, env = f"127.0.0.1:{port}", _environment(work, bin)
    connection = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    files.write_atomic(files.make_folder(work / "home") / "config.toml", connection.encode())
    link = ["flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
    with _started(link, work / "superlink.log", env, bin) as superlink:
        _wait_for(port, superlink, work / "superlink.log")
        with _all_nodes(address, ports, work, env, bin):
            say(f"{clients} clients on {address}; logs are in {work}")
            with _started(["flwr", "run", str(app), "here", "--stream"], work / "run.log", env, bin) as submitted:
                _wait_until_done(out, superlink, submitted, time.monotonic() + limit, work)
    return load_result(out)


def _require_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise EquipoiseError("Flower is not installed", "pip install 'equipoise[flower]'")


def _environment(work: Path, bin: Path) -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(work / "home")}
    path = f"{bin}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **quiet, "PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


@contextmanager
def _all_nodes(address: str, ports: list[int], work: Path, env: Mapping[str, str], bin: Path) -> Iterator[None]:
    if not ports:
        yield
        return
    k = len(ports) - 1
    folder = str(work / f"client-{k}").replace('"', '\\"')
    node = ["flower-supernode", "--insecure", "--superlink", address, "--port", str(ports[k])]
    node += ["--node-config", f'partition-id={k} folder="{folder}"']
    with _started(node, work / f"supernode-{k}.log", env, bin), _all_nodes(address, ports[:k], work, env, bin):
        yield


@contextmanager
def _started(command: list[str], log: Path, env: Mapping[str, str], bin: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own; afterwards it and all it started are gone."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [str(bin / command[0]), *command[1:]], stdout=file, stderr=file, env=dict(env), start_new_session=True
        )
    try:
        yield process
    finally:
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise EquipoiseError("the SuperLink did not start", f"{log} says why")


def _wait_until_done(
    out: Path, superlink: subprocess.Popen[bytes], submitted: subprocess.Popen[bytes], deadline: float, work: Path
) -> None:
    while not (out / "checksums.json").exists():
        over = superlink.poll() is not None or submitted.poll() is not None
        if over or time.monotonic() > deadline:
            time.sleep(1)
            if (out / "checksums.json").exists():
                return
            raise EquipoiseError("the run did not finish", f"the logs in {work} say why; the same command goes on")
        time.sleep(0.5)
