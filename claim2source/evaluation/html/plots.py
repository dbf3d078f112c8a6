"""Draw plots as inline SVG with matplotlib: text stays text, nothing is loaded."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "claim2source",
    "text.parse_math": False,  # a name with a dollar sign is a name
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Point = tuple[float, float]


def interval_plot(
    values: Mapping[str, Mapping[str, tuple[float, float, float]]], metric: str
) -> str:
    """Draw value, low and high of every system (inner) in every group (outer)."""
    groups = list(values)
    names = list(dict.fromkeys(name for row in values.values() for name in row))
    figure, axes = _figure(1.6 + 0.35 * max(len(groups) * len(names), 8), 3.2)
    for i, name in enumerate(names):
        at = [g for g, group in enumerate(groups) if name in values[group]]
        cells = np.array([values[groups[g]][name] for g in at], dtype=float)
        shift = (i - (len(names) - 1) / 2) * 0.8 / max(len(names), 1)
        reach = np.abs(cells[:, 1:].T - cells[:, 0])
        axes.errorbar(
            np.array(at) + shift, cells[:, 0], yerr=reach, fmt="o", markersize=4, label=name
        )
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(metric)
    return _svg(figure, len(names))


def line_plot(lines: Mapping[str, Sequence[Point]], x: str, y: str, log: bool = False) -> str:
    """Draw one line a system, with its points."""
    figure, axes = _figure(5.6, 3.2)
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, label=name)
    if log:
        axes.set_xscale("log")
        ticks = sorted({point[0] for points in lines.values() for point in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.minorticks_off()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return _svg(figure, len(lines))


def scatter_plot(points: Mapping[str, Point], x: str, y: str) -> str:
    """Draw one named point a system, x on a logarithmic axis."""
    figure, axes = _figure(5.6, 3.2)
    for name, (across, up) in points.items():
        axes.plot([across], [up], "o", label=name)
    axes.set_xscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return _svg(figure, len(points))


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: np.ndarray, digits: int = 4
) -> str:
    """Draw values [rows, columns] as colours and numbers; NaN stays empty."""
    figure, axes = _figure(1.6 + 0.8 * len(columns), 0.9 + 0.34 * len(rows))
    # A mesh is drawn as paths; an image would be a raster that the page's policy does not load.
    edges = [np.arange(n + 1) - 0.5 for n in (len(columns), len(rows))]
    axes.pcolormesh(*edges, np.ma.masked_invalid(values), cmap="Blues")
    axes.invert_yaxis()
    top = np.nanmax(values) if np.isfinite(values).any() else 0.0
    low = np.nanmin(values) if np.isfinite(values).any() else 0.0
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            if np.isfinite(value):
                dark = value > low + 0.6 * (top - low)
                axes.text(
                    j,
                    i,
                    f"{value:.{digits}f}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    return _svg(figure, 0)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(min(width, 14), min(height, 14)), layout="constrained")
        return figure, figure.add_subplot()


def _svg(figure: Any, labels: int) -> str:
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        if labels:
            figure.legend(loc="outside right upper", frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]  # without the XML and DOCTYPE lines, which HTML does not have
