"""How many clients a server's step leads uphill for: over the whole model, and in each of its layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from equipoise.layout import pieces

_CHUNK = 1 << 17  # numbers that are turned into float64 at a time: they stay in a core's own cache
_ROOM = 1 << 26  # the same on a GPU, where every piece costs a few launches (512 MiB)
_COLUMNS = 1 << 16  # columns that are added up in float32 at a time: rounding grows with their number


def conflicts(
    updates: Tensor, direction: Tensor, layers: Mapping[str, Sequence[slice]], norms: Tensor | None = None
) -> dict[str, int]:
    """How many clients' updates [K, d] oppose the server's direction [d], over the "model" and in each layer.

    Client k is in conflict where u_k . direction < 0: the step w - direction leads uphill for it. FedLF's Table 2
    counts g_k . d > 0 for the step w + d, which is the same, since its d is minus our direction. `norms` [K] of the
    updates, if known, save a look at all of them.
    """
    against = opposed(updates, direction, layers, norms)
    return dict(zip(conflict_names(layers), against.tolist(), strict=True))


def opposed(
    updates: Tensor, direction: Tensor, layers: Mapping[str, Sequence[slice]], norms: Tensor | None = None
) -> Tensor:
    """The numbers of `conflicts` in their order; a GPU may still be at work on them."""
    d, groups = direction.shape[0], list(layers.values())
    complete = sum(part.stop - part.start for parts in groups for part in parts) == d > 0
    dots = _products(updates, direction, groups if complete else [*groups, [slice(0, d)]], norms)
    whole = dots.sum(0) if complete else dots[-1]
    return (torch.cat([whole[None], dots[: len(groups)]]) < 0).sum(1)


def conflict_names(layers: Iterable[str]) -> list[str]:
    """What `conflicts` calls its counts: "model", then the layers."""
    return ["model", *(f"{name} (layer)" if name == "model" else name for name in layers)]


def _products(updates: Tensor, direction: Tensor, groups: Sequence[Sequence[slice]], norms: Tensor | None) -> Tensor:
    """[groups, K]: inner products whose signs, and those of their sums over groups, are those that float64 gives.

    On a CPU float32 is tried first, in half the time: where rounding cannot have turned a sign, that is good enough.
    """
    if updates.is_cuda and updates.numel() <= _ROOM:  # in one go: every piece costs a few launches
        updates, direction = updates.double(), direction.double()
    if updates.device.type != "cpu" or updates.dtype != torch.float32 or direction.dtype != torch.float32:
        return torch.stack([_dots(updates, direction, parts) for parts in groups])
    norms = torch.linalg.vector_norm(updates, dim=1) if norms is None else norms
    dots, off = _rough(updates, direction, groups, norms)
    sure = (dots.abs() > off).all(0) & (dots.sum(0).abs() > off.sum(0))  # never true of NaN or infinity - infinity
    if not bool(sure.all()):
        left = updates[~sure]
        dots[:, ~sure] = torch.stack([_dots(left, direction, parts) for parts in groups])
    return dots


def _rough(
    updates: Tensor, direction: Tensor, groups: Sequence[Sequence[slice]], norms: Tensor
) -> tuple[Tensor, Tensor]:
    """[groups, K]: the inner products in float32, and how far off they may be."""
    dots, off = torch.zeros((2, len(groups), len(updates)), dtype=torch.float64)
    for g, piece in ((g, piece) for g, parts in enumerate(groups) for piece in pieces(parts, _COLUMNS)):
        v = direction[piece]
        dots[g] += updates[:, piece] @ v
        off[g] += torch.linalg.vector_norm(v) * (len(v) * 2.0**-23)  # twice the bound for so many products
    return dots, off * norms + 1e-30  # a piece of an update is no longer than the whole; and what underflows


def _dots(updates: Tensor, direction: Tensor, parts: Sequence[slice]) -> Tensor:
    """[K]: the inner products over some slices, in float64, a few columns at a time."""
    room = _ROOM if updates.is_cuda else _CHUNK
    each = pieces(parts, max(1, room // max(1, updates.shape[0])))
    dots = [updates[:, piece].double() @ direction[piece].double() for piece in each]
    if len(dots) == 1:
        return dots[0]
    return torch.stack(dots).sum(0) if dots else updates.new_zeros(len(updates), dtype=torch.float64)
