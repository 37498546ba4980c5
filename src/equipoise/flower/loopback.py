"""The processes of a federation on this machine: a SuperLink, its executor, a SuperNode for each client; a clean stop.

The SuperLink keeps its state in a file, and the ServerApp is a process beside it: what runs on one machine here is what
a consortium would run on many, and a SuperLink that was killed can be started again.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from equipoise import files
from equipoise.errors import EquipoiseError
from equipoise.flower.keys import Keys
from equipoise.flower.roster import Roster, fingerprint

_HERE = "127.0.0.1"


class Loopback:
    """Everything but the results, logs and the clients' state included, is in the folder `work`."""

    def __init__(self, work: Path, clients: int, keys: Keys | None = None) -> None:
        self.work, self.clients, self.keys = work, clients, keys
        self.port, *self.ports = _free_ports(1 + clients)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(work / "home")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self.env = {**os.environ, **quiet, "PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

    @property
    def address(self) -> str:
        return f"{_HERE}:{self.port}"

    def __enter__(self) -> Loopback:
        files.make_folder(self.work)
        for left in self.work.glob("superlink.db*"):  # of an earlier federation, whose processes are gone
            files.remove(left)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes.values():
                _signal(process, number)
            for process in self.processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
        for stray in self.strays():
            with suppress(ProcessLookupError):
                os.kill(stray, signal.SIGKILL)

    def strays(self) -> list[int]:
        """Processes of this federation, whoever started them: Flower detaches some. They all have its FLWR_HOME."""
        mark = f"FLWR_HOME={self.env['FLWR_HOME']}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # gone, or not ours
                if mark in place.read_bytes().split(b"\0"):
                    found.append(int(place.parent.name))
        return found

    # ------------------------------------------------------------------------------------------------- processes

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """A process in a group of its own, whose log is NAME.log."""
        with self.log(name).open("ab") as file:
            process = subprocess.Popen(
                [self._program(command[0]), *command[1:]],
                stdout=file,
                stderr=file,
                env=self.env,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self.env["PATH"])
        if found is None:
            raise EquipoiseError(f"{name} is not on the path", "pip install 'equipoise[flower]'")
        return found

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a process and all it started."""
        process = self.processes.pop(name)
        _signal(process, number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait(30)

    def log(self, name: str) -> Path:
        return self.work / f"{name}.log"

    def start_link(self) -> None:
        """Also one that goes on with the file of one that was killed."""
        files.make_folder(self.work / "home")
        files.write_atomic(self.work / "home" / "config.toml", self._connection().encode())
        link = ["flower-superlink", "--host", _HERE, "--port", str(self.port), "--isolation", "process"]
        link += ["--database", str(self.work / "superlink.db"), "--disable-runtime-dependency-installation"]
        if self.keys is None:
            link += ["--insecure"]
        else:
            link += ["--ssl-certfile", str(self.keys.certificate), "--ssl-keyfile", str(self.keys.server)]
            link += ["--ssl-ca-certfile", str(self.keys.authority), "--enable-supernode-auth"]
        _wait_for(self.port, self.start("superlink", *link), self.log("superlink"))

    def start_executor(self) -> None:
        self.start("superexec", "flower-superexec", "--runtime-api-address", self.address, *self.trust())

    def start_node(self, k: int, *, superlink: str = "") -> None:
        """Client k's node; `superlink` if it is to be reached in another way."""
        folder = str(self.work / f"client-{k}").replace('"', '\\"')
        node = ["flower-supernode", "--superlink", superlink or self.address, "--port", str(self.ports[k])]
        node += ["--node-config", f'partition-id={k} folder="{folder}"', *self.trust()]
        if self.keys is not None:
            node += ["--auth-supernode-private-key", str(self.keys.node(f"node-{k}"))]
        self.start(f"supernode-{k}", *node)

    def trust(self) -> list[str]:
        """What lets a process here believe that the SuperLink is the SuperLink."""
        return ["--insecure"] if self.keys is None else ["--root-certificates", str(self.keys.authority)]

    def _connection(self) -> str:
        sure = "insecure = true" if self.keys is None else f'root-certificates = "{self.keys.authority}"'
        return f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n{sure}\n'

    # ------------------------------------------------------------------------------------------------- calls

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program(command[0]), *command[1:]],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def register(self, name: str) -> None:
        """Let the node with this key in."""
        assert self.keys is not None
        done = self.call("flwr", "supernode", "register", str(self.keys.public(name)), "here")
        if done.returncode:
            raise EquipoiseError(f"{name} could not be registered: {done.stdout}{done.stderr}")

    def roster(self) -> Roster:
        """Who is who here."""
        if self.keys is None:
            return Roster(claims=True)
        prints = [fingerprint(files.read_bytes(self.keys.public(f"node-{k}"))) for k in range(self.clients)]
        return Roster({seen: k for k, seen in enumerate(prints)})

    def submit(self, app: Path) -> None:
        self.start("run", "flwr", "run", str(app), "here", "--stream")

    def wait(self, out: Path, limit: float) -> None:
        """Until the results are there; an error if they cannot be any more."""
        deadline = time.monotonic() + limit
        needed = [self.processes[name] for name in ("superlink", "superexec", "run")]
        while not (out / "checksums.json").exists():
            over = any(process.poll() is not None for process in needed)
            if over or time.monotonic() > deadline:
                time.sleep(1)
                if (out / "checksums.json").exists():
                    return
                hint = f"the logs in {self.work} say why; the same command goes on"
                raise EquipoiseError("the run did not finish", hint)
            time.sleep(0.5)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server((_HERE, 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection((_HERE, port), 1):
            return
        time.sleep(0.2)
    raise EquipoiseError("the SuperLink did not start", f"{log} says why")
