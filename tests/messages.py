"""A small federation whose clients nothing but messages connects to the server, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from equipoise.core import Method, State
from equipoise.engine.deployment import Deployment
from equipoise.engine.messages import cap
from equipoise.engine.node import Node, own_part
from equipoise.engine.post import InMemory, in_bytes
from equipoise.engine.run import Scenario
from equipoise.engine.settings import Run


class Deployed:
    """A node with its own data for every client of the scenario, and the server that writes to them."""

    def __init__(self, scenario: Scenario, method: Method, run: Run, folder: Path | None = None) -> None:
        self.scenario, self.method, self.run, self.folder = scenario, method, run, folder
        self.nodes = {k: self.node(k) for k in range(scenario.federation.n_clients)}
        self.lines: dict[int, Callable[[bytes], object]] = {k: in_bytes(n) for k, n in self.nodes.items()}
        self.start_server()

    def node(self, k: int) -> Node:
        s, place = self.scenario, self.folder / str(k) if self.folder else None
        return Node(k, own_part(s.federation, k), self.method, s.model, s.train, self.run, place)

    def restart_node(self, k: int) -> None:
        self.nodes[k] = self.node(k)
        self.lines[k] = in_bytes(self.nodes[k])

    def start_server(self) -> None:
        """A server at round 0."""
        post = InMemory(self.lines, cap(self.nodes[0].here.net.layout))
        self.deployment = Deployment(self.scenario, self.method, self.run, post)
        self.server, self.exchange = self.deployment.server, self.deployment.exchange
        self.step, self.finish = self.deployment.step, self.deployment.finish

    def state(self, k: int) -> State:
        """What client k has kept."""
        return {n: t[0] for n, t in self.nodes[k].kept.after.items()}
