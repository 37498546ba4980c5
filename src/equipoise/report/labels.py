"""Where to write names so that they do not cover each other."""

from __future__ import annotations

from collections.abc import Sequence

_CHAR, _LINE = 7.0, 15.0  # a letter's width and a line's height, in pixels
_MARK = 8.0  # half the width of a mark, with some air

Box = tuple[float, float, float, float]


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The values moved as little as it takes to lie `gap` apart, in their order, within low..high if they fit."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    placed: list[float] = []
    for i in order:
        placed.append(max(values[i], placed[-1] + gap if placed else low))
    top = max(high, low + gap * (len(values) - 1))
    for k in range(len(placed) - 1, -1, -1):
        placed[k] = min(placed[k], top)
        top = placed[k] - gap
    out = [0.0] * len(values)
    for i, value in zip(order, placed, strict=True):
        out[i] = value
    return out


def places(
    points: Sequence[tuple[float, float]], names: Sequence[str], sizes: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """For each mark, how far from it, in pixels right and up, the middle of its name goes.

    Points are shares of a drawing, which may come in several sizes: the place must do in all of them. The nearest place
    that covers nothing is taken, and where there is none, the one that covers least.
    """
    taken = [[_around(x * w, y * h, 2 * _MARK, 2 * _MARK) for x, y in points] for w, h in sizes]
    chosen = []
    for (x, y), name in zip(points, names, strict=True):
        wide = _CHAR * len(name)
        tries = [[_around(x * w + dx, y * h + dy, wide, _LINE) for w, h in sizes] for dx, dy in _offsets(wide)]
        costs = [
            sum(_cost(box, boxes, size) for box, boxes, size in zip(made, taken, sizes, strict=True)) for made in tries
        ]
        best = min(range(len(costs)), key=lambda i: (round(costs[i], 3), i))
        chosen.append(_offsets(wide)[best])
        for boxes, box in zip(taken, tries[best], strict=True):
            boxes.append(box)
    return chosen


def _offsets(wide: float) -> list[tuple[float, float]]:
    """Around the mark, near before far."""
    out = []
    for far in (0.0, 16.0, 32.0, 48.0):
        up, side = _MARK + _LINE / 2 + far, _MARK + wide / 2 + far
        out += [(0.0, up), (side, 0.0), (0.0, -up), (-side, 0.0)]
        out += [(side, up / 2), (-side, up / 2), (side, -up / 2), (-side, -up / 2)]
        out += [(side / 2, up), (-side / 2, up), (side / 2, -up), (-side / 2, -up)]
    return out


def _around(x: float, y: float, wide: float, tall: float) -> Box:
    return x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2


def _cost(box: Box, others: Sequence[Box], size: tuple[float, float]) -> float:
    area = (box[2] - box[0]) * (box[3] - box[1])
    outside = area - _overlap(box, (0.0, 0.0, *size))
    return sum(_overlap(box, other) for other in others) + 3 * outside


def _overlap(a: Box, b: Box) -> float:
    wide, tall = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return wide * tall if wide > 0 and tall > 0 else 0.0
