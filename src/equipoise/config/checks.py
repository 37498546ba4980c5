"""What one section of a config says against another, as far as it can be told without the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.config.parts import keyed
from equipoise.core import Method
from equipoise.engine.participation import cohort_size, with_added
from equipoise.errors import require
from equipoise.streams import Stream
from equipoise.threat import Attack

if TYPE_CHECKING:
    from equipoise.config import Config


def cross_check(config: Config, method: Method, attack: Attack | None) -> None:
    """With the number of clients left to the data, building the run does it."""
    n = config.data.clients or config.data.options.get("clients")
    if n is None:
        return
    drawn = cohort_size(config.participation, n)
    keyed(lambda: method.server.check(drawn), "method")
    if attack is not None:
        keyed(lambda: attack.malicious(n, Stream(0)), "attack", ("clients", "count"))
    config.admission.check(with_added(drawn, n, attack.added_to(n) if attack else 0))


def require_tests(config: Config, who: str) -> None:
    """For what compares runs on test data: a run may do without. Data of one's own may bring test files along."""
    data, why = config.data, f"{who} compares runs on test data"
    require(config.run.splits == "all", "run.splits", config.run.splits, f"{why}: leave it out")
    none = data.test == 0 and data.test_set == "local" and not data.dataset.startswith("folder:")
    require(not none, "data.test", data.test, f"{why}: give a share above 0, such as 0.2")
