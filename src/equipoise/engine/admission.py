"""The door: what a client sent is checked before any server rule sees it.

Two stages. `decode` looks at a raw message, names, shapes and types, and makes a row of it. `admit` looks at the rows
together: finite numbers, sane claims, and, if asked for, norms and sizes out of proportion to the cohort; what remains
passes the guard. A client that fails is quarantined for the round with a reason, and the round goes on as if it had
been absent. Nothing in here raises for anything a client can send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from equipoise.engine.exchange import Replies
from equipoise.engine.guard import guarded
from equipoise.engine.settings import Admission
from equipoise.layout import Layout

REASONS = {
    "names": "its tensors are not the model's",
    "shape": "a tensor has another shape than the model's",
    "dtype": "a tensor does not hold floating point numbers",
    "not-finite": "the update holds NaN or infinity",
    "loss": "the reported loss is NaN or infinite",
    "size": "the reported size is NaN, infinite or negative",
    "signal": "a reported signal is missing, misshapen, NaN or infinite",
    "norm": "the update is too large for this cohort",
}


def decode(message: object, layout: Layout) -> tuple[np.ndarray | None, str]:
    """One client's {name: array} as a row [d], or None and the reason why not. Looks before it copies."""
    if not isinstance(message, Mapping) or set(message) != {s.name for s in layout.slots}:
        return None, "names"
    row = np.empty(layout.size, dtype=np.float64)
    for s in layout.slots:
        a = message[s.name]
        if not isinstance(a, np.ndarray) or a.dtype.kind != "f":
            return None, "dtype"
        if a.shape != s.shape:
            return None, "shape"
        row[s.start : s.stop] = a.reshape(-1)
    return row, ""


@dataclass(frozen=True)
class Admitted:
    """The replies that passed, and why the others did not."""

    replies: Replies
    norms: Tensor
    """[K]: how long their updates are, as far as the updates' own type can tell."""
    quarantined: dict[int, str]
    capped: tuple[int, ...] = ()
    """Clients whose reported size was lowered to the cap."""
    guarded: tuple[int, ...] = ()
    """Clients whose reports were out of proportion, and were taken as less."""


def admit(replies: Replies, settings: Admission) -> Admitted:
    """Check the rows of a round; the order of the checks is the order of REASONS."""
    sound, quarantined = replies, {}
    norms = torch.linalg.vector_norm(replies.updates, dim=1)
    if settings.norm_cap is not None or not _all_sound(replies, norms):
        codes, names = _first_failures(replies, settings), tuple(REASONS)
        told = zip(replies.ids.tolist(), codes.tolist(), strict=True)
        quarantined = {client: names[code] for client, code in told if code != _FINE}
        if quarantined:
            sound, norms = _rows(replies, codes == _FINE), norms[codes == _FINE]
    kept = _cap_sizes(sound, settings.size_cap)
    capped = () if settings.size_cap is None else tuple(kept.ids[kept.sizes < sound.sizes].tolist())
    kept, out = guarded(replace(kept, refused={}), settings.guard, settings.guard_width)
    return Admitted(kept, norms, {**replies.refused, **quarantined}, capped, out)


_FINE = len(REASONS)


def _all_sound(replies: Replies, norms: Tensor) -> bool:
    """Whether no row fails anything, in one question to the device: the usual case.

    What is not finite makes an update's norm so; one that only overflows is looked into, like any that fails.
    """
    k = len(replies.ids)
    if any(signal.shape[:1] != (k,) for signal in replies.signals.values()):
        return False
    told = [norms, replies.sizes, *replies.signals.values()]
    told += [] if replies.losses is None else [replies.losses]
    return all_finite(told, (replies.sizes >= 0).all())


def all_finite(tensors: Iterable[Tensor], *more: Tensor) -> bool:
    """Whether all numbers are finite, and `more` flags true, in one question to each device.

    One NaN or infinity spoils a sum, the cheapest look at all of them; a sum that overflows is looked into.
    """
    told = [t for t in tensors if t.is_floating_point()]
    looks = [*(t.sum().double() for t in told), *(torch.where(m, 0.0, torch.nan) for m in more)]
    devices = {t.device for t in looks}
    if all(bool(torch.stack([t for t in looks if t.device == d]).isfinite().all()) for d in devices):
        return True
    return all(bool(torch.isfinite(t).all()) for t in told) and all(bool(m) for m in more)


def _first_failures(replies: Replies, settings: Admission) -> Tensor:
    """[K]: the number of the first check in REASONS that each row fails, _FINE if it fails none."""
    k, names = len(replies.ids), list(REASONS)
    codes = torch.full((k,), _FINE, dtype=torch.int64, device=replies.ids.device)

    def fail(bad: Tensor, reason: str) -> None:
        nonlocal codes
        codes = torch.where((codes == _FINE) & bad, names.index(reason), codes)

    fail(~torch.isfinite(replies.updates).all(1), "not-finite")
    if replies.losses is not None:
        fail(~torch.isfinite(replies.losses), "loss")
    sizes = replies.sizes.to(torch.float64)
    fail(~torch.isfinite(sizes) | (sizes < 0), "size")
    for signal in replies.signals.values():
        if signal.shape[:1] != (k,):
            fail(torch.ones_like(codes, dtype=torch.bool), "signal")
        else:
            fail(~torch.isfinite(signal).reshape(k, -1).all(1), "signal")
    if settings.norm_cap is not None and bool((codes == _FINE).any()):
        norms = torch.linalg.vector_norm(replies.updates, dim=1, dtype=torch.float64)
        fail(norms > settings.norm_cap * norms[codes == _FINE].median(), "norm")
    return codes


def _rows(replies: Replies, good: Tensor) -> Replies:
    losses = None if replies.losses is None else replies.losses[good]
    signals = {n: s[good] for n, s in replies.signals.items() if s.shape[:1] == good.shape}
    return Replies(replies.ids[good], replies.updates[good], replies.sizes[good], losses, signals, replies.refused)


def _cap_sizes(replies: Replies, cap: float | None) -> Replies:
    if cap is None or len(replies.ids) == 0:
        return replies
    limit = cap * replies.sizes.to(torch.float64).median()
    return replace(replies, sizes=torch.minimum(replies.sizes.to(torch.float64), limit).to(replies.sizes.dtype))
