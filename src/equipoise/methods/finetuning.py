"""FedAvg, after which every client goes on training the final model on its own data.

The baseline of every personalisation paper; as in Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning
through personalization", ICML 2021, section 4.4 ("plain finetuning").

    rounds:  as the base method, by default FedAvg
    after:   v_k <- v_k - lr * grad F_k(v_k; b)        for every batch b of `epochs` epochs, from v_k = w

Until then clients use w.

Departures: none known. v_k descends the base method's objective, with the step size that the next round would have had.
"""

from dataclasses import dataclass

from equipoise.core import Method, ServerRule
from equipoise.errors import require
from equipoise.methods._personal import Tuning, adapted


@dataclass(frozen=True)
class Finetuning(Tuning):
    """epochs: how long clients go on, 0 or more; 0 is the base method alone. Ditto's paper: 50."""

    def __post_init__(self) -> None:
        require(self.epochs >= 0, "finetuning: epochs", self.epochs, "0 or more; 0 is the base method alone")


def finetuning(epochs: int = 50, *, base: Method | None = None, server: ServerRule | None = None) -> Method:
    """`base` gives client and server rule of the global model (FedAvg); `server` overrides."""
    return adapted("finetuning", Finetuning(epochs), base, server)
