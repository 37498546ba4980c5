"""The two halves of a Flower app: a ServerApp that runs the rounds, a ClientApp that answers for one client.

A message costs Flower seconds (a new process for each, and polls), so there is one for each client and round; trial
models of line searches and evaluations between rounds cost one more each. Who is who is asked once, when a node is new.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from equipoise.engine.messages import Parcel
from equipoise.errors import EquipoiseError
from equipoise.flower.records import from_records, to_records

_log = logging.getLogger(__name__)
_HELLO = "hello"


class FlowerPost:
    """Carries messages over Flower's grid; a client is the node that said it holds that client's data.

    With node authentication a node's number follows its key, and nobody else can answer under it. The first messages
    wait for everyone, up to the timeout; later ones go to whoever is there.
    """

    def __init__(self, grid: Grid, n_clients: int, timeout: float) -> None:
        self.grid, self.n_clients, self.timeout = grid, n_clients, timeout
        self.node_of: dict[int, int] = {}
        self._claims: dict[int, int] = {}
        """Which client each node says it is; asked once."""
        self._patience = timeout

    def __call__(self, letters: Mapping[int, Parcel]) -> dict[int, Parcel | str]:
        self.enrol(set(letters))
        sent = {k: self._message(to_records(p), k) for k, p in letters.items() if k in self.node_of}
        back: dict[int, Parcel | str] = {}
        for client, reply in self._exchange(sent).items():
            if reply.has_error():
                _log.warning("client %d: Flower error %s: %s", client, reply.error.code, reply.error.reason)
                back[client] = "error"
            elif reply.metadata.src_node_id != self.node_of[client]:
                back[client] = "identity"
            else:
                back[client] = from_records(reply.content)
        return back

    def enrol(self, wanted: set[int]) -> None:
        """Find the nodes of these clients; a client whose node is gone is the next that says it is that client."""
        deadline, self._patience = time.monotonic() + self._patience, 0.0
        while True:
            here = set(self.grid.get_node_ids())
            if new := sorted(here - self._claims.keys()):
                self._meet(new)
            self.node_of = {k: node for k, node in self.node_of.items() if node in here}
            for node in sorted(here & self._claims.keys()):
                self.node_of.setdefault(self._claims[node], node)
            if wanted <= self.node_of.keys() or time.monotonic() > deadline:
                return
            time.sleep(1)

    def _meet(self, nodes: list[int]) -> None:
        hello = RecordDict({_HELLO: ConfigRecord({})})
        for node, reply in self._exchange({node: Message(hello, node, "query") for node in nodes}).items():
            told = reply.content.config_records.get(_HELLO, {}).get("client") if reply.has_content() else None
            if type(told) is int and 0 <= told < self.n_clients:
                self._claims[node] = told
            else:
                _log.warning("node %d does not say which client it is", node)

    def _message(self, content: RecordDict, client: int) -> Message:
        kind = "train" if content.config_records["facts"]["kind"] == "train" else "query"
        return Message(content, self.node_of[client], kind)

    def _exchange(self, sent: Mapping[int, Message]) -> dict[int, Message]:
        """The replies that came in time, by whom the message went to."""
        if not sent:
            return {}
        replies = list(self.grid.send_and_receive(list(sent.values()), timeout=self.timeout))
        asked = {message.metadata.message_id: who for who, message in sent.items()}
        known = [r for r in replies if r.metadata.reply_to_message_id in asked]
        return {asked[r.metadata.reply_to_message_id]: r for r in known}


def server_app(config: Path) -> ServerApp:
    """Runs the config's method; results go to `out` of the app's run config, and the run goes on from there."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
        serve(config, grid, Path(str(settings["out"])), float(settings["timeout"]))

    return app


def serve(config: Path, grid: Grid, out: Path, timeout: float) -> None:
    from equipoise import config as configs
    from equipoise.experiment import build
    from equipoise.flower.serving import carry_out

    experiment = build(configs.load(config))
    carry_out(experiment, FlowerPost(grid, experiment.scenario.federation.n_clients, timeout), out)


def client_app(config: Path) -> ClientApp:
    """Answers for the client whose number is `partition-id` in the node's config; it keeps its state in `folder`."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        client = _setting(context, "partition-id", int)
        if _HELLO in message.content.config_records:
            return Message(RecordDict({_HELLO: ConfigRecord({"client": client})}), reply_to=message)
        parcel = from_records(message.content)
        node = _node(config, client, Path(_setting(context, "folder", str)))
        return Message(to_records(node(parcel if isinstance(parcel, Parcel) else Parcel())), reply_to=message)

    app.train()(answer)
    app.query()(answer)
    return app


def _setting(context: Context, name: str, kind: type) -> Any:
    value = context.node_config.get(name)
    if type(value) is not kind:
        hint = """start the node with --node-config 'partition-id=3 folder="/where/it/keeps/its/state"'"""
        raise EquipoiseError(f"node config: {name} is {value!r}", hint)
    return value


def _node(config: Path, client: int, folder: Path) -> Any:
    from equipoise import config as configs
    from equipoise import experiment as runs
    from equipoise.engine.node import Node, own_part

    made = runs.build(configs.load(config))
    s = made.scenario
    return Node(client, own_part(s.federation, client), made.method, s.model, s.train, made.run, folder)
