"""How charts look: colours by name, so that one figure can be drawn light, dark or on paper.

A colour in a figure is a token, "@ink" or "@c3" or, with an opacity, "@c3/0.2"; the page and `resolve` put in a theme's
own. The seven colours of methods are those of Okabe and Ito, shifted until each stands out from its background; what
tells two methods apart is never colour alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "muted": "#767c85",
    "grid": "#e3e6ea",
    "bad": "#b3261e",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#009e73",
    "c3": "#b8609a",
    "c4": "#b87a00",
    "c5": "#2b98d4",
    "c6": "#3d3d3d",
}
DARK: Mapping[str, str] = {
    "paper": "#15181d",
    "ink": "#e8eaed",
    "muted": "#8f969f",
    "grid": "#30353c",
    "bad": "#ff8a80",
    "c0": "#4c9fe0",
    "c1": "#ef7d33",
    "c2": "#27bd90",
    "c3": "#dd92c0",
    "c4": "#e6a817",
    "c5": "#8fd3fb",
    "c6": "#d5d8dc",
}
_SLOTS = 7
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon", "triangle-down", "hexagram")
_TOKEN = re.compile(r"@(\w+)(?:/([\d.]+))?")

Figure = dict[str, Any]


def colour(index: int, opacity: float | None = None) -> str:
    return f"@c{index % _SLOTS}" + (f"/{opacity}" if opacity is not None else "")


def dash(index: int) -> str:
    """Neighbours in colour differ in dash, and the eighth method, back at the first colour, differs as well."""
    return _DASHES[(index % _SLOTS + index // _SLOTS) % len(_DASHES)]


def symbol(index: int) -> str:
    return _SYMBOLS[index % len(_SYMBOLS)]


def text(words: str) -> str:
    """Text that a chart shows as it is: the library reads a few HTML tags in its labels."""
    return escape(words, quote=False)


def axis(title: str, **more: Any) -> Figure:
    """No zooming: a finger that scrolls the page must not be caught."""
    return {
        "title": {"text": title, "standoff": 8},
        "fixedrange": True,
        "gridcolor": "@grid",
        "linecolor": "@grid",
        "zeroline": False,
        "automargin": True,
        "tickfont": {"color": "@ink"},
        **more,
    }


def layout(height: int, x: Figure, y: Figure, **more: Any) -> Figure:
    return {
        "height": height,
        "margin": {"l": 48, "r": 16, "t": 12, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 12, "color": "@ink"},
        "hoverlabel": {"bgcolor": "@paper", "bordercolor": "@muted", "font": {"color": "@ink"}},
        "showlegend": False,
        "dragmode": False,
        "xaxis": x,
        "yaxis": y,
        **more,
    }


def resolve(part: Any, theme: Mapping[str, str] = LIGHT) -> Any:
    """A figure with a theme's colours in place of the tokens."""
    if isinstance(part, dict):
        return {key: resolve(value, theme) for key, value in part.items()}
    if isinstance(part, list):
        return [resolve(value, theme) for value in part]
    found = _TOKEN.fullmatch(part) if isinstance(part, str) else None
    return _mixed(theme[found[1]], found[2]) if found and found[1] in theme else part


def _mixed(base: str, opacity: str | None) -> str:
    if opacity is None:
        return base
    red, green, blue = (int(base[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
