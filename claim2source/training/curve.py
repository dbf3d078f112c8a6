"""Draw the scores on val between the base and what was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from claim2source.core.report import MACRO, MAIN_METRIC, Table, Trial
from claim2source.core.tables import Cell, TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TO_CHOOSE_BY = "to choose by"


def curve_table(curve: Sequence[Trial], what: str = "scale") -> TextTable:
    """Tabulate MRR@5 on val: a row for each scale or checkpoint, a column for each language.

    The last column is the score to choose by: the macro average on the declared mix.
    """
    names = list(curve[0].scores)
    rows: list[list[Cell]] = [
        [
            shown if isinstance(shown := at.settings[what], str) else f"{shown:.12g}",
            *(at.scores[name][MAIN_METRIC] for name in names),
            at.score,
        ]
        for at in curve
    ]
    return TextTable([what, *names, TO_CHOOSE_BY], rows)


def draw(curve: Mapping[float, Table], chosen: float | None, title: str) -> Figure:
    """Plot MRR@5 on val over the scales: a line for each language, the chosen scale circled."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    scales = list(curve)
    names, lines = list(next(iter(curve.values()))), []
    for name in names:
        values = [curve[scale][name][MAIN_METRIC] for scale in scales]
        style = {"color": "black", "linewidth": 2.0} if name == MACRO else {"linewidth": 1.2}
        (line,) = axes.plot(scales, values, marker=".", **style)  # type: ignore[arg-type]
        lines.append(line)
        if chosen is not None:
            value = curve[chosen][name][MAIN_METRIC]
            axes.plot([chosen], [value], "o", color=line.get_color(), fillstyle="none")
    axes.set(xlabel="scale (0: base, 1: as trained)", ylabel="MRR@5")
    axes.set_title(title, parse_math=False)
    axes.grid(alpha=0.3)
    heading = None if chosen is None else "circled: chosen"
    legend = axes.legend(lines, ["-"] * len(lines), title=heading)
    # Set afterwards: matplotlib leaves names that begin with "_" out of a legend.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=name, parse_math=False)
    return figure
