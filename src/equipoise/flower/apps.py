"""The two halves of a Flower app: a ServerApp that runs the rounds, a ClientApp that answers for one client."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from equipoise.engine.messages import Parcel
from equipoise.errors import EquipoiseError
from equipoise.flower import parts
from equipoise.flower.records import from_records, to_records
from equipoise.flower.sites import Own

if TYPE_CHECKING:
    from equipoise.experiment import Progress

_HINT = """start the node with --node-config 'partition-id=3 folder="/where/it/keeps/its/state"'"""


def server_app(config: Path, own: Own | None = None) -> ServerApp:
    """Runs the config's method; results go to `out` of the app's run config, and the run goes on from there."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
        serve(config, own, grid, Path(str(settings["out"])), float(settings["timeout"]))

    return app


def serve(config: Path, own: Own | None, grid: Grid, out: Path, timeout: float) -> None:
    from equipoise import config as configs
    from equipoise.experiment import build
    from equipoise.flower import roster
    from equipoise.flower.grid import FlowerPost
    from equipoise.flower.serving import carry_out

    parts.load(config)
    chosen = configs.load(config)
    experiment = build(chosen) if own is None else own.experiment(chosen)
    n_clients = experiment.scenario.federation.n_clients
    known = roster.read(config.with_name("nodes.toml"), n_clients)
    post = parts.announced(FlowerPost(grid, known, n_clients, timeout), config)
    carry_out(experiment, post, out, _tell)
    _say(f"finished: {out}")


def _tell(where: Progress) -> None:
    _say(f"round {where.round} of {where.rounds}, {where.seconds:.0f} s {where.note}".rstrip())


def _say(line: str) -> None:
    """Flower shows what a ServerApp writes here to whoever started the run with --stream."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def client_app(config: Path, own: Own | None = None) -> ClientApp:
    """Answers for the client whose number is `partition-id` in the node's config; it keeps its state in `folder`."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        client = _setting(context, "partition-id", int)
        if "hello" in message.content.config_records:
            return Message(RecordDict({"hello": ConfigRecord({"client": client})}), reply_to=message)
        sent = from_records(message.content)
        parcel = sent if isinstance(sent, Parcel) else Parcel()
        parts.compare(config, parcel)
        node = _node(config, own, client, context)
        return Message(to_records(node(parcel)), reply_to=message)

    app.train()(answer)
    app.query()(answer)
    return app


def _setting(context: Context, name: str, kind: type) -> Any:
    value = context.node_config.get(name)
    if type(value) is not kind:
        raise EquipoiseError(f"node config: {name} is {value!r}", _HINT)
    return value


def _node(config: Path, own: Own | None, client: int, context: Context) -> Any:
    from equipoise import config as configs
    from equipoise.engine.node import Node, own_part
    from equipoise.experiment import build

    parts.load(config)
    chosen, folder = configs.load(config), Path(_setting(context, "folder", str))
    held = None if own is None else own.held_by(client, dict(context.node_config), chosen)
    made = build(chosen, held)
    s = made.scenario
    part = own_part(s.federation, client) if held is None else held
    return Node(client, part, made.method, s.model, s.train, made.run, folder)
