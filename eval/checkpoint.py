"""Evaluate checkpoints: `python eval/checkpoint.py --checkpoint DIR_OR_MODEL --out DIR`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.pipeline.checkpoints import CheckpointConfig, evaluate_checkpoints, route_words


def main(argv: Sequence[str] | None = None) -> None:
    """Score, write runs and submissions, print the table."""
    words = route_words(sys.argv[1:] if argv is None else argv)
    config = read_config(CheckpointConfig, words, program="eval/checkpoint.py", description=__doc__)
    say(evaluate_checkpoints(config))


if __name__ == "__main__":
    run_program(main)
