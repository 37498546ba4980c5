"""A federation of one dataset: what the server keeps, who holds what (`partitioners`), what each of them tests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from equipoise.data.dealing import deal_alike, ranks, shuffled
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.data.partitioners import PARTITIONS, Attribute, Partitioner
from equipoise.errors import EquipoiseError, nearest, require
from equipoise.streams import Stream

TEST_SETS = ("local", "common", "official")


def split_clients(
    data: Dataset, parts: Sequence[Tensor], *, test: float, validation: float, stream: Stream, how: str
) -> Federation:
    """Split each client's samples at random into train, validation and test.

    Of a client's n samples, test * n and validation * n are held out, rounded to the nearest number (halves up). A
    client that has any samples keeps at least one to train on, and gives up validation before test samples.
    """
    _check_share("split: test", test)
    _check_share("split: validation", validation)
    _check_share("split: test + validation", test + validation)
    dealt = Split.of(parts)
    client = torch.repeat_interleave(torch.arange(len(parts)), dealt.size)
    rank = ranks(client, shuffled(client, stream, client, dealt.index), dealt.size)
    most = (dealt.size - 1).clamp(min=0)
    tested = torch.minimum((test * dealt.size.double() + 0.5).long(), most)
    validated = torch.minimum((validation * dealt.size.double() + 0.5).long(), most - tested)
    is_test = rank < tested[client]
    is_train = rank >= (tested + validated)[client]

    def part(mask: Tensor) -> Split:
        size = torch.bincount(client[mask], minlength=len(parts))
        return Split(dealt.index[mask], size.cumsum(0) - size, size)

    return Federation(
        data, {"train": part(is_train), "validation": part(~is_train & ~is_test), "test": part(is_test)}, how
    )


def partition(
    data: Dataset,
    kind: str | Partitioner = "iid",
    *,
    clients: int | None = None,
    test: float = 0.2,
    validation: float = 0.0,
    test_set: str = "local",
    root: int = 0,
    seed: int = 0,
    **params: Any,
) -> Federation:
    """Deal a dataset out to clients, by a kind of PARTITIONS and its parameters, or by a partitioner.

    What clients are tested on:
    - "local": all samples are pooled and dealt, then each client's own are split; `test` of them are its test set.
    - "official": the dataset's training part is dealt, and its test part so that each client's test classes follow its
      training classes (with "attribute": its own value's); test samples of classes that nobody trains on are left out.
    - "common": the training part is dealt, or a random share 1 - test where the dataset has no parts; everyone is
      tested on all of the rest.
    `validation` is the share of a client's dealt samples that is kept from training. "attribute" needs no `clients`.
    `root` samples, drawn at random, are the server's own and are dealt to nobody.
    """
    partitioner = _partitioner(kind, params)
    partitioner.check(data)
    if test_set not in TEST_SETS:
        raise EquipoiseError(f"partition: test_set is {test_set!r}", nearest(str(test_set), TEST_SETS))
    if clients is None and not isinstance(partitioner, Attribute):
        raise EquipoiseError(f"partition: {partitioner.kind} was given no number of clients", "give clients = ...")
    _check_share("partition: test", test)
    _check_share("partition: validation", validation)
    if clients is not None:  # how many there can be is the partitioner's to say
        require(isinstance(clients, Integral), "partition: clients", clients, "a whole number, 1 or more")
    stream, key = Stream(seed).child("data"), partitioner.key(data)
    pool, held = _pool(data, test_set, test, stream.child("pool"))
    pool, kept = _kept_back(pool, root, stream.child("root"))
    parts = [pool[p] for p in partitioner.parts(key[pool], clients or 0, stream.child("deal"))]
    share = f" {test:g}" if test_set == "local" or "part" not in data.attributes else ""
    how = f"{_describe(partitioner)}, {len(parts)} clients, test {test_set}{share}"
    how += f", validation {validation:g}, seed {seed}"
    own = test if test_set == "local" else 0.0
    made = split_clients(data, parts, test=own, validation=validation, stream=stream.child("split"), how=how)
    made = replace(made, root=kept)
    if test_set == "local":
        return made
    if test_set == "common":
        tested = Split.common(held, len(parts))
    else:
        alike = torch.zeros(len(data)) if key.is_floating_point() else key
        tested = Split.of(deal_alike(alike, parts, held, stream.child("test")))
    return replace(made, splits={**made.splits, "test": tested})


def _check_share(what: str, value: Any) -> None:
    require(isinstance(value, Real) and 0 <= float(value) < 1, what, value, "a share from 0 up to (not including) 1")


def _kept_back(pool: Tensor, root: int, stream: Stream) -> tuple[Tensor, Tensor | None]:
    """The pool without the server's own samples, and those."""
    fits = isinstance(root, Integral) and 0 <= root < len(pool)
    require(fits, "partition: root", root, f"a whole number, 0 or more, and fewer than the {len(pool)} samples")
    order = stream.bits(pool).argsort()
    return (pool[order[root:]].sort().values, pool[order[:root]].sort().values) if root else (pool, None)


def _pool(data: Dataset, test_set: str, test: float, stream: Stream) -> tuple[Tensor, Tensor]:
    """The samples to deal, and those that are held for testing."""
    everything = torch.arange(len(data))
    if test_set == "local":
        return everything, everything[:0]
    if "part" in data.attributes:
        part = data.attributes["part"]
        return everything[part == 0], everything[part == 1]
    if test_set == "official":
        raise EquipoiseError(f'partition: test_set is "official", but {data.name} has no test part', 'use "local"')
    order, cut = stream.bits(everything).argsort(), int(test * len(data) + 0.5)
    return order[cut:].sort().values, order[:cut].sort().values


def _partitioner(kind: str | Partitioner, params: Mapping[str, Any]) -> Partitioner:
    if isinstance(kind, Partitioner):
        if params:
            raise EquipoiseError(f"partition: {kind!r} was given, and {sorted(params)} too", "put them into the object")
        return kind
    if kind not in PARTITIONS:
        raise EquipoiseError(f"partition: kind is {kind!r}", nearest(str(kind), PARTITIONS))
    known = [f.name for f in fields(PARTITIONS[kind])]  # type: ignore[arg-type]
    for name in params:
        if name not in known:
            raise EquipoiseError(f"partition: {kind} has no parameter {name!r}", nearest(name, known))
    try:
        return PARTITIONS[kind](**params)
    except TypeError as error:
        raise EquipoiseError(f"partition: {kind} was given {dict(params)}: {error}", "numbers as numbers") from error


def _describe(partitioner: Partitioner) -> str:
    values = {f.name: getattr(partitioner, f.name) for f in fields(partitioner)}  # type: ignore[arg-type]
    return f"{partitioner.kind}({', '.join(f'{k}={v!r}' for k, v in values.items() if v is not None)})"
