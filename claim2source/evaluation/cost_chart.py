"""Draw quality against the milliseconds that a claim takes: a point for each system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import UserError
from claim2source.core.files import atomic_path
from claim2source.core.report import MACRO, MAIN_METRIC, Report


@dataclass(frozen=True)
class CostPoint:
    """Hold a system's milliseconds a claim, its macro MRR@5, and the bounds of its interval."""

    milliseconds: float
    score: float
    bounds: tuple[float, float] | None = None


def cost_points(reports: Sequence[Report]) -> dict[str, CostPoint]:
    """Collect the systems of reports whose speed was measured, by name.

    Where reports call several models by one name, such as `student`, the model's folder is named
    too. Raises `UserError` where there is none.
    """
    points: dict[str, CostPoint] = {}
    models: dict[str, set[str]] = {}
    for report in reports:
        for name, system in report.systems.items():
            models.setdefault(name, set()).add(system.model)
    for report in reports:
        for name, system in report.systems.items():
            if system.speed is None or MAIN_METRIC not in system.macro:
                continue
            bounds = system.intervals.of(MAIN_METRIC, MACRO) if system.intervals else None
            point = CostPoint(system.speed.milliseconds, float(system.macro[MAIN_METRIC]), bounds)
            shown = name if len(models[name]) == 1 else f"{name} {Path(system.model).name}"
            points.setdefault(shown, point)
    if not points:
        raise UserError("no system of these reports has a measured speed: see train/distill.py")
    return points


def draw_costs(points: Mapping[str, CostPoint], out: Path, title: str) -> None:
    """Write the chart as SVG, the same bytes for the same points; names stand beside them."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "claim2source", "font.size": 10}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for name, point in points.items():
            low, high = point.bounds or (point.score, point.score)
            off = [[point.score - low], [high - point.score]]
            axes.errorbar(
                [point.milliseconds],
                [point.score],
                yerr=off,
                fmt="o",
                color="#1f4e79",
                elinewidth=1,
            )
            place = (point.milliseconds, point.score)
            axes.annotate(name, place, xytext=(6, 5), textcoords="offset points", parse_math=False)
        axes.set_xscale("log")
        axes.margins(x=0.25)
        axes.set(xlabel="CPU milliseconds a claim, sources indexed", ylabel=MAIN_METRIC.upper())
        axes.set_title(title, parse_math=False)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        with atomic_path(out) as temporary:
            figure.savefig(temporary, format="svg", metadata={"Date": None})
