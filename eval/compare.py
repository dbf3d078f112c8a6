"""Compare saved systems: `python eval/compare.py --reports DIR... --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.evaluation.compare import CompareConfig, compare_systems


def main(argv: Sequence[str] | None = None) -> None:
    """Read runs, score, test, explain, print."""
    config = read_config(CompareConfig, argv, program="eval/compare.py", description=__doc__)
    print(compare_systems(config))


if __name__ == "__main__":
    run_program(main)
