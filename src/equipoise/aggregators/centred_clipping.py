"""Moves from where it was last round towards the updates, none of which can pull harder than tau.

Karimireddy, He, Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021, section 4 and Algorithm 2
(centered clipping).

    v <- v + sum_k p_k (u_k - v) min(1, tau / ||u_k - v||)    `iterations` times, from last round's v, at first 0
    w <- w - v

Nothing has to be known of how many clients are malicious: f of m move v by at most iterations tau f/m in a round. With
p_k = 1/m (uniform) that is as published; with capped weights 2f takes the place of f; with size weights it is
iterations tau if sizes may be false. A tau beyond all distances makes the rule the mean.

Under "weights" the log says how much of v came from whom; what is missing to 1 is the last round's v. "scale" is what
was left of each client's pull in the last iteration.

The default tau = 10 is in units of gradients: the paper's clients send momentum, damped by 1 - beta. An update of local
training is the learning rate times the sum of its steps' gradients, as a rule far shorter: there tau = 10 clips hardly
anybody, and the rule is nearly the mean. Choose tau near the distance of a typical honest update from v: 10 times the
learning rate times local steps, or the median length of the updates of a first run. "clipped" says whether it bites.

Departures: the paper has momentum on the clients' side; that is a client rule's business. Its tau depends on the noise
of gradients; the default 10 with 3 iterations is what public comparisons on MNIST use.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.aggregators._distances import norms
from equipoise.aggregators._rows import mixed, shortening
from equipoise.core import Cohort, EquipoiseError, Outcome, ServerRule, State
from equipoise.errors import positive
from equipoise.weighting import Weights, check_weights, shares


@dataclass(frozen=True)
class CentredClipping(ServerRule):
    """tau: the strongest pull of a client, above 0, in units of what clients send: 10 fits gradients with momentum, and
    hardly clips updates of local training. iterations: how many steps towards the updates, 1 or more.
    """

    tau: float = 10.0
    iterations: int = 3
    weights: Weights = "uniform"
    robust = True

    def __post_init__(self) -> None:
        if not positive(self.tau):
            raise EquipoiseError(f"centred-clipping: tau is {self.tau}", "the strongest pull of a client, above 0")
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise EquipoiseError(f"centred-clipping: iterations is {self.iterations}", "1 or more")
        check_weights("centred-clipping", self.weights)

    def init(self, w: Tensor) -> State:
        return {"v": torch.zeros_like(w)}

    def __call__(self, cohort: Cohort, state: State) -> Outcome:
        p, v = shares(cohort.sizes, self.weights), state["v"]
        weights = scale = torch.zeros_like(p)
        for _ in range(self.iterations):
            away = cohort.updates - v
            length = norms(away)
            scale = shortening(length, length.new_tensor(self.tau))
            pull = p * scale
            v = v + mixed(pull, away)
            weights = weights * (1.0 - pull.sum()) + pull
        info = {"weights": weights, "scale": scale, "clipped": int((scale < 1).sum())}
        return Outcome(v, {"v": v}, info=info)
