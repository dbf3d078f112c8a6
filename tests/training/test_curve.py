"""The plot of scales: a line a language, and what was chosen."""

from __future__ import annotations

import io
from typing import Any

from claim2source.training.curve import draw


def test_each_language_has_its_line_and_its_name_whatever_it_is() -> None:
    lines = {"_x": [0.9, 0.7, 0.2], "$1$": [0.1, 0.7, 0.8], "macro": [0.5, 0.7, 0.5]}
    scales = (0.0, 0.5, 1.0)
    curve = {
        s: {name: {"mrr@5": of[i]} for name, of in lines.items()} for i, s in enumerate(scales)
    }
    figure = draw(curve, 0.5, "costs $x^2$ < $y")
    axes = figure.axes[0]
    legend = axes.get_legend()
    assert legend is not None and not axes.title.get_parse_math()
    assert [text.get_text() for text in legend.get_texts()] == list(lines)
    drawn: list[Any] = [line for line in axes.get_lines() if len(line.get_xdata()) > 1]  # type: ignore[arg-type]
    ones: list[Any] = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]  # type: ignore[arg-type]
    assert [line.get_color() for line in legend.get_lines()] == [line.get_color() for line in drawn]
    for line, values in zip(drawn, lines.values(), strict=True):
        assert (list(line.get_xdata()), list(line.get_ydata())) == (list(scales), values)
    assert [(mark.get_xdata()[0], mark.get_ydata()[0]) for mark in ones] == [(0.5, 0.7)] * 3
    figure.savefig(io.BytesIO())
