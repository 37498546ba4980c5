"""Images that are two classes at once, and clients that hold more and more of them.

A stand-in for DirtyMNIST (Mukhoti et al., "Deep deterministic uncertainty: a new simple baseline", CVPR 2023), made of
any labelled images: an ambiguous image is the pixelwise mean of two of different classes,

    x = (1 - s) x_i + s x_j,  y = y_j with probability s, else y_i,  s uniform between `least` and 1/2

so that no model can know the label, and what the best one reaches is known: s says how often it must be wrong. With
soft labels y is (1 - s, s) on the two classes instead: what is unknown then is unknown to every sample alike, and a
model that learns its samples by heart learns no coin tosses. The original's images come from a generative model, and
were chosen by it; only labels drawn at random are as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.errors import EquipoiseError, require
from equipoise.streams import Stream

Array = NDArray[Any]


def blended(
    x: Array, y: Array, stream: Stream, *, clients: int, samples: int, least: float, soft: int = 0
) -> tuple[Array, Array, dict[str, Array]]:
    """Images, labels (drawn, or a share for each of `soft` classes), and two columns: "ambiguous" (0 or 1) and "site".

    Site k of `clients` holds `samples` images, a share k / (clients - 1) of them ambiguous. No image given is used
    twice, be it as it is or in a blend.
    """
    name = "mnist-blended"
    require(clients >= 2, f"{name}: clients", clients, "2 or more: the first holds no ambiguous images, the last only")
    require(samples >= 1, f"{name}: samples", samples, "1 or more per client")
    require(0 < least <= 0.5, f"{name}: least", least, "above 0, at most 0.5")
    marked = (2 * samples * np.arange(clients) + clients - 1) // (2 * (clients - 1))  # rounded, halves up
    n, plain = int(marked.sum()), clients * samples - int(marked.sum())
    order = stream.child("order").bits(torch.arange(len(y))).argsort().numpy()
    rest = order[plain:]
    first, second = rest[: len(rest) // 2], rest[len(rest) // 2 : len(rest) // 2 * 2]
    unlike = y[first] != y[second]
    first, second = first[unlike][:n], second[unlike][:n]
    if len(order) < plain or len(first) < n:
        found = f"{name}: {plain} clear and {n} blended images of {len(y)}: {len(first)} pairs of classes are left"
        raise EquipoiseError(found, "fewer clients, or fewer samples per client")
    place = torch.arange(n)
    share = least + (0.5 - least) * stream.child("share").uniform(place).numpy()
    other = stream.child("label").uniform(place).numpy() < share
    s = share.reshape(-1, *[1] * (x.ndim - 1))
    mixed = np.rint((1 - s) * x[first] + s * x[second]).astype(x.dtype)
    clear, site = order[:plain], np.arange(clients)
    columns = {
        "ambiguous": np.repeat([0, 1], [plain, n]),
        "site": np.concatenate([np.repeat(site, samples - marked), np.repeat(site, marked)]),
    }
    images = np.concatenate([x[clear], mixed])
    if not soft:
        return images, np.concatenate([y[clear], np.where(other, y[second], y[first])]), columns
    one = np.eye(soft, dtype=np.float32)
    part = share[:, None].astype(np.float32)
    return images, np.concatenate([one[y[clear]], (1 - part) * one[y[first]] + part * one[y[second]]]), columns
