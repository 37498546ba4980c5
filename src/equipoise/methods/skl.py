"""FedAvg, after which every client trains on its own data, held back where its answers leave the global model's.

The baseline "symmetrized KL" of Ditto (Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through
personalization", ICML 2021, section 4.4); the divergence is that of Jiang et al., "SMART: robust and efficient
fine-tuning for pre-trained natural language models through principled regularized optimization", ACL 2020, section 3.1.

    rounds:  as the base method, by default FedAvg
    after:   D_z(v) = KL(p_v(z) || p_w(z)) + KL(p_w(z) || p_v(z)) = sum_c (p_v - p_w) (log p_v - log p_w)
             v_k <- v_k - lr * (grad F_k(v_k; b) + lam grad mean_{z in b} D_z(v_k))   for `epochs` epochs, from v_k = w

p(z) is the softmax of a model's outputs for sample z. Until then clients use w.

Departures: D is averaged over the batch that the step uses anyway. The program that Ditto's authors released sums it
over all of a client's samples in every step, which makes lam grow with the client.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from equipoise.core import At, EquipoiseError, Forward, Mean, Method, Objective, ServerRule, State
from equipoise.errors import require
from equipoise.methods._personal import Tuning, adapted, require_strength


@dataclass(frozen=True)
class SKL(Tuning):
    """The model must have an output for each class. lam: strength of the pull, 0 or more; 0 is plain finetuning,
    towards infinity answers stay w's. epochs: how long clients train, 1 or more."""

    lam: float = 1.0
    objective: Objective = Mean()

    def __post_init__(self) -> None:
        require_strength("skl", self.lam, "plain finetuning")
        require(self.epochs >= 1, "skl: epochs", self.epochs, "1 or more")

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        outputs = at.outputs(at.received)
        if outputs.shape[-1] < 2:
            raise EquipoiseError("skl: the model has 1 output", "it compares probabilities of two or more classes")
        q = F.log_softmax(outputs, -1)

        def loss(seen: Forward) -> Tensor:
            p = F.log_softmax(seen.outputs, -1)
            divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1)
            return self.objective(seen.losses, at.y, at.mask) + self.lam * Mean()(divergence, at.y, at.mask)

        return at.descend(w, at.grad(w, loss)), state


def skl(lam: float = 1.0, *, epochs: int = 50, base: Method | None = None, server: ServerRule | None = None) -> Method:
    """`base` gives client and server rule of the global model (FedAvg); `server` overrides."""
    objective = (base or Method()).client.objective
    return adapted("skl", SKL(epochs, lam, objective), base, server)
