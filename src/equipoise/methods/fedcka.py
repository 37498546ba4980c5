"""FedAvg whose clients keep what their first layers see close to what the global model's see, away from their own past.

Son, Kim, Chung, "Compare where it matters: using layer-wise regularization to improve federated learning on
heterogeneous data" (FedCKA), Applied Sciences 12, 2022, the local objective (its equation's number: see Departures).

    client:  w_k <- w_k - lr * the gradient of  F_k(w_k; b) + mu * mean_{n = 1 .. layers} l_n
             l_n = -log( exp(c_n(w) / T) / (exp(c_n(w) / T) + exp(c_n(v_k) / T)) )
             c_n(z) = CKA of the outputs of layer n of w_k and of z on the batch b;  T = temperature
             v_k, the model that k trained in its last round, the run's initial model before that; w, the received one
    CKA(X, Y) = ||X'Y||^2 / (||X'X|| ||Y'Y||), Frobenius norms, a row per sample, every column centred
    server:  as FedAvg

A client holds one model more than in FedAvg, and computes two more forward passes in a step. Kernels of a batch are
compared sample by sample, so memory grows with the square of the batch. In a client's first round, if that is the
run's, both models are the same and l_n has no gradient.

Departures: the full text could not be checked, nor its equations' numbers. The loss and layers = 2 are those of an
independent implementation written from it, which has no temperature (1 is none); mu = 3 is what FedLF's authors ran it
with. Which output of a layer is meant is not known: here it is that of each module with parameters of its own, in the
model's order, before any activation function; a model with fewer layers uses those it has. What happens in a first
round, without a previous model, is not known: see v_k. Samples that only pad a batch do not count. Where outputs do not
differ between samples, to 1e-5 (or a batch has one), CKA is 0/0: there it is 0, without gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipoise.core import (
    At,
    ClientRule,
    EquipoiseError,
    Forward,
    Mean,
    Method,
    Objective,
    ServerRule,
    State,
    WeightedMean,
)
from equipoise.errors import not_negative, positive, require

_CONSTANT = 1e-5  # what differs by less between samples, relative to its size, is rounding


@dataclass(frozen=True)
class FedCKA(ClientRule):
    """mu: weight of the term, 0 or more; 0 is FedAvg. layers: how many of the first ones are compared, 1 or more.
    temperature: above 0; the larger, the weaker the term."""

    mu: float = 3.0
    layers: int = 2
    temperature: float = 1.0
    objective: Objective = Mean()

    def __post_init__(self) -> None:
        require(not_negative(self.mu), "fedcka: mu", self.mu, "0 or more; 0 is FedAvg")
        if self.layers < 1:
            raise EquipoiseError(f"fedcka: layers is {self.layers}", "1 or more; the paper compares the first 2")
        if not positive(self.temperature):
            raise EquipoiseError(f"fedcka: temperature is {self.temperature}", "above 0")
        self.__dict__.update(features=self.layers)

    def init(self, w: Tensor) -> State:
        return {"previous": w.clone()}

    def step(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        now, past = ([kernel(x, at.mask) for x in at.features(m)] for m in (at.received, state["previous"]))

        def loss(seen: Forward) -> Tensor:
            # The difference first: where both models are the same it is zero, and so is the gradient, to the bit.
            pairs = zip(seen.features, now, past, strict=True)
            away = [(kernel(x, at.mask) * (far - near)).sum((1, 2)) for x, near, far in pairs]
            term = softplus(torch.stack(away) / self.temperature).mean(0)
            return self.objective(seen.losses, at.y, at.mask) + self.mu * term

        return at.descend(w, at.grad(w, loss)), state

    def end(self, w: Tensor, state: State, at: At) -> tuple[Tensor, State]:
        return w, {**state, "previous": w}


def cka(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """[K]: linear CKA of x and y [K, B, ...] over the samples whose mask [K, B] is True; 0 where one is constant."""
    return (kernel(x, mask) * kernel(y, mask)).sum((1, 2))


def kernel(x: Tensor, mask: Tensor) -> Tensor:
    """[K, B, B]: the products of centred samples at length 1, so that CKA is the product of two of them.

    It is 0, without gradient, where samples do not differ.
    """
    rows, real = x.reshape(*x.shape[:2], -1), mask[..., None]
    rows = torch.where(real, rows, 0.0)
    centred = rows - rows.sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    centred = torch.where(real, centred, 0.0)
    # The size of the outputs does not matter to CKA, but their fourth powers must not overflow.
    size = centred.detach().abs().amax((1, 2), keepdim=True)
    differs = size > _CONSTANT * rows.detach().abs().amax((1, 2), keepdim=True)
    centred = torch.where(differs, centred / torch.where(differs, size, 1.0), 0.0)
    products = centred @ centred.mT
    square = products.square().sum((1, 2), keepdim=True)
    return products / torch.where(differs, square, 1.0).sqrt()


def fedcka(
    mu: float = 3.0, *, layers: int = 2, temperature: float = 1.0, server: ServerRule = WeightedMean()
) -> Method:
    return Method("fedcka", FedCKA(mu, layers, temperature), server)
