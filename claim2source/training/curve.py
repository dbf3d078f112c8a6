"""Scores on val between the base and what was trained: as a table, and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from claim2source.evaluation.metrics import macro
from claim2source.evaluation.retrieval import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "mrr@5"


@dataclass(frozen=True)
class Picked:
    """The scale of every language of val, and of any other language."""

    scales: dict[str, float]
    default: float

    def of(self, language: str) -> float:
        """The scale that a language's claims are to be read at."""
        return self.scales.get(language, self.default)

    @property
    def distinct(self) -> list[float]:
        """The scales in use, the smallest first."""
        return sorted(set(self.scales.values()) or {self.default})

    def table(self, by_scale: Mapping[float, Table]) -> Table:
        """Every language's row at its own scale, and their macro average."""
        languages = [name for name in next(iter(by_scale.values())) if name != "macro"]
        rows = {name: by_scale[self.of(name)][name] for name in languages}
        return {**rows, "macro": macro(rows)}


def curve_table(curve: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[list[Any]]]:
    """A curve of {"scale", "val"} as columns and rows: a row a scale, a column a language."""
    names = list(curve[0]["val"])
    rows = [[f"{at['scale']:.12g}", *(at["val"][name][METRIC] for name in names)] for at in curve]
    return ["scale", *names], rows


def draw(curve: Mapping[float, Table], picked: Picked, title: str) -> Figure:
    """MRR@5 on val over the scales: a line a language, the macro average, what was picked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    scales = list(curve)
    for name in next(iter(curve.values())):
        values = [curve[scale][name][METRIC] for scale in scales]
        style = {"color": "black", "linewidth": 2.0} if name == "macro" else {"linewidth": 1.2}
        (line,) = axes.plot(scales, values, marker=".", label=name, **style)  # type: ignore[arg-type]
        scale = picked.of(name)
        axes.plot(
            [scale], [curve[scale][name][METRIC]], "o", color=line.get_color(), fillstyle="none"
        )
    axes.set(xlabel="scale (0: base, 1: as trained)", ylabel="MRR@5", title=title)
    axes.grid(alpha=0.3)
    axes.legend(title="circled: picked")
    return figure
