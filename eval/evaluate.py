"""Evaluate systems, checkpoints and stages: `python eval/evaluate.py --systems FILE --out DIR`.

Every system, claim form and stage is a row of one report, with intervals, paired tests, costs and
the papers' numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.evaluation.plan import vary_words
from claim2source.evaluation.table import PROGRAM, EvaluateConfig, evaluate_table

# The keys that people need first.
COMMON = (
    "dataset",
    "split",
    "systems",
    "checkpoint",
    "stages",
    "out",
    "only",
    "claims",
    "languages",
    "device",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the planned systems, list those that could not run, print the tables."""
    words = vary_words(sys.argv[1:] if argv is None else argv)
    config = read_config(EvaluateConfig, words, program=PROGRAM, description=__doc__, common=COMMON)
    say(evaluate_table(config))


if __name__ == "__main__":
    run_program(main)
