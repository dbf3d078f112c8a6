"""The plot of scales names every language."""

import io

from claim2source.training.curve import draw


def test_a_name_that_begins_with_an_underscore_is_in_the_legend() -> None:
    names = ["_x", "$1$", "macro"]
    curve = {scale: {name: {"mrr@5": scale / 2} for name in names} for scale in (0.0, 1.0)}
    figure = draw(curve, 1.0, "scales")
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == names
    # Each name stands beside its own line.
    drawn = [line.get_color() for line in figure.axes[0].get_lines()[::2]]
    assert [line.get_color() for line in legend.get_lines()] == drawn
    figure.savefig(io.BytesIO())
