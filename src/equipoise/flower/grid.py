"""The post on Flower's grid: a message for each client to the node that is this client, and what came back.

A message costs Flower seconds (a new process for each, and polls), so there is one for each client and round; trial
models of line searches cost one more each.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from equipoise.engine.messages import Parcel
from equipoise.flower.records import from_records, to_records
from equipoise.flower.roster import Roster, fingerprint

_log = logging.getLogger(__name__)
_POLL = 1.0  # seconds
_AWAY = (3, 4, 5)  # of Flower's error codes: a message or a reply got lost, or the node is gone
HELLO = "hello"


class FlowerPost:
    """Carries messages over Flower's grid.

    The first messages wait for everyone's node, up to the timeout; later ones go to whoever is there.
    """

    def __init__(self, grid: Grid, roster: Roster, n_clients: int, timeout: float) -> None:
        self.grid, self.roster, self.n_clients, self.timeout = grid, roster, n_clients, timeout
        self.node_of: dict[int, int] = {}
        self._known: dict[int, int] = {}
        """Which client each node is that was ever here; -1: none."""
        self._patience = timeout

    def __call__(self, letters: Mapping[int, Parcel]) -> dict[int, Parcel | str]:
        self.enrol(set(letters))
        sent = {k: _message(to_records(p), self.node_of[k]) for k, p in letters.items() if k in self.node_of}
        back: dict[int, Parcel | str] = {k: "absent" for k in letters if k not in sent}
        for client, reply in self._exchange(sent).items():
            back[client] = self._opened(client, reply)
        return back

    def _opened(self, client: int, reply: Message | str) -> Parcel | str:
        if isinstance(reply, str):
            return reply
        if reply.has_error():
            _log.warning("client %d: Flower error %s: %s", client, reply.error.code, reply.error.reason)
            return "absent" if reply.error.code in _AWAY else "error"
        if reply.metadata.src_node_id != self.node_of[client]:
            return "identity"
        return from_records(reply.content)

    # ------------------------------------------------------------------------------------------------- who is who

    def enrol(self, wanted: set[int]) -> None:
        """Find the nodes of these clients, among those that are here now."""
        deadline, self._patience = time.monotonic() + self._patience, 0.0
        while True:
            here = {node.node_id: node.public_key for node in self.grid.get_nodes()}
            new = {node: key for node, key in here.items() if node not in self._known}
            self._known |= self._told(list(new)) if self.roster.claims else self._recognised(new)
            self.node_of = {k: node for k, node in self.node_of.items() if node in here}
            for node in sorted(here.keys() & self._known.keys()):
                if self._known[node] >= 0:
                    self.node_of.setdefault(self._known[node], node)
            if wanted <= self.node_of.keys() or time.monotonic() > deadline:
                return
            time.sleep(_POLL)

    def _recognised(self, keys: Mapping[int, bytes]) -> dict[int, int]:
        """By their keys, which the SuperLink has seen them prove."""
        prints = {node: fingerprint(bytes(key)) for node, key in keys.items()}
        for node, seen in prints.items():
            if seen not in self.roster.clients:
                _log.warning("node %d with the key %s is not in nodes.toml, and is not written to", node, seen)
        return {node: self.roster.clients.get(seen, -1) for node, seen in prints.items()}

    def _told(self, nodes: list[int]) -> dict[int, int]:
        """By what they say; who does not answer is asked again the next time."""
        hello = RecordDict({HELLO: ConfigRecord({})})
        found = {}
        for node, reply in self._exchange({node: Message(hello, node, "query") for node in nodes}).items():
            if isinstance(reply, str) or not reply.has_content():
                continue
            told = reply.content.config_records.get(HELLO, {}).get("client")
            found[node] = told if type(told) is int and 0 <= told < self.n_clients else -1
        return found

    # ------------------------------------------------------------------------------------------------- the exchange

    def _exchange(self, sent: Mapping[int, Message]) -> dict[int, Message | str]:
        """What came in time, by whom the message went to. Nobody can hold the others up, see `_Fetch`."""
        if not sent:
            return {}
        numbers = self.grid.push_messages(list(sent.values()))
        waiting = {who: _Fetch(self.grid, number) for number, who in zip(numbers, sent, strict=True) if number}
        back: dict[int, Message | str] = {}
        deadline = time.monotonic() + self.timeout
        while waiting and time.monotonic() < deadline:
            for who, fetch in list(waiting.items()):
                if (reply := fetch()) is not None:
                    back[who] = reply
                    del waiting[who]
            time.sleep(_POLL if waiting else 0)
        return back


class _Fetch:
    """Fetches one reply, in a thread of its own.

    A reply that was announced, and whose parts never come, keeps Flower waiting for two hours; one that cannot be read
    makes it raise. Either is that client's misfortune and nobody else's.
    """

    def __init__(self, grid: Grid, number: str) -> None:
        self.grid, self.number = grid, number
        self._thread: threading.Thread | None = None
        self._reply: Message | str | None = None

    def __call__(self) -> Message | str | None:
        """The reply, "garbage" if what came is none, or None if it is not there yet."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._pull, daemon=True)
            self._thread.start()
        self._thread.join(_POLL / 4)
        if not self._thread.is_alive():
            self._thread = None
        return self._reply

    def _pull(self) -> None:
        try:
            replies = list(self.grid.pull_messages([self.number]))
            self._reply = replies[0] if replies else None
        except httpx.HTTPError as problem:  # the SuperLink is not there for the moment
            _log.warning("the SuperLink does not answer: %r", problem)
        except Exception as problem:  # whatever a stranger's bytes make Flower say
            _log.warning("a reply cannot be read: %.500r", problem)
            self._reply = "garbage"


def _message(content: RecordDict, node: int) -> Message:
    kind = "train" if content.config_records["facts"]["kind"] == "train" else "query"
    return Message(content, node, kind)
