"""A whole federation on this machine: one run of a config, with processes for every client, and a clean stop.

For trying out and for tests: every client's data comes from the one config. Everything else than the results is in a
folder beside them, OUT.flower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from equipoise import config as configs
from equipoise import files
from equipoise.engine.deployment import require_real
from equipoise.errors import EquipoiseError
from equipoise.experiment import make_federation
from equipoise.flower import keys
from equipoise.flower.loopback import Loopback
from equipoise.flower.writing import new
from equipoise.provenance import same_files
from equipoise.results import Result, RunFolder, load_result


def run(
    config: configs.Config,
    out: Path,
    *,
    tls: bool = False,
    timeout: float = 300.0,
    limit: float = 3600.0,
    say: Callable[[str], None] = lambda line: None,
    own: Mapping[str, bytes] | None = None,
) -> Result:
    """Run the config on as many SuperNodes as it has clients. `timeout`: seconds a client may take to answer.

    `own` are files with parts of one's own, see `parts.gathered`.
    """
    require_real(config.attack, config.participation)
    _require_flower()
    if (out / "config.toml").exists():
        before = RunFolder.open(out)
        if before.config != configs.dump(config).encode():
            raise EquipoiseError(f"{out} already holds another run: its config.toml differs", "choose another --out")
        same_files(config, out)
        if before.finished:
            return load_result(out)
    with prepared(config, out, tls=tls) as here:
        files.remove_folder(here.work / "app")  # of an earlier try, maybe with other parts
        app = new(here.work / "app", config, out, timeout, here.roster(), own)
        start(here)
        say(f"{here.clients} clients on {here.address}; logs are in {here.work}")
        here.submit(app)
        here.wait(out, limit)
    return load_result(out)


def prepared(config: configs.Config, out: Path, *, tls: bool = False) -> Loopback:
    """A federation of the config's size, with keys if need be, that nothing runs of yet."""
    clients = config.data.clients or make_federation(config.data, config.run.seed).n_clients
    work = files.make_folder(out.with_name(out.name + ".flower").resolve())
    made = keys.make(work / "keys", [f"node-{k}" for k in range(clients)]) if tls else None
    return Loopback(work, clients, made)


def start(here: Loopback) -> None:
    here.start_link()
    here.start_executor()
    for k in range(here.clients):
        if here.keys is not None:
            here.register(f"node-{k}")
        here.start_node(k)


def _require_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise EquipoiseError("Flower is not installed", "pip install 'equipoise[flower]'")
