"""Evaluate every zero-shot baseline: `python eval/baselines.py --dataset DIR --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.pipeline.baselines import BaselinesConfig, evaluate_baselines


def main(argv: Sequence[str] | None = None) -> None:
    """Run the systems, list what could not run, print the table."""
    config = read_config(BaselinesConfig, argv, program="eval/baselines.py", description=__doc__)
    say(evaluate_baselines(config))


if __name__ == "__main__":
    run_program(main)
