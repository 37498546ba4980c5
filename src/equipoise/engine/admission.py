"""The door: what a client sent is checked before any server rule sees it.

Two stages. `decode` looks at a raw message, names, shapes and types, and makes a row of it. `admit` looks at the rows
together: finite numbers, sane claims, and, if asked for, norms and sizes out of proportion to the cohort; what remains
passes the guard. A client that fails is quarantined for the round with a reason, and the round goes on as if it had
been absent. Nothing in here raises for anything a client can send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equipoise.engine.exchange import Replies
from equipoise.engine.guard import guarded
from equipoise.engine.settings import Admission
from equipoise.layout import Layout
from equipoise.questions import answer, near

Flags = npt.NDArray[np.float64]
Kind = tuple[bool, tuple[str, ...]]
"""Whether there are losses, and the names of signals."""
Judge = Callable[..., tuple[Tensor, ...]]

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
    ids: tuple[int, ...] = ()
    """Whose they are."""
    capped: tuple[int, ...] = ()
    """Clients whose reported size was lowered to the cap."""
    guarded: tuple[int, ...] = ()
    """Clients whose reports were out of proportion, and were taken as less."""


@dataclass(frozen=True)
class Presumed:
    """What is admitted if every row is sound, which nobody has asked a device about yet."""

    replies: Replies
    norms: Tensor
    flags: Tensor
    """[3, K] bool: whether all are sound, whose size was capped, whose reports were guarded."""


def presume(replies: Replies, settings: Admission, judge: Judge | None = None) -> Presumed | None:
    """Everything about a round of sound rows, the usual case; None where they must be looked at one by one.

    `judge`, if there is one for these settings, is `judged` made fit for a GPU.
    """
    k, lost = len(replies.ids), replies.losses
    if k == 0 or settings.norm_cap is not None or any(s.shape[:1] != (k,) for s in replies.signals.values()):
        return None
    # What is not finite makes an update's norm so; one that only overflows is looked into, like any that fails.
    norms = torch.linalg.vector_norm(replies.updates, dim=1)
    kind, reports = (lost is not None, tuple(replies.signals)), ([] if lost is None else [lost])
    given = norms, replies.sizes, *reports, *replies.signals.values()
    flags, sizes, *told = (judge or partial(judged, settings))(kind, *given)
    losses, signals = (None, told) if lost is None else (told[0], told[1:])
    kept = replace(replies, sizes=sizes, losses=losses, signals=dict(zip(replies.signals, signals, strict=True)))
    return Presumed(replace(kept, refused={}), norms, flags)


def judged(settings: Admission, kind: Kind, norms: Tensor, sizes: Tensor, *reports: Tensor) -> tuple[Tensor, ...]:
    """What clients say about themselves, as it is counted: flags as in `Presumed`, sizes, losses if any, signals."""
    with_losses, names = kind
    losses, signals = (reports[0], reports[1:]) if with_losses else (None, reports)
    sound = torch.stack(glances([norms, sizes, *reports], (sizes >= 0).all())).all()
    told = Replies(sizes, norms, sizes, losses, dict(zip(names, signals, strict=True)))
    kept, flags = _counted(told, settings, sound)
    return flags, kept.sizes, *([] if kept.losses is None else [kept.losses]), *kept.signals.values()


def _counted(replies: Replies, settings: Admission, sound: Tensor) -> tuple[Replies, Tensor]:
    capped = _cap_sizes(replies, settings.size_cap)
    touched = capped.sizes < replies.sizes
    kept, out = guarded(capped, settings.guard, settings.guard_width)
    return kept, torch.stack([sound.expand_as(out), touched, out])


def admit(
    replies: Replies, settings: Admission, presumed: Presumed | None = None, flags: Flags | None = None
) -> Admitted:
    """Check the rows of a round; the order of the checks is the order of REASONS.

    What was `presumed` of them, if it was, is admitted if it proves true, which its `flags` say in host memory.
    """
    presumed = presumed or presume(replies, settings)
    if presumed is not None:
        sound, *touched = answer(presumed.flags)[0] if flags is None else flags
        if sound.all():
            return _admitted(presumed, touched, {}, replies.refused)
    codes, names = _first_failures(replies, settings), tuple(REASONS)
    told = zip(replies.ids.tolist(), codes.tolist(), strict=True)
    quarantined = {client: names[code] for client, code in told if code != _FINE}
    good = _rows(replies, codes == _FINE)
    norms = torch.linalg.vector_norm(good.updates, dim=1)
    kept, marks = _counted(replace(good, refused={}), settings, torch.ones((), dtype=torch.bool, device=norms.device))
    return _admitted(Presumed(kept, norms, marks), answer(marks)[0][1:], quarantined, replies.refused)


def _admitted(
    presumed: Presumed, touched: Iterable[Flags], quarantined: dict[int, str], refused: Mapping[int, str]
) -> Admitted:
    ids = near(presumed.replies.ids).tolist()
    capped, out = (tuple(i for i, hit in zip(ids, hits, strict=True) if hit) for hits in touched)
    return Admitted(presumed.replies, presumed.norms, {**refused, **quarantined}, tuple(ids), capped, out)


_FINE = len(REASONS)


def glances(tensors: Iterable[Tensor], *more: Tensor) -> list[Tensor]:
    """For each device a flag, true only if all numbers there are finite and `more` flags true; nothing is asked.

    One NaN or infinity spoils a sum, the cheapest look at all of them; a sum that overflows does too.
    """
    told = [t for t in tensors if t.is_floating_point()]
    looks = [*map(total, told), *(torch.where(m, 0.0, torch.nan) for m in more)]
    devices = dict.fromkeys(t.device for t in looks)
    return [torch.stack([t for t in looks if t.device == d]).isfinite().all() for d in devices]


def total(t: Tensor) -> Tensor:
    """A sum: in the type of its numbers, as it is only looked at; to turn all of them into float64 takes longer."""
    return t.sum().double()


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers are finite."""
    told = [t for t in tensors if t.is_floating_point()]
    return all(bool(flag) for flag in glances(told)) or all(bool(torch.isfinite(t).all()) for t in told)


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
    ids, updates, sizes = (t[good] for t in (replies.ids, replies.updates, replies.sizes))
    return Replies(ids, updates, sizes, losses, signals, replies.refused)


def _cap_sizes(replies: Replies, cap: float | None) -> Replies:
    if cap is None or len(replies.ids) == 0:
        return replies
    limit = cap * replies.sizes.to(torch.float64).median()
    return replace(replies, sizes=torch.minimum(replies.sizes.to(torch.float64), limit).to(replies.sizes.dtype))
