"""The report's figures as SVG or PDF files, for papers and slides."""

from __future__ import annotations

import asyncio
import importlib
import logging
from pathlib import Path
from typing import Any, Literal

from equipoise import files
from equipoise.audit.data import AuditData
from equipoise.errors import EquipoiseError
from equipoise.report import theme
from equipoise.report.findings import find
from equipoise.report.pictures import Panel, pictures

Format = Literal["svg", "pdf"]
_WIDTH = 640


def write_figures(data: AuditData, folder: Path | str, format: Format = "svg") -> list[Path]:
    """Every figure of the report, in every situation, as a file each; returns where they are."""
    if format not in ("svg", "pdf"):
        raise EquipoiseError(f"figures: format is {format!r}", 'use "svg" or "pdf"')
    panels = [panel for picture in pictures(find(data)) for panel in picture.panels]
    images = _draw([printable(panel) for panel in panels], format)
    place = files.make_folder(folder)
    paths = [place / f"{panel.name}.{format}" for panel in panels]
    for path, image in zip(paths, images, strict=True):
        files.write_atomic(path, image)
    return paths


def printable(panel: Panel) -> dict[str, Any]:
    """The figure on white paper."""
    figure: dict[str, Any] = theme.resolve(panel.figure)
    layout = {**figure["layout"], "width": _WIDTH, "paper_bgcolor": "white", "plot_bgcolor": "white"}
    return {"data": figure["data"], "layout": layout}


def _draw(figures: list[dict[str, Any]], format: str) -> list[bytes]:
    """Drawn by the charts' own library in a browser without a window."""
    try:
        kaleido = importlib.import_module("kaleido")
    except ImportError as e:
        raise EquipoiseError("figures: kaleido is not installed", "pip install kaleido, or use the HTML report") from e
    for name in ("kaleido", "choreographer"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        return asyncio.run(_render(kaleido, figures, format))
    except Exception as e:  # the browser is another program, and can fail in any way
        why = next(iter(str(e).strip().splitlines()), "no reason given")
        raise EquipoiseError(
            f"figures: no browser could draw them ({type(e).__name__}: {why})",
            "install chromium (Debian: apt install chromium) or set BROWSER_PATH; the HTML report needs neither",
        ) from e


async def _render(kaleido: Any, figures: list[dict[str, Any]], format: str) -> list[bytes]:
    offline = kaleido.PageGenerator(mathjax=False)
    async with kaleido.Kaleido(n=1, page_generator=offline) as browser:
        return [await browser.calc_fig(figure, opts={"format": format}) for figure in figures]
