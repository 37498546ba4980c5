"""How much of what each client sent was used: the price that honest clients pay for a defence.

    say = m w s     of a client in a round of m admitted: w the weight that the server rule gave it (1/m if it told
                    none), s what filters left of its update; 0 for the quarantined and, from then on, the removed

1 is an equal say. Over a run a client has an `influence` (its mean say), the share of its rounds in which it was
`filtered` (no say at all), and the share in which it was `downweighted` (some, but less than half of an equal one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from equipoise.metrics import _ratio

Array = np.ndarray[Any, Any]
LITTLE = 0.5


def influence(infos: Iterable[Mapping[str, Any]], n: int) -> dict[str, Array]:
    """[n] each, from what was logged of the rounds; NaN for a client that was never drawn."""
    drawn, said = np.zeros(n), np.zeros(n)
    none, little = np.zeros(n), np.zeros(n)
    gone = np.zeros(n, dtype=bool)
    for info in infos:
        say = np.zeros(n)
        say[np.array(info["admitted"], dtype=int)] = says(info)
        present = np.zeros(n, dtype=bool)
        present[np.array(info["drawn"], dtype=int)] = True
        silent = present.copy()
        silent[np.array([*info["admitted"], *map(int, info["quarantined"])], dtype=int)] = False
        counted = (present & ~silent) | gone  # a client that never answered was not kept out by anyone
        drawn += counted
        said += say * counted
        none += counted & (say <= 0)
        little += counted & (say > 0) & (say < LITTLE)
        gone[np.array(info.get("excluded", []), dtype=int)] = True
    return {
        "filtered": _ratio(none, drawn),
        "downweighted": _ratio(little, drawn),
        "influence": _ratio(said, drawn),
    }


def says(info: Mapping[str, Any]) -> Array:
    """[m]: the say of every admitted client in one round."""
    m = len(info["admitted"])
    say = np.ones(m)
    for name, value in info.items():
        if name == "weights" or name.endswith("scale"):
            row = np.asarray(value, dtype=float)
            if row.shape == (m,):
                say = say * (m * row if name == "weights" else row)
    return say
