"""How far clients are that train alone, for whoever waits: it may take longer than all rounds after it.

    with told(listener):  # is called with an Alone now and then
        simulation.step()

Nothing rests on it, and without a listener it costs nothing. Threads that the listening one has started are not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Alone:
    """Clients that train alone, without the federation."""

    done: int
    most: int
    """Epochs or rounds; they may be done before."""
    ids: Sequence[int]
    busy: int | None = None
    """How many of them still train; None: all do until the end."""
    unit: str = "epoch"

    def __str__(self) -> str:
        many = f"{len(self.ids)} clients" if self.busy is None else f"{self.busy} of {len(self.ids)} left"
        who = many if len(self.ids) > 1 else f"client {self.ids[0]}"
        return f"training alone, {self.unit} {self.done}/{self.most}, {who}"  # short: it stands beside a bar


Listener = Callable[[Alone], None]
_listener: ContextVar[Listener | None] = ContextVar("_listener", default=None)


@contextmanager
def told(listener: Listener) -> Iterator[None]:
    """Meanwhile, tell this listener; one inside another takes over."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(done: int, most: int, ids: Tensor, busy: int | None = None, unit: str = "epoch") -> None:
    """What whoever trains clients alone says of it."""
    listener = _listener.get()
    if listener is not None:
        listener(Alone(done, most, ids.tolist(), busy, unit))
