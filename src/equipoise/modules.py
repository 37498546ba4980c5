"""How to make any module fit the engine.

`adapt` takes any module and returns a copy that can be trained for many clients at once, or says why it cannot: nothing
in it may depend on other samples of the batch, remember a batch, or draw random numbers that the run does not know of.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from equipoise.errors import EquipoiseError, first_line
from equipoise.streams import Stream


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of `key` and of an element's position, and of nothing else.

    The same client and step therefore get the same mask alone, among other clients under vmap (with one key each),
    padded to a longer batch, on any device. `trailing` dimensions share their fate (whole channels, as in Dropout2d).
    The first dimension is the batch.
    """

    key: Tensor

    def __init__(self, p: float = 0.5, trailing: int = 0, salt: int = 0) -> None:
        super().__init__()
        self.p, self.trailing, self.salt = p, trailing, salt
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        if self.p == 1.0:
            return x * 0.0
        shape = (*x.shape[: x.ndim - self.trailing], *[1] * self.trailing)
        place = torch.arange(math.prod(shape), device=x.device).view(shape)
        keep = Stream(self.salt).bits(self.key, place) >= int(self.p * 2**64) - 2**63
        return x * (keep.to(x.dtype) / (1.0 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}, trailing={self.trailing}"


_TRAILING = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}


def weights(module: nn.Module) -> dict[str, Tensor]:
    """What is trained, sent and averaged: parameters that require a gradient, a shared one once, by its first name.

    Parameters with `requires_grad = False` and all buffers are constants, the same for every client.
    """
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def dropout_keys(module: nn.Module) -> tuple[str, ...]:
    """The names of the buffers in an adapted module that set its dropout masks; give all of them the same key."""
    return tuple(f"{path}.key" if path else "key" for path, m in module.named_modules() if isinstance(m, KeyedDropout))


def adapt(module: nn.Module) -> nn.Module:
    """A copy of any module, made fit for the engine; EquipoiseError names the part that cannot be.

    Dropout becomes `KeyedDropout`, each with a mask of its own. See `weights` for what is trained.
    """
    everything: Iterable[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in everything:
        if is_lazy(tensor):
            raise EquipoiseError(f"model: {name} is not initialised yet", "call the model once on a batch, then use it")
    for path, part in module.named_modules():
        _refuse(path or "the model itself", part)
    if not weights(module):
        hint = "at least one parameter must require a gradient"
        raise EquipoiseError(f"model: {type(module).__name__} has no parameter to train", hint)
    _one_dtype(everything)
    try:
        fit = copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        raise EquipoiseError(f"model: {type(module).__name__} cannot be copied: {error}") from error
    return _with_keyed_dropout(fit)


def _refuse(path: str, part: nn.Module) -> None:
    name = type(part).__name__
    if isinstance(part, torch.jit.ScriptModule):
        hint = "give the module itself, as it was before torch.jit"
        raise EquipoiseError(f"model: {path} is a {name}, which can be called only with its own parameters", hint)
    if isinstance(part, _BatchNorm) or (isinstance(part, _InstanceNorm) and part.track_running_stats):
        raise EquipoiseError(
            f"model: {path} is a {name}, whose statistics mix the samples of a batch and are no parameters",
            'use GroupNorm, or a network without normalisation (kind "resnet")',
        )
    if isinstance(part, _DropoutNd) and type(part) not in _TRAILING:
        raise EquipoiseError(f"model: {path} is a {name}", "use Dropout, Dropout1d, Dropout2d or Dropout3d")


def _one_dtype(tensors: Iterable[tuple[str, Tensor]]) -> None:
    real = {name: t.dtype for name, t in tensors if t.is_floating_point() or t.is_complex()}
    first, dtype = next(iter(real.items()))
    for name, other in real.items():
        if other != dtype or not other.is_floating_point:
            raise EquipoiseError(
                f"model: {first} is {dtype} and {name} is {other}", "one real type, as in model.float()"
            )


def _with_keyed_dropout(module: nn.Module) -> nn.Module:
    made: dict[int, KeyedDropout] = {}
    device = next(module.parameters()).device
    for path, part in list(module.named_modules(remove_duplicate=False)):
        if isinstance(part, _DropoutNd):
            parent, _, name = path.rpartition(".")
            # One dropout under two names stays one, so that `check_forward` sees it called twice.
            keyed = made.setdefault(id(part), KeyedDropout(part.p, _TRAILING[type(part)]))
            setattr(module.get_submodule(parent), name, keyed.to(device).train(part.training))
    for path, part in module.named_modules():
        if isinstance(part, KeyedDropout):
            part.salt = Stream(0).child("dropout", path).key
    return module


def check_forward(module: nn.Module, x: Tensor) -> Tensor:
    """The outputs of an adapted module for one batch in training mode, if it behaves; the module is not changed.

    EquipoiseError names a tensor that it writes to, a dropout used twice, random numbers drawn outside of
    `KeyedDropout`, outputs that are no [B, C], numbers that are not finite, or what PyTorch says of it.
    """
    for name, parameter in module.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise EquipoiseError(f"model: parameter {name} holds NaN or infinity", "give it finite initial weights")
    probe, calls = copy.deepcopy(module).train(), Counter[str]()
    for path, part in probe.named_modules():
        if isinstance(part, KeyedDropout):
            part.register_forward_hook(lambda *_, path=path: calls.update([path]))
    held = dict([*probe.named_parameters(), *probe.named_buffers()])
    versions = {name: tensor._version for name, tensor in held.items()}
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        before = _random_state(x)
        outputs = _pass(probe, x)
        drawn = not torch.equal(before, _random_state(x))
    _check_untouched(probe, held, versions)
    for path, count in calls.items():
        if count > 1:
            hint = "give every place a dropout module of its own, or their masks are the same"
            raise EquipoiseError(f"model: {path} is called {count} times in one pass", hint)
    if drawn:
        hint = "use nn.Dropout modules; no F.dropout, no dropout inside attention or recurrent layers"
        raise EquipoiseError("model: it draws random numbers of its own in training", hint)
    if not bool(outputs.isfinite().all()):
        hint = "make its initial weights smaller, or bring x to a scale of about 1"
        raise EquipoiseError(f"model: its outputs for a batch {tuple(x.shape)} hold NaN or infinity", hint)
    return outputs


def _pass(probe: nn.Module, x: Tensor) -> Tensor:
    """Forward and backward as in a client's step: with parameters from outside, and a gradient for each of them."""
    leaves, batch = weights(probe), f"on a batch {tuple(x.shape)} {x.dtype}"
    with _blaming(probe, x, f"fails {batch}"), torch.enable_grad():
        outputs = functional_call(probe, leaves, (x,))
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[0] != x.shape[0]:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise EquipoiseError(f"model: a batch of {x.shape[0]} gives {found}", "outputs must be [batch, classes]")
    with _blaming(probe, x, f"has no gradient {batch}"):
        grads = torch.autograd.grad(outputs.sum(), list(leaves.values()), allow_unused=True)
    for name, grad in zip(leaves, grads, strict=True):
        if grad is not None and grad.layout != torch.strided:
            raise EquipoiseError(f"model: the gradient of {name} is sparse", "use nn.Embedding(..., sparse=False)")
    return outputs.detach()


@contextmanager
def _blaming(module: nn.Module, x: Tensor, what: str) -> Iterator[None]:
    """What PyTorch says in the middle of a model, told as an error of the model."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        told = f"model: {type(module).__name__} {what}: {first_line(str(error)) or type(error).__name__}"
        raise EquipoiseError(told, _advice(module, x)) from error


def _advice(module: nn.Module, x: Tensor) -> str:
    if x.is_floating_point():
        return f"it is called with batches of samples, each of shape {tuple(x.shape[1:])}"
    rows = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    if not rows:
        return "whole numbers are taken for tokens; if they are none, make x float: x.astype('float32')"
    seen = f"tokens here run from {int(x.min())} to {int(x.max())}"
    return f"{seen}, and an embedding of {min(rows)} rows takes 0 to {min(rows) - 1}"


def _check_untouched(probe: nn.Module, held: Mapping[str, Tensor], versions: Mapping[str, int]) -> None:
    """Refuses tensors that the pass wrote to or put others in the place of.

    To write the same numbers again is writing too: spectral_norm's vectors stand still only until the weights move.
    """
    now = dict(probe.named_buffers())
    for name, tensor in held.items():
        if isinstance(tensor, nn.Parameter):
            if tensor._version != versions[name]:
                hint = "a model may not write to its parameters; nn.Embedding: no max_norm"
                raise EquipoiseError(f"model: parameter {name} changes in a pass", hint)
        elif tensor._version != versions[name] or name not in now or not torch.equal(tensor, now[name]):
            raise EquipoiseError(f"model: buffer {name} changes in training", "a model may not remember batches")


def _random_state(x: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()
