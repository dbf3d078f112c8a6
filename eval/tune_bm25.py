"""Choose BM25's settings off the reported split: `python eval/tune_bm25.py --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.evaluation.tune import TuneConfig, tune_bm25


def main(argv: Sequence[str] | None = None) -> None:
    """Choose, write the settings and the report, print it."""
    config = read_config(TuneConfig, argv, program="eval/tune_bm25.py", description=__doc__)
    print(tune_bm25(config))


if __name__ == "__main__":
    run_program(main)
