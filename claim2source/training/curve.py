"""Draw the scores on val between the base and what was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from claim2source.core.report import MACRO, MAIN_METRIC, Table, Trial
from claim2source.core.tables import Cell, TextTable
from claim2source.evaluation.metrics import macro

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TO_CHOOSE_BY = "to choose by"


@dataclass(frozen=True)
class Picked:
    """Hold the scale of every language of val, and that of any other language."""

    scales: Mapping[str, float]
    default: float

    def of(self, language: str) -> float:
        """Return the scale for a language's claims."""
        return self.scales.get(language, self.default)

    @property
    def distinct(self) -> list[float]:
        """List the scales in use, the smallest first."""
        return sorted(set(self.scales.values()) or {self.default})

    def table(self, by_scale: Mapping[float, Table]) -> Table:
        """Take every language's row at its own scale, and average them."""
        languages = [name for name in next(iter(by_scale.values())) if name != MACRO]
        rows = {name: by_scale[self.of(name)][name] for name in languages}
        return {**rows, MACRO: macro(rows)}


def curve_table(curve: Sequence[Trial]) -> TextTable:
    """Tabulate MRR@5 on val: a row for each scale, a column for each language.

    The last column is the score to choose by: the macro average on the declared mix.
    """
    names = list(curve[0].scores)
    rows: list[list[Cell]] = [
        [
            f"{at.settings['scale']:.12g}",
            *(at.scores[name][MAIN_METRIC] for name in names),
            at.score,
        ]
        for at in curve
    ]
    return TextTable(["scale", *names, TO_CHOOSE_BY], rows)


def draw(curve: Mapping[float, Table], picked: Picked | None, title: str) -> Figure:
    """Plot MRR@5 on val over the scales: a line for each language, the picked point circled."""
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
        if picked is None:
            continue
        scale = picked.of(name)
        axes.plot(
            [scale],
            [curve[scale][name][MAIN_METRIC]],
            "o",
            color=line.get_color(),
            fillstyle="none",
        )
    axes.set(xlabel="scale (0: base, 1: as trained)", ylabel="MRR@5", title=title)
    axes.grid(alpha=0.3)
    legend = axes.legend(lines, ["-"] * len(lines), title="circled: picked" if picked else None)
    # Set afterwards: matplotlib leaves names that begin with "_" out of a legend.
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=name, parse_math=False)
    return figure
