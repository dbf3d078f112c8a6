"""Evaluate BM25, a dense model and their fusion: `python eval/hybrid.py --checkpoint ...`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.evaluation.hybrid import HybridConfig, evaluate_hybrid


def main(argv: Sequence[str] | None = None) -> None:
    """Choose settings off the split, score the three systems, print the tables."""
    config = read_config(HybridConfig, argv, program="eval/hybrid.py", description=__doc__)
    print(evaluate_hybrid(config))


if __name__ == "__main__":
    run_program(main)
