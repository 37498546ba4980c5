"""Who holds what: ways of dealing one dataset out to clients.

A partitioner deals the positions 0..n-1 of a pool; most say only how large a share of each class every client gets, and
the rest is common to all. For every kind: no sample goes to two clients; every sample of the pool goes to one (where
`samples` asks for a subset: every sample of that); the same stream gives the same parts. Shares are rounded class by
class to whole numbers that add up exactly. Whoever is then left with fewer than `min_size` samples is topped up from
the largest clients that hold its classes: drawing again until it fits may never end, and changes the distribution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.data.dealing import apportion, deal, gather, top_up
from equipoise.data.federation import Dataset
from equipoise.errors import EquipoiseError, nearest, positive, require
from equipoise.streams import Stream


def _consecutive(first: Tensor, held: Tensor, classes: int) -> Tensor:
    """[N, C] of 1 and 0: client u holds `held[u]` classes from `first[u]` on, round the classes."""
    return ((torch.arange(classes) - first[:, None]) % classes < held[:, None]).to(torch.float64)


def _require_classes(kind: str, held: int, data: Dataset) -> None:
    """A client cannot hold more classes than there are; of a regression, which has none, `parts` complains."""
    if held > data.classes > 0:
        found = f"{kind}: classes is {held} per client, but {data.name} has {data.classes}"
        raise EquipoiseError(found, f"at most {data.classes}")


def _require_enough(kind: str, samples: int, n_clients: int, pool: int) -> None:
    """That many samples for each client must be there."""
    if samples * n_clients > pool:
        found = f"{kind}: samples is {samples} for {n_clients} clients, but the pool has {pool}"
        raise EquipoiseError(found, f"at most {pool // n_clients} per client")


class Partitioner(ABC):
    """Deals a pool of samples out to clients; holds hyper-parameters only."""

    kind: ClassVar[str]

    def check(self, data: Dataset) -> None:
        """Complain about what this dataset cannot have."""

    def key(self, data: Dataset) -> Tensor:
        """The column that `parts` deals by."""
        return data.y

    @abstractmethod
    def parts(self, labels: Tensor, n_clients: int, stream: Stream) -> list[Tensor]:
        """The positions that each client gets, ascending."""


class ByShares(Partitioner):
    """Says how the classes are shared out; one that needs no classes sees all samples as a single one."""

    needs_classes: ClassVar[bool] = True
    min_size: int
    """The fewest samples that a client may hold; 0 allows clients without any."""

    @abstractmethod
    def shares(self, totals: Tensor, n_clients: int, stream: Stream) -> Tensor:
        """[N, C] weights: how a class, with totals[c] samples, is shared out. 0: the client never holds the class."""

    def counts(self, totals: Tensor, shares: Tensor, stream: Stream) -> Tensor:
        """[N, C]: the shares in whole samples."""
        return apportion(shares, totals, stream)

    def parts(self, labels: Tensor, n_clients: int, stream: Stream) -> list[Tensor]:
        require(n_clients >= 1, f"{self.kind}: the number of clients", n_clients, "1 or more")
        if self.needs_classes and (labels.is_floating_point() or labels.ndim != 1 or not len(labels)):
            found = f"{labels.dtype} labels of shape {list(labels.shape)}"
            raise EquipoiseError(f"{self.kind}: it deals classes, but was given {found}", 'use "iid" or "powerlaw"')
        column = labels if self.needs_classes else torch.zeros(len(labels), dtype=torch.int64)
        names, groups = torch.unique(column, return_inverse=True)
        totals = torch.bincount(groups, minlength=1)
        shares = self.shares(totals, n_clients, stream.child("shares"))
        if (lost := (shares == 0).all(0)).any():
            found = f"{n_clients} clients leave {int(lost.sum())} of {len(totals)} classes to nobody"
            raise EquipoiseError(
                f"{self.kind}: {found} (the first is {int(names[lost][0])})", "more clients or classes"
            )
        counts = self.counts(totals, shares, stream.child("round"))
        counts = top_up(counts, shares > 0, self.min_size, self.kind, stream.child("top up"))
        return deal(groups, counts, stream.child("deal"))


@dataclass(frozen=True)
class IID(ByShares):
    """Everyone gets a random draw from the pool; sizes differ by one at most.

    With `samples` everyone gets exactly that many, from a random subset of the pool that just suffices.
    """

    kind = "iid"
    needs_classes = False
    samples: int | None = None
    """How many samples everyone gets, 1 or more; left out: the whole pool is dealt."""
    min_size: int = 1

    def __post_init__(self) -> None:
        require(self.samples is None or self.samples >= 1, "iid: samples", self.samples, "1 or more, or none")

    def shares(self, totals: Tensor, n_clients: int, stream: Stream) -> Tensor:
        return torch.ones(n_clients, len(totals), dtype=torch.float64)

    def counts(self, totals: Tensor, shares: Tensor, stream: Stream) -> Tensor:
        if self.samples is None:
            return apportion(shares, totals, stream)
        _require_enough("iid", self.samples, len(shares), int(totals.sum()))
        return torch.full((len(shares), 1), self.samples)


@dataclass(frozen=True)
class Dirichlet(ByShares):
    """Each class is shared out in proportions drawn from Dirichlet(alpha, ..., alpha) over the clients.

    Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual classification",
    2019, in the form that later papers use: proportions of clients within a class.
    """

    kind = "dirichlet"
    alpha: float = 0.5
    """How alike clients are, above 0: near 0 one of them holds almost all of a class, large gives all the same mix."""
    min_size: int = 1

    def __post_init__(self) -> None:
        require(positive(self.alpha), "dirichlet: alpha", self.alpha, "above 0, and finite")

    def shares(self, totals: Tensor, n_clients: int, stream: Stream) -> Tensor:
        drawn = stream.numpy().dirichlet(np.full(n_clients, float(self.alpha)), size=len(totals))
        return torch.from_numpy(drawn.T.copy()).clamp(min=1e-300)  # above 0: a top-up may use any class


@dataclass(frozen=True)
class Pathological(ByShares):
    """Each client holds a few classes only.

    deal = "shards": sort by class, cut into n_clients * classes shards of equal size, deal them at random (McMahan et
    al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017). A shard may
    straddle two classes, and a client's shards may be of one class. deal = "order": client u holds classes u*k .. u*k +
    k-1 (mod C), where k is `classes`, or C if the pool has fewer, and every class is shared equally among its holders.
    """

    kind = "pathological"
    classes: int = 2
    """How many classes, or shards, a client holds, 1 or more."""
    deal: Literal["shards", "order"] = "shards"
    """Shards at random, or classes in order."""
    min_size: int = 1

    def __post_init__(self) -> None:
        require(self.classes >= 1, "pathological: classes", self.classes, "1 or more")
        require(self.deal in ("shards", "order"), "pathological: deal", self.deal, '"shards" or "order"')

    def check(self, data: Dataset) -> None:
        _require_classes(self.kind, self.classes, data)

    def shares(self, totals: Tensor, n_clients: int, stream: Stream) -> Tensor:
        if self.deal == "order":
            k = min(self.classes, len(totals))
            return _consecutive(torch.arange(n_clients) * k, torch.full((n_clients,), k), len(totals))
        n, shards = int(totals.sum()), n_clients * self.classes
        holder = stream.bits(torch.arange(shards)).argsort() // self.classes
        owner = holder[torch.arange(n) * shards // n]
        group = torch.repeat_interleave(torch.arange(len(totals)), totals)
        held = torch.bincount(owner * len(totals) + group, minlength=n_clients * len(totals))
        return held.view(n_clients, len(totals)).to(torch.float64)

    def counts(self, totals: Tensor, shares: Tensor, stream: Stream) -> Tensor:
        return shares.to(torch.int64) if self.deal == "shards" else apportion(shares, totals, stream)


@dataclass(frozen=True)
class PowerLaw(ByShares):
    """Sizes grow from the first client to the last; every client has the same mix of classes.

    The 'powerlaw' split of Xu and Lyu, "Towards building a robust and fair federated learning system" (RFFL), 2020. The
    paper gives no formula; its authors' programs space the sizes evenly between two quantiles of the power-law density
    a x^(a-1) on [0, 1], a = `exponent`:

        size_i ∝ lo + (hi - lo) i / (N-1),   lo = 0.01^(1/a), hi = 0.99^(1/a)

    so sizes are linear in i; a smaller exponent makes them more unequal. `samples` deals only that many samples per
    client on average, drawn at random, with sizes rounded up as there: 10 clients of 600 get 71, 189, ..., 1130, which
    is 6,005 in all (N * samples in all, if the pool has no more).
    """

    kind = "powerlaw"
    needs_classes = False
    exponent: float = 1.65911332899
    """Above 0; the smaller, the more unequal the sizes."""
    samples: int | None = None
    """How many samples clients get on average, 1 or more; left out: the whole pool is dealt."""
    min_size: int = 1

    def __post_init__(self) -> None:
        require(self.exponent > 0, "powerlaw: exponent", self.exponent, "above 0")
        require(self.samples is None or self.samples >= 1, "powerlaw: samples", self.samples, "1 or more, or none")

    def shares(self, totals: Tensor, n_clients: int, stream: Stream) -> Tensor:
        low, high = 0.01 ** (1 / self.exponent), 0.99 ** (1 / self.exponent)
        return torch.linspace(low, high, n_clients, dtype=torch.float64)[:, None].clamp(min=1e-300)

    def counts(self, totals: Tensor, shares: Tensor, stream: Stream) -> Tensor:
        if self.samples is None:
            return apportion(shares, totals, stream)
        n, wanted = int(totals.sum()), self.samples * len(shares)
        _require_enough("powerlaw", self.samples, len(shares), n)
        up = (shares / shares.sum() * wanted).ceil().to(torch.int64)
        return up if int(up.sum()) <= n else apportion(shares, torch.tensor([wanted]), stream)


@dataclass(frozen=True)
class ClassImbalance(ByShares):
    """Equal sizes, but the first client holds one class and the last one all of them.

    The 'classimbalance' split of RFFL (see PowerLaw): client i of N holds floor(linspace(1, C, N)_i) classes, as in the
    paper's example (5 clients: 1, 3, 5, 7 and 10 classes). With `samples`, every client gets exactly that many, in
    equal parts of its first classes 0, 1, ... (as in the authors' program), from a random subset that just suffices.
    Without, the whole pool is dealt, and then sizes are only roughly equal: each client's classes follow on from those
    of the client before, round the classes, and clients share a class in proportion to 1 / (classes that they hold).
    """

    kind = "class-imbalance"
    samples: int | None = None
    """How many samples everyone gets, 1 or more; left out: the whole pool is dealt, in roughly equal parts."""
    min_size: int = 1

    def __post_init__(self) -> None:
        ok = self.samples is None or self.samples >= 1
        require(ok, "class-imbalance: samples", self.samples, "1 or more, or none")

    def shares(self, totals: Tensor, n_clients: int, stream: Stream) -> Tensor:
        steps = torch.arange(n_clients) * (len(totals) - 1) // max(1, n_clients - 1)
        held = 1 + steps if n_clients > 1 else torch.tensor([len(totals)])  # a lone client is the last one
        first = held.cumsum(0) - held if self.samples is None else torch.zeros_like(held)
        return _consecutive(first, held, len(totals)) / held[:, None]

    def counts(self, totals: Tensor, shares: Tensor, stream: Stream) -> Tensor:
        if self.samples is None:
            return apportion(shares, totals, stream)
        held = (shares > 0).sum(1, keepdim=True)
        extra = (torch.arange(len(totals)) >= held - self.samples % held).to(torch.int64)
        counts = (self.samples // held + extra) * (shares > 0)
        if (short := counts.sum(0) > totals).any():
            c = int(short.nonzero()[0])
            found = f"it needs {int(counts[:, c].sum())} of class number {c}, which has {int(totals[c])}"
            hint = "fewer samples per client, or fewer clients"
            raise EquipoiseError(f"class-imbalance: samples is {self.samples} for {len(shares)} clients: {found}", hint)
        return counts


@dataclass(frozen=True)
class LogNormal(ByShares):
    """Very unequal sizes, and a few neighbouring classes for each client in unequal proportions.

    The Fashion-MNIST setting of Li et al., "Ditto: fair and robust federated learning through personalization", ICML
    2021: sizes ∝ lognormal(3, 1) + 10; client u holds classes u .. u + `classes`-1 (mod C) in lognormal(1, 1)
    proportions. These weights are scaled in turn to the sizes and to the class totals until both fit, so that every
    sample is dealt; where that is impossible the class totals win and sizes come as near as they can.
    """

    kind = "lognormal"
    classes: int = 5
    """How many classes a client holds, 1 or more."""
    min_size: int = 1

    def __post_init__(self) -> None:
        require(self.classes >= 1, "lognormal: classes", self.classes, "1 or more")

    def check(self, data: Dataset) -> None:
        _require_classes(self.kind, self.classes, data)

    def shares(self, totals: Tensor, n_clients: int, stream: Stream) -> Tensor:
        clients, k = torch.arange(n_clients), min(self.classes, len(totals))
        sizes = (3.0 + stream.child("sizes").normal(clients)).exp() + 10.0
        sizes = sizes / sizes.sum() * totals.sum()
        held = _consecutive(clients, torch.full((n_clients,), k), len(totals))
        mix = (1.0 + stream.child("mix").normal(clients[:, None], torch.arange(len(totals)))).exp()
        weights = held * mix
        for _ in range(50):
            weights = weights * (sizes / weights.sum(1))[:, None]
            weights = weights * totals / weights.sum(0).clamp(min=1e-300)
        return torch.where(held > 0, weights.clamp(min=1e-300), held)  # scaling may underflow; holding stays holding


@dataclass(frozen=True)
class Attribute(Partitioner):
    """One client for each value of a column, such as the writer of a digit, in ascending order of the values.

    Values with fewer than `min_samples` samples are left out; if more than `max_clients` remain, that many are drawn at
    random. The parts are complete over the samples of the values kept.
    """

    kind = "attribute"
    column: str = "writer"
    """The column of the dataset whose values are the clients."""
    min_samples: int = 1
    """The fewest samples of a value that makes a client, 1 or more."""
    max_clients: int | None = None
    """The most clients, 1 or more; left out: all that there are."""

    def __post_init__(self) -> None:
        require(self.min_samples >= 1, "attribute: min_samples", self.min_samples, "1 or more")
        ok = self.max_clients is None or self.max_clients >= 1
        require(ok, "attribute: max_clients", self.max_clients, "1 or more, or none")

    def key(self, data: Dataset) -> Tensor:
        if self.column not in data.attributes:
            found = f"attribute: {data.name} has no column {self.column!r}"
            raise EquipoiseError(found, nearest(self.column, data.attributes))
        return data.attributes[self.column]

    def parts(self, labels: Tensor, n_clients: int, stream: Stream) -> list[Tensor]:
        """`labels` are the column's values here; the number of clients follows from them (give that, or 0)."""
        groups, totals = torch.unique(labels, return_inverse=True, return_counts=True)[1:]
        enough = (totals >= self.min_samples).nonzero()[:, 0]
        drawn = stream.bits(enough).argsort()[: self.max_clients]
        if not len(drawn):
            found = f"attribute: no value of {self.column!r} has min_samples = {self.min_samples} samples"
            raise EquipoiseError(found, f"the most that one has is {int(totals.max()) if len(totals) else 0}")
        hint = f"{self.column!r} makes {len(drawn)} clients: leave it out, or set max_clients"
        require(n_clients in (0, len(drawn)), "attribute: the number of clients", n_clients, hint)
        client = torch.full_like(totals, -1)
        client[enough[drawn].sort().values] = torch.arange(len(drawn))
        chosen = (client[groups] >= 0).nonzero()[:, 0]
        return gather(chosen, client[groups[chosen]], len(drawn))


PARTITIONS: dict[str, type[Partitioner]] = {
    p.kind: p for p in (IID, Dirichlet, Pathological, PowerLaw, ClassImbalance, LogNormal, Attribute)
}
