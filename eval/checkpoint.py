"""Evaluate checkpoints: `python eval/checkpoint.py --checkpoint DIR_OR_MODEL --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.evaluation.checkpoint import CheckpointConfig, evaluate_checkpoints


def main(argv: Sequence[str] | None = None) -> None:
    """Score, write runs and submissions, print the table."""
    config = read_config(CheckpointConfig, argv, program="eval/checkpoint.py", description=__doc__)
    print(evaluate_checkpoints(config))


if __name__ == "__main__":
    run_program(main)
