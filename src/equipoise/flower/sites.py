"""Data that only its site can see: what the server must know of it without seeing it, and what the site makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from equipoise import config as configs
from equipoise.data.federation import SPLITS, Dataset, Federation, Split
from equipoise.data.own import from_arrays
from equipoise.engine.node import placed
from equipoise.errors import EquipoiseError, require
from equipoise.experiment import Experiment, build


@dataclass(frozen=True)
class Own:
    """Every site loads its own samples; all that the consortium agrees on is what one looks like."""

    load: Callable[[Mapping[str, Any]], tuple[Any, Any]]
    """(x, y) of this site, given the node's config: x [n, *shape] floats, uint8 images or integer tokens; y [n]."""
    shape: tuple[int, ...]
    classes: int
    """0: y are numbers to be predicted."""
    tokens: bool = False
    """Whether x are word numbers."""

    def experiment(self, config: configs.Config) -> Experiment:
        """The server's; its results do not go by the name of the config's dataset, which nobody loads."""
        federation = self.seen_by_server(config)
        made = build(config, federation)
        return replace(made, labels={**(made.labels or {}), "dataset": federation.data.name})

    def seen_by_server(self, config: configs.Config) -> Federation:
        """One sample of zeros for everyone: the server knows how many clients there are, and not what they hold."""
        n, data = config.data.clients, config.data
        require(n is not None, "data.clients", n, "how many sites there are")
        sampling = config.participation.sampling
        require(sampling != "size", "participation.sampling", sampling, "the server does not know sizes: uniform")
        require(data.root == 0, "data.root", data.root, "0: the server has no samples of its own here")
        x = torch.zeros((1, *self.shape), dtype=torch.int64 if self.tokens else torch.float32)
        y = torch.zeros(1, dtype=torch.int64 if self.classes else torch.float32)
        held = {"train": True, "validation": data.validation > 0, "test": data.test > 0}
        one = torch.arange(1)
        splits = {name: Split.common(one[: int(held[name])], n or 0) for name in SPLITS}
        return Federation(Dataset("own", x, y, self.classes), splits, "every site has its own")

    def held_by(self, client: int, node: Mapping[str, Any], config: configs.Config) -> Federation:
        """This site's samples as the only ones there are."""
        told = self.load(node)
        if not isinstance(told, tuple) or len(told) != 2:
            raise EquipoiseError(f"data.py: load gave a {type(told).__name__}", "it must return (x, y)")
        (x, y), data, classes = told, config.data, self.classes or None
        seed = config.run.seed if data.seed is None else data.seed
        share = partial(from_arrays, test=data.test, validation=data.validation, seed=seed)
        made = share(x, y, [client] * len(x), classes=classes)
        found, wanted = tuple(made.data.x.shape[1:]), tuple(self.shape)
        require(found == wanted, "data.py: the shape of a sample", found, f"the federation's is {wanted}")
        require(made.data.classes == self.classes, "data.py: classes", made.data.classes, f"there are {self.classes}")
        return placed(made.data, {name: split.of_client(0) for name, split in made.splits.items()}, client)
