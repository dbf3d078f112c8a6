"""Draw the chart of the README from BENCHMARKS.md: `python scripts/draw_results.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt

from claim2source.core.config import read_config
from claim2source.core.errors import run_program

# Bar -> start of the row in BENCHMARKS.md, and the column of its dev MRR@5.
ROWS = {
    "MiniLM, not fine-tuned": ("step 0", 5),
    "MiniLM, fine-tuned": ("dense, epoch 2", 2),
    "BM25": ("BM25 (k1 1.5", 2),
    "BM25 + fine-tuned MiniLM": ("hybrid (z-score", 2),
}
COLOURS = ["#b8c4d0", "#5b8db8", "#b8c4d0", "#1f4e79"]


@dataclass(frozen=True)
class DrawConfig:
    """Settings of `scripts/draw_results.py`: the page with the tables, and the image to write.

    Args:
        page: the page with the tables.
        out: the image to write.
    """

    page: Path = Path("BENCHMARKS.md")
    out: Path = Path("docs/images/ct25.svg")


def read_scores(page: str) -> dict[str, float]:
    """Read the dev MRR@5 of every bar from the section on ct25."""
    section = page.split("## MiniLM fine-tuned on real posts", 1)[1].split("\n## ", 1)[0]
    scores = {}
    for bar, (start, column) in ROWS.items():
        row = re.search(rf"^\| {re.escape(start)}.*$", section, re.MULTILINE)
        if row is None:
            raise SystemExit(f"BENCHMARKS.md: no row of ct25 that starts with {start!r}")
        scores[bar] = float(row[0].strip("|").split("|")[column].strip(" *"))
    return scores


def draw(scores: Mapping[str, float], out: Path) -> None:
    """Write the bars as SVG, the same bytes for the same scores."""
    plt.rcParams |= {"svg.hashsalt": "claim2source", "font.size": 10}
    figure, axes = plt.subplots(figsize=(7, 2.3), layout="constrained")
    bars = axes.barh(list(scores), list(scores.values()), color=COLOURS, height=0.65)
    axes.bar_label(bars, fmt="%.4f", padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0, 0.8)
    axes.set_xlabel("MRR@5 on the 431 dev posts of ct25 (4,008 papers)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, metadata={"Date": None})


def main(argv: Sequence[str] | None = None) -> None:
    """Draw the chart."""
    config = read_config(DrawConfig, argv, program="scripts/draw_results.py", description=__doc__)
    draw(read_scores(config.page.read_text(encoding="utf-8")), config.out)


if __name__ == "__main__":
    run_program(main)
