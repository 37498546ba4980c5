"""Small federations and runs for tests: clients of unequal size, a few of them odd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core import Cohort, Method
from equipoise.data.federation import Dataset, Federation, Split
from equipoise.engine.run import Scenario, Simulation
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.layout import Layout
from equipoise.models import build
from equipoise.streams import Stream


def federation(sizes: Sequence[int] = (7, 25, 1, 12), *, shape: tuple[int, ...] = (6,), classes: int = 3) -> Federation:
    """Clients with the given numbers of training samples, 5 test and 3 validation samples each; it can be learned."""
    g = Stream(11).torch()
    each = [s + 8 for s in sizes]
    y = torch.randint(classes, (sum(each),), generator=g)
    centre = torch.randn((classes, *shape), generator=g)
    x = centre[y] + 0.5 * torch.randn((len(y), *shape), generator=g)
    first = torch.tensor([0, *each]).cumsum(0)
    parts: dict[str, list[Tensor]] = {"train": [], "validation": [], "test": []}
    for k, s in enumerate(sizes):
        at = torch.arange(int(first[k]), int(first[k + 1]))
        parts["train"].append(at[:s])
        parts["test"].append(at[s : s + 5])
        parts["validation"].append(at[s + 5 :])
    return Federation(Dataset("small", x, y, classes), {n: Split.of(p) for n, p in parts.items()})


def simulation(
    method: Method | None = None,
    fed: Federation | None = None,
    *,
    model: str | nn.Module = "linear",
    train: Train | None = None,
    participation: Participation | None = None,
    run: Run | None = None,
    attack: Any = None,
    admission: Any = None,
    **params: Any,
) -> Simulation:
    fed = fed or federation()
    shape = tuple(fed.data.x.shape[1:])
    module = build(model, shape, fed.data.classes, Stream(3), **params) if isinstance(model, str) else model
    admission = admission or Admission(guard="off")  # so that rules are shown what clients say
    scenario = Scenario(
        fed, module, train or Train(batch=5, lr=0.1), participation or Participation(), admission, attack
    )
    run = run or Run(dtype="float64")
    chosen = {"device": "cpu"} if run.device == "auto" else {}
    chosen |= {"replay": "off"} if run.replay == "auto" else {}  # a test's few steps are not worth recording
    return Simulation(scenario, method or Method(), replace(run, **chosen))


class Of(nn.Module):
    """A model of some parts and a function of them."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-300))


def cohort(
    k: int = 6, d: int = 12, *, seed: int = 0, ids: Sequence[int] | None = None, dtype: torch.dtype = torch.float64
) -> Cohort:
    """A cohort of random updates, with losses, sizes, a layout of three layers, and everything a rule may ask for."""
    g = Stream(seed).torch()
    layout = Layout.of(
        {"a.weight": torch.empty(d // 3), "a.bias": torch.empty(d // 6), "b": torch.empty(d - d // 3 - d // 6)}
    )

    def probe(models: Tensor) -> Tensor:
        return (models[:, None, :] - updates[None]).square().sum(-1)

    updates = torch.randn((k, d), generator=g, dtype=dtype)
    return Cohort(
        ids=torch.tensor(list(ids)) if ids is not None else torch.arange(k),
        start=torch.randn(d, generator=g, dtype=dtype),
        updates=updates,
        sizes=torch.randint(1, 50, (k,), generator=g),
        losses=torch.rand(k, generator=g, dtype=dtype) * 3,
        layout=layout,
        lr=0.1,
        n_clients=50,
        rng=Stream(seed).child("server"),
        probe=probe,
        root=torch.randn(d, generator=g, dtype=dtype),
    )
