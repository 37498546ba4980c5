"""Fair and robust federated learning, and the evidence for it.

    import equipoise as eq

    federation = eq.partition(eq.load("digits"), "dirichlet", clients=20, alpha=0.3)
    result = eq.run(federation, eq.methods.fedprox(mu=0.1), model="mlp", rounds=20)
    print(result.clients.head())
    print(result.summary())

Names are imported when they are first used: the core (methods, rules, attacks, engine) needs torch, numpy and
safetensors only, and `equipoise --help` needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "load": "equipoise.data",
    "partition": "equipoise.data",
    "from_arrays": "equipoise.data",
    "from_folder": "equipoise.data",
    "Federation": "equipoise.data",
    "run": "equipoise.experiment",
    "resume": "equipoise.experiment",
    "load_result": "equipoise.results",
    "compare": "equipoise.results",
    "advise": "equipoise.audit",
    "Method": "equipoise.core",
    "chain": "equipoise.core",
    "EquipoiseError": "equipoise.errors",
}
_MODULES = ("aggregators", "attacks", "audit", "data", "methods", "metrics", "models", "report", "tracking")

__all__ = [
    "EquipoiseError",
    "Federation",
    "Method",
    "__version__",
    "advise",
    "aggregators",
    "attacks",
    "audit",
    "chain",
    "compare",
    "data",
    "from_arrays",
    "from_folder",
    "load",
    "load_result",
    "methods",
    "metrics",
    "models",
    "partition",
    "report",
    "resume",
    "run",
    "tracking",
]

if TYPE_CHECKING:
    from equipoise import aggregators, attacks, audit, data, methods, metrics, models, report, tracking
    from equipoise.audit import advise
    from equipoise.core import Method, chain
    from equipoise.data import Federation, from_arrays, from_folder, load, partition
    from equipoise.errors import EquipoiseError
    from equipoise.experiment import resume, run
    from equipoise.results import compare, load_result


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"equipoise.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
