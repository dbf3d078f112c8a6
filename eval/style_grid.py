"""Score systems over text styles: `python eval/style_grid.py --systems FILE --out DIR`.

It runs eval/evaluate.py over 5 styles of claims and 4 of sources; every cell is a row of its
report. The texts are made by `claim2source rewrite` (`--styles.texts DIR`) or by rules.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.evaluation.plan import vary_words
from claim2source.evaluation.style_grid import StyleOptions
from claim2source.evaluation.table import EvaluateConfig, evaluate_table

PROGRAM = "eval/style_grid.py"
# The keys that people need first.
COMMON = (
    "dataset",
    "split",
    "systems",
    "checkpoint",
    "styles.claim_styles",
    "styles.source_styles",
    "rewrites",
    "out",
    "languages",
    "device",
)


@dataclass(frozen=True)
class StyleGridConfig(EvaluateConfig):
    """Settings of `eval/style_grid.py`: those of `eval/evaluate.py`, with a grid of styles.

    Args:
        styles: the grid of text styles.
    """

    styles: StyleOptions = field(default_factory=StyleOptions)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the grid of every system, print its tables."""
    words = vary_words(sys.argv[1:] if argv is None else argv)
    config = read_config(
        StyleGridConfig, words, program=PROGRAM, description=__doc__, common=COMMON
    )
    say(evaluate_table(config))


if __name__ == "__main__":
    run_program(main)
