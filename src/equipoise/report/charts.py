"""Figures as plain dicts in plotly's terms, with colour tokens; see theme.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.audit.data import MEASURES
from equipoise.report import labels, scales, theme, words
from equipoise.report.findings import Findings
from equipoise.report.theme import Figure

Array = np.ndarray[Any, Any]

MOST_POINTS = 200
"""Drawn of one line or one box; more would be smaller than a pixel."""
MOST_THREADS = 4000
"""Points in all of a ledger's lines."""
_WIDTHS = (265.0, 430.0)  # of a drawing on a telephone and on a desk, in pixels: names must collide on neither


def scaled(measure: str, values: Any) -> Array:
    """Shares as percentages."""
    return np.asarray(values, np.float64) * (100.0 if MEASURES[measure].percent else 1.0)


def titled(measure: str) -> str:
    return f"{MEASURES[measure].label} (%)" if MEASURES[measure].percent else MEASURES[measure].label


def numbers(values: Any, digits: int = 5) -> list[float | None]:
    """For JSON: rounded, and null where there is nothing."""
    array = np.asarray(values, np.float64)
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in array.tolist()]


def thinned(n: int, most: int = MOST_POINTS) -> Array:
    """Indices of at most `most` of n points, evenly spaced, both ends among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)) if n else np.empty(0, int)


def _method(found: Findings, name: str) -> tuple[int, Figure]:
    """A method's number, and what marks its traces: its name, and who it is for the page's highlighting."""
    index = found.methods.index(name)
    return index, {"name": theme.text(name), "meta": index}


# ------------------------------------------------------------------------------------------ fronts


def front(found: Findings, notion: str, attack: str) -> Figure | None:
    """Accuracy against a notion, better always up and to the right; methods that another one beats are grey."""
    table = found.fronts[notion].filter(attack=attack)
    x, true = scaled("accuracy_mean", table["x"]), scaled(notion, table["y"])
    known = np.isfinite(x) & np.isfinite(true)
    if not known.any():
        return None
    x, true = x[known], true[known]
    stretch = scales.scale(true)
    y = stretch(true)
    names = [str(m) for m in table["method"][known]]
    beaten = table["dominated"][known].astype(bool)
    low, named = MEASURES[notion].better == "low", MEASURES[notion].label
    across, up = _padded(x), _padded(y)[:: -1 if low else 1]
    height = 330 + 8 * max(0, len(names) - 8)
    traces = [] if (~beaten).sum() < 2 else [_front_line(x[~beaten], y[~beaten])]
    for i, name in enumerate(names):
        index, marks = _method(found, name)
        ink = "@muted" if beaten[i] else theme.colour(index)
        sign = theme.symbol(index) + ("-open" if beaten[i] else "")
        value = words.digits(float(true[i]))
        hover = f"{marks['name']}<br>accuracy %{{x:.1f}}%<br>{named} {value}<extra></extra>"
        marker = {"color": ink, "symbol": sign, "size": 11, "line": {"width": 2, "color": ink}}
        point = {"x": numbers([x[i]]), "y": numbers([y[i]]), "marker": marker, "hovertemplate": hover}
        traces.append({**marks, "type": "scatter", "mode": "markers", "cliponaxis": False, **point})
    shares = [
        ((a - across[0]) / (across[1] - across[0]), (b - up[0]) / (up[1] - up[0])) for a, b in zip(x, y, strict=True)
    ]
    notes = _beside(found, names, shares, x, y, beaten, height - 68)
    better = "less is better" if low else "more is better"
    return {
        "data": traces,
        "layout": theme.layout(
            height,
            theme.axis("accuracy (%)", range=across),
            theme.axis(f"{titled(notion)}{stretch.said}, {better}", range=up, **stretch.axis(true)),
            annotations=[_corner(), *notes],
            margin={"l": 48, "r": 16, "t": 24, "b": 44},
        ),
    }


def _beside(
    found: Findings, names: list[str], shares: Any, x: Array, y: Array, beaten: Array, height: float
) -> list[Figure]:
    """Each mark's name where there is room for it, with a line to the mark if that is not close by."""
    shown = [words.short(n) for n in names]
    order = sorted(range(len(names)), key=lambda i: bool(beaten[i]))
    room = labels.places([shares[i] for i in order], [shown[i] for i in order], [(w, height) for w in _WIDTHS])
    notes = []
    for i, (right, above) in zip(order, room, strict=True):
        line = {"showarrow": True, "arrowhead": 0, "arrowwidth": 0.8, "arrowcolor": "@muted", "standoff": 7}
        place = {"x": float(x[i]), "y": float(y[i]), "ax": round(right), "ay": -round(above), "borderpad": 0}
        font = {"size": 12, "color": "@muted" if beaten[i] else "@ink"}
        index = found.methods.index(names[i])
        notes.append({"text": theme.text(shown[i]), "name": str(index), **line, **place, "font": font})
    return notes


def _padded(values: Array) -> list[float]:
    low, high = float(values.min()), float(values.max())
    room = (high - low) * 0.18 or max(abs(high) * 0.1, 0.01)
    return [low - room, high + room]


def _front_line(x: Array, y: Array) -> Figure:
    order = np.argsort(x, kind="stable")
    line = {"color": "@muted", "width": 1.5, "dash": "dot", "shape": "vh"}
    found = {"x": numbers(x[order]), "y": numbers(y[order]), "line": line, "hoverinfo": "skip"}
    return {"type": "scatter", "mode": "lines", "name": "front", **found}


def _corner() -> Figure:
    font = {"color": "@muted", "size": 11}
    place = {"xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom"}
    return {"text": "better ↗", "showarrow": False, "font": font, **place}


# ------------------------------------------------------------------------------------------ lines


def served(found: Findings, attack: str) -> Figure | None:
    """Clients from the worst-served to the best-served, a line for each method; seeds averaged at equal rank."""
    lines = {m: found.honest(m, attack, "accuracy") for m in found.methods}
    counts = [len(v) for seeds in lines.values() for v in seeds]
    if not counts:
        return None
    grid = np.linspace(0, 1, min(max(counts), MOST_POINTS))
    drawn = {m: np.mean([np.quantile(v, grid) for v in seeds], axis=0) for m, seeds in lines.items() if seeds}
    return _lines(
        found,
        {m: (100 * grid, 100 * v) for m, v in drawn.items()},
        theme.axis("clients, worst-served first (%)", range=[0, 100]),
        "accuracy (%)",
    )


def learning(found: Findings, measure: str, attack: str) -> Figure | None:
    """A measure over the rounds: the mean over seeds, and a band from the lowest seed to the highest."""
    curves = found.data.curves
    rows = curves.filter(attack=attack) if len(curves) else curves
    if not len(rows):
        return None
    drawn, bands = {}, []
    for method in found.methods:
        rounds, low, mean, high = over_seeds(rows["round"], rows[measure], rows["method"] == method)
        if not len(rounds):
            continue
        drawn[method] = (rounds, scaled(measure, mean))
        if len(found.data.seeds) > 1:
            bands.append(_band(found, method, rounds, scaled(measure, low), scaled(measure, high)))
    if not drawn:
        return None
    around = np.concatenate([np.asarray(band["y"], np.float64) for band in bands]) if bands else None
    figure = _lines(found, drawn, theme.axis("round"), titled(measure), around)
    figure["data"] = bands + figure["data"]
    return figure


def over_seeds(rounds: Array, values: Array, keep: Array) -> tuple[Array, Array, Array, Array]:
    """Rounds, and the lowest, mean and highest of what was measured in each."""
    keep = keep & np.isfinite(values)
    at, where = np.unique(rounds[keep], return_inverse=True)
    low, high = np.full(len(at), np.inf), np.full(len(at), -np.inf)
    np.minimum.at(low, where, values[keep])
    np.maximum.at(high, where, values[keep])
    mean = np.bincount(where, values[keep], len(at)) / np.maximum(np.bincount(where, minlength=len(at)), 1)
    kept = thinned(len(at))
    return at[kept], low[kept], mean[kept], high[kept]


def _band(found: Findings, method: str, rounds: Array, low: Array, high: Array) -> Figure:
    index, marks = _method(found, method)
    x, y = np.concatenate([rounds, rounds[::-1]]), np.concatenate([low, high[::-1]])
    shape = {"mode": "lines", "line": {"width": 0}, "fill": "toself", "fillcolor": theme.colour(index, 0.14)}
    return {**marks, "type": "scatter", "x": numbers(x), "y": numbers(y), "hoverinfo": "skip", **shape}


def _lines(
    found: Findings, drawn: dict[str, tuple[Array, Array]], x: Figure, y_title: str, around: Array | None = None
) -> Figure:
    """A line of percentages for each method with its name at the end: no legend to look up."""
    height, top, bottom = max(340, 90 + 17 * len(drawn)), 12, 44
    everything = np.concatenate([y for _, y in drawn.values()] + ([] if around is None else [around]))
    across = _padded(everything)
    across = [max(across[0], 0.0), min(across[1], 101.0)]
    right = max(float(xs[-1]) for xs, _ in drawn.values())
    per_pixel = (across[1] - across[0]) / (height - top - bottom)
    ends = [float(ys[-1]) for _, ys in drawn.values()]
    spots = labels.spread(ends, 16 * per_pixel, across[0] + 6 * per_pixel, across[1])
    traces, notes = [], []
    for (name, (xs, ys)), end, spot in zip(drawn.items(), ends, spots, strict=True):
        index, marks = _method(found, name)
        ink = theme.colour(index)
        traces.append(
            {
                **marks,
                "type": "scatter",
                "mode": "lines+markers",
                "x": numbers(xs),
                "y": numbers(ys),
                "line": {"color": ink, "width": 2, "dash": theme.dash(index)},
                "marker": {"color": ink, "size": 7, "symbol": theme.symbol(index), "maxdisplayed": 5},
                "hovertemplate": f"{marks['name']}<br>%{{x:.4~g}}: %{{y:.1f}}<extra></extra>",
            }
        )
        notes.append(_end_label(name, index, float(xs[-1]), end, spot))
    room = 26 + 6.8 * max(len(words.short(n)) for n in drawn)
    margin = {"l": 48, "r": round(room), "t": top, "b": bottom}
    if x.get("range") is None:
        x = {**x, "range": [0, right]}
    return {
        "data": traces,
        "layout": theme.layout(
            height, x, theme.axis(y_title, range=across), annotations=notes, margin=margin, hovermode="closest"
        ),
    }


def _end_label(name: str, index: int, x: float, end: float, spot: float) -> Figure:
    """The name beside the line's end, joined to it where it had to move."""
    arrow = {"showarrow": True, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": theme.colour(index), "standoff": 4}
    place = {"x": x, "y": end, "axref": "pixel", "ax": 20, "ayref": "y", "ay": spot, "xanchor": "left"}
    return {"text": theme.text(words.short(name)), "name": str(index), **arrow, **place, "font": {"size": 11}}


# ------------------------------------------------------------------------------------------ boxes and maps


def gaps(found: Findings, attack: str) -> Figure | None:
    """How far each honest client is above the loss it could have had; a box for each method."""
    seeds = {name: found.honest(name, attack, "gap") for name in found.methods}
    values = {name: np.sort(np.concatenate(arrays)) for name, arrays in seeds.items() if arrays}
    if not values:
        return None
    everything = np.concatenate(list(values.values()))
    stretch = scales.scale(everything)
    traces = [_box(found, name, stretch(gap)) for name, gap in values.items()]
    y = theme.axis("", autorange="reversed", showgrid=False, ticks="", ticklabelstandoff=6)
    x = theme.axis(f"loss above the client's own best{stretch.said}", zeroline=True, zerolinecolor="@muted")
    x |= stretch.axis(everything)
    return {"data": traces, "layout": theme.layout(80 + 40 * len(traces), x, y)}


def _box(found: Findings, name: str, values: Array) -> Figure:
    index, marks = _method(found, name)
    q05, q25, q50, q75, q95 = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
    marked = {"color": theme.colour(index), "size": 4, "opacity": 0.55, "symbol": theme.symbol(index)}
    return {
        **marks,
        "type": "box",
        "orientation": "h",
        "y": [theme.text(words.short(name))],
        "x": [numbers(values[thinned(len(values))])],
        "q1": numbers([q25]),
        "median": numbers([q50]),
        "q3": numbers([q75]),
        "lowerfence": numbers([q05]),
        "upperfence": numbers([q95]),
        "boxpoints": "all",
        "jitter": 0.5,
        "pointpos": 0,
        "line": {"color": theme.colour(index), "width": 1.5},
        "fillcolor": theme.colour(index, 0.15),
        "marker": marked,
        "hoverinfo": "name",
    }


def heat(found: Findings, measure: str) -> Figure | None:
    """Methods × attacks, the number in every cell."""
    grid = np.array([[found.mean(m, a, measure) for a in found.attacks] for m in found.methods])
    if not np.isfinite(grid).any():
        return None
    cells = [[words.number(v, measure) for v in row] for row in grid.tolist()]
    trace = {
        "type": "heatmap",
        "name": MEASURES[measure].label,
        "x": [theme.text(words.short(words.situation(a))) for a in found.attacks],
        "y": [theme.text(words.short(m)) for m in found.methods],
        "z": [numbers(row) for row in scaled(measure, grid)],
        "text": cells,
        "texttemplate": "%{text}",
        "textfont": {"color": "@ink", "size": 13},
        "colorscale": [[0, "@c0/0.04"], [1, "@c0/0.5"]],
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "hovertemplate": f"%{{y}}, %{{x}}: %{{text}}{words.unit(measure)}<extra></extra>",
    }
    x = theme.axis("", side="top", showgrid=False, type="category", ticks="")
    y = theme.axis("", autorange="reversed", showgrid=False, type="category", ticks="", ticklabelstandoff=6)
    margin = {"l": 48, "r": 16, "t": 30, "b": 8}
    return {"data": [trace], "layout": theme.layout(50 + 32 * len(found.methods), x, y, margin=margin)}


def partition(counts: Array, most: int = MOST_POINTS) -> Figure | None:
    """Who holds what: clients × classes, darker for more samples."""
    if counts.ndim != 2 or not counts.size:
        return None
    shown = counts[:most]
    trace = {
        "type": "heatmap",
        "name": "training samples",
        "z": [[int(v) for v in row] for row in shown.T],
        "colorscale": [[0, "@c0/0.0"], [0.02, "@c0/0.12"], [1, "@c0/1"]],
        "xgap": 1 if len(shown) <= 60 else 0,
        "ygap": 1,
        "hovertemplate": "client %{x}, class %{y}: %{z} samples<extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "title": {"text": "samples", "side": "right"}},
    }
    x = theme.axis("client", showgrid=False, ticks="")
    y = theme.axis("class", showgrid=False, ticks="", **({"dtick": 1} if shown.shape[1] <= 20 else {}))
    return {"data": [trace], "layout": theme.layout(min(520, 110 + 18 * shown.shape[1]), x, y)}


# ------------------------------------------------------------------------------------------ the ledger


def ledger(rows: Any, column: str, malicious: Sequence[int], removed: dict[int, int]) -> Figure | None:
    """A client's reputation or quota over the rounds of one run: honest clients, attackers, and removals."""
    values = np.asarray(rows[column], np.float64)
    if not np.isfinite(values).any():
        return None
    bad = np.isin(rows["client"], list(malicious))
    traces = [
        _threads(rows, values, ~bad, "honest clients", {"color": "@c0/0.45", "width": 1.2}),
        _threads(rows, values, bad, "attackers", {"color": "@c1", "width": 2, "dash": "dash"}),
        _removals(rows, values, removed),
    ]
    kept = [t for t in traces if t["x"]]
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    figure = theme.layout(320, theme.axis("round"), theme.axis(column, rangemode="tozero"))
    return {"data": kept, "layout": {**figure, "showlegend": True, "legend": legend, "hovermode": "closest"}}


def _threads(rows: Any, values: Array, keep: Array, name: str, line: Figure) -> Figure:
    """One trace of many lines: a null parts one client from the next."""
    x: list[float | None] = []
    y: list[float | None] = []
    who: list[int] = []
    clients = np.unique(rows["client"][keep])
    most = max(20, MOST_THREADS // max(1, len(clients)))
    for client in clients:
        mine = np.flatnonzero(keep & (rows["client"] == client))
        mine = mine[np.argsort(rows["round"][mine], kind="stable")]
        mine = mine[thinned(len(mine), most)]
        x += [*numbers(rows["round"][mine]), None]
        y += [*numbers(values[mine]), None]
        who += [int(client)] * (len(mine) + 1)
    hover = f"client %{{text}} ({name})<br>round %{{x}}: %{{y:.3~g}}<extra></extra>"
    kind = {"type": "scatter", "mode": "lines", "name": name, "line": line, "hovertemplate": hover}
    return {**kind, "x": x, "y": y, "text": who}


def _removals(rows: Any, values: Array, removed: dict[int, int]) -> Figure:
    points = []
    for client, at in removed.items():
        here = np.flatnonzero((rows["client"] == client) & (rows["round"] == at))
        if len(here):
            points.append((at, values[here[0]], f"client {client} removed"))
    marker = {"symbol": "x", "size": 9, "color": "@bad"}
    ys = numbers([v if math.isfinite(v) else 0.0 for _, v, _ in points])
    found = {"x": [p[0] for p in points], "y": ys, "text": [p[2] for p in points]}
    return {"type": "scatter", "mode": "markers", "name": "removed", "marker": marker, "hoverinfo": "text+x", **found}
