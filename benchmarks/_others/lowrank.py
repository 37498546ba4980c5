"""The same steps without clients' models: after s of them a weight is W_0 - lr sum_t g_t' x_t, and W_0 is everyone's.

Inputs x_t and gradients g_t of ten samples say all about a step, so a layer's answer is one product with W_0 for all
clients, for the first layer even for all steps, and a correction by what this batch's inputs have in common with those
before. Models are made once, in the end. It can do plain SGD on linear layers from a common start, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from common import Problem
from torch import Tensor
from torch_model import samples


class Layer:
    """A linear layer of K clients: of all steps [K, S B, ...] its inputs and, times -lr, its outputs' gradients."""

    def __init__(self, weight: Tensor, bias: Tensor, inputs: Tensor) -> None:
        self.weight, self.bias, self.inputs = weight, bias, inputs
        self.taken = inputs.new_zeros((*inputs.shape[:2], len(weight)))

    def plain(self, inputs: Tensor) -> Tensor:
        """[K, n, out]: with the weights that all began with."""
        return torch.addmm(self.bias, inputs.reshape(-1, inputs.shape[2]), self.weight.t()).view(*inputs.shape[:2], -1)

    def forward(self, answers: Tensor, alike: Tensor, done: int) -> Tensor:
        """`alike`: how much this batch's inputs have in common with those before, the bias's 1 included."""
        return torch.baddbmm(answers, alike, self.taken[:, :done]) if done else answers

    def backward(self, g: Tensor, done: int) -> Tensor:
        back = torch.mm(g.reshape(-1, g.shape[2]), self.weight).view(*g.shape[:2], -1)
        if done:
            back.baddbmm_(torch.bmm(g, self.taken[:, :done].mT), self.inputs[:, :done])
        return back

    def rows(self) -> list[Tensor]:
        return [torch.baddbmm(self.weight, self.taken.mT, self.inputs), self.bias + self.taken.sum(1)]


def local(model: list[Tensor], x: Tensor, y: Tensor, steps: int, lr: float) -> list[Tensor]:
    """Models [K, ...] after all steps on x [K, S B, in], y [K, S B]."""
    k, b = len(x), x.shape[1] // steps
    layers = [Layer(model[0], model[1], x)]
    for w, bias in zip(model[2::2], model[3::2], strict=True):
        layers.append(Layer(w, bias, x.new_empty((k, x.shape[1], w.shape[1]))))
    first, alike = layers[0].plain(x), torch.baddbmm(x.new_ones((1, 1, 1)), x, x.mT)
    for done in range(0, x.shape[1], b):
        now = slice(done, done + b)
        z = layers[0].forward(first[:, now], alike[:, now, :done], done)
        for layer in layers[1:]:
            h = layer.inputs[:, now].copy_(z).relu_()
            z = layer.forward(layer.plain(h), torch.bmm(h, layer.inputs[:, :done].mT).add_(1), done)
        g = torch.softmax(z, -1)
        g.scatter_add_(2, y[:, now, None], g.new_full((1, 1, 1), -1.0).expand(k, b, 1)).mul_(-lr / b)
        for layer in reversed(layers):
            layer.taken[:, now] = g
            if layer is not layers[0]:
                g = layer.backward(g, done).mul_(layer.inputs[:, now] > 0)
    return [t for layer in layers for t in layer.rows()]


@torch.no_grad()
def rounds(given: Problem, ended: Callable[[int], None] = lambda done: None) -> dict[str, np.ndarray]:
    assert given.model == "mlp"
    x, y = samples(given)
    x, index, sizes = x.flatten(1), torch.from_numpy(given.index), torch.from_numpy(given.sizes).to(x.dtype)
    model = [torch.from_numpy(w) for w in given.weights.values()]
    k, steps = index.shape[1:3]
    for t in range(given.rounds):
        at = index[t].reshape(-1)
        rows = local(model, x.index_select(0, at).view(k, -1, x.shape[1]), y[at].view(k, -1), steps, given.lr)
        share = sizes[given.drawn[t]]
        share = share / share.sum()
        model = [(share @ p.reshape(k, -1)).view(m.shape) for p, m in zip(rows, model, strict=True)]
        ended(t + 1)
    return {n: p.numpy() for n, p in zip(given.weights, model, strict=True)}
