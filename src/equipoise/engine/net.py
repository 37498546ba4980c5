"""A model as a pure function of rows of parameters: one client's at a time, or the whole cohort's at once.

`forward` exists in two forms that agree up to rounding. `vmap` maps the module over rows with torch.func, so that a
linear layer becomes one batched matrix product for all clients; the other calls the module plainly, for one row, and
is the oracle that the first is tested against.

Plainly and on a CPU, a model with convolutions is shown images with the channels of a pixel side by side, if it works
as well on these: max-pools then take several numbers at once, and steps of CNNs a sixth less time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from equipoise.engine.asked import Asked
from equipoise.engine.precision import forward_in, widened
from equipoise.layout import Layout
from equipoise.losses import loss_for
from equipoise.modules import adapt, dropout_keys, weights

_CLOSE = 1e-3  # rounding, and a max-pool that picks another of two equals


class Net:
    """An adapted module, its layout as a vector, and the per-sample loss."""

    def __init__(self, module: nn.Module, classes: int, loss: str, device: torch.device, dtype: torch.dtype) -> None:
        self.module = adapt(module).to(device=device, dtype=dtype)
        self.layout = Layout.of(weights(self.module))
        self.loss = loss_for(loss, classes)
        self._spare: dict[bool, list[nn.Module]] = {True: [], False: []}
        self.keys = dropout_keys(self.module)
        self.asked = Asked(device)
        self.convolves = any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in self.module.modules())
        self.pixels = False
        """Whether images are shown pixel by pixel, see `show`."""

    def initial(self) -> Tensor:
        """The module's own weights, as a vector."""
        return self.layout.vector(weights(self.module))

    def show(self, shape: torch.Size) -> None:
        """From now on, show images of this shape pixel by pixel, if that is faster and the model takes them so."""
        first = next(iter(weights(self.module).values()))
        if len(shape) == 3 and self.convolves and first.device.type == "cpu" and first.dtype == torch.float32:
            some = torch.linspace(-1, 1, 3 * shape.numel()).sin().view(3, *shape)
            probe = copy.deepcopy(self.module)
            self.pixels = all(_takes_pixels(probe.train(train), some) for train in (False, True))

    def call(
        self,
        params: dict[str, Tensor],
        x: Tensor,
        key: Tensor,
        *,
        vectorised: bool,
        train: bool,
        features: int = 0,
        precision: str = "full",
    ) -> tuple[Tensor, ...]:
        """Outputs [K, B, ...] of K models {name: [K, ...]} on K batches x [K, B, ...], then the outputs of their first
        `features` layers; key [K] drives dropout."""
        with self._borrowed(train) as module, forward_in(precision, x.device):

            def one(params: dict[str, Tensor], x: Tensor, key: Tensor) -> tuple[Tensor, ...]:
                with _listening(module, features) as heard:
                    out = functional_call(module, {**params, **dict.fromkeys(self.keys, key)}, (x,))
                return tuple(widened(t) for t in (out, *heard))

            if vectorised:
                mapped: Callable[..., Any] = vmap(one)
                return tuple(mapped(params, x, key))
            first = {n: p[0] for n, p in params.items()}
            return tuple(t[None] for t in one(first, _by_pixel(x[0]) if self.pixels else x[0], key[0]))

    @contextmanager
    def _borrowed(self, train: bool) -> Iterator[nn.Module]:
        """A copy of the module for one caller at a time: functional_call swaps parameters in place, so threads must
        not share one."""
        spare = self._spare[train]
        try:
            module = spare.pop()
        except IndexError:  # asking first would leave time for another thread to take the last one
            module = copy.deepcopy(self.module).train(train)
        try:
            yield module
        finally:
            spare.append(module)

    def forward(self, rows: Tensor, x: Tensor, y: Tensor, *, vectorised: bool) -> tuple[Tensor, Tensor]:
        """Evaluation without gradients: outputs [K, B, ...] and losses [K, B] of the models `rows`."""
        if vectorised and len(rows) > 1 and rows.stride(0) == 0:  # one model for everyone: one batch is faster
            with self.asked.apart():
                out, losses = self.forward(rows[:1], x.flatten(0, 1)[None], y.flatten(0, 1)[None], vectorised=False)
            return out.view(*x.shape[:2], *out.shape[2:]), losses.view(x.shape[:2])
        key = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
        with torch.no_grad(), self.asked.apart() if vectorised else nullcontext():
            (out,) = self.call(self.layout.tensors(rows), x, key, vectorised=vectorised, train=False)
            return out, self.loss(out, y)


def _by_pixel(x: Tensor) -> Tensor:
    """Images [B, C, H, W] with the channels of a pixel side by side; with one channel torch has to be told twice."""
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


def _takes_pixels(module: nn.Module, x: Tensor) -> bool:
    """Whether a module answers images pixel by pixel as it answers them otherwise, with the same derivatives."""
    try:
        plain, other = (_asked(module, t) for t in (x, _by_pixel(x)))
    except Exception:  # `view` of what lies so fails, and a module may have words of its own for what it minds
        return False
    alike = plain[0].stride() == other[0].stride()
    return alike and all(_near(a, b) for a, b in zip(plain, other, strict=True))


def _asked(module: nn.Module, x: Tensor) -> list[Tensor]:
    """What a module answers, and the derivatives of some function of that."""
    out = module(x)
    told = (out * torch.linspace(1, 2, out.numel()).view(out.shape)).sum()
    grads = torch.autograd.grad(told, list(weights(module).values()), materialize_grads=True)
    return [out.detach(), *grads]


def _near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= _CLOSE * a.norm().clamp(min=_CLOSE))


@contextmanager
def _listening(module: nn.Module, layers: int) -> Iterator[list[Tensor]]:
    """Collects what the first `layers` layers (modules with parameters of their own) put out."""
    heard: list[Tensor] = []
    own = [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))] if layers else []
    hooks = [m.register_forward_hook(lambda m, i, out: heard.append(out)) for m in own[:layers]]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
