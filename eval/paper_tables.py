"""The papers' tables with ours beside them: `python eval/paper_tables.py --reports DIR...`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.evaluation.paper_tables import PaperTablesConfig, paper_tables


def main(argv: Sequence[str] | None = None) -> None:
    """Read the reports, print or write the tables."""
    config = read_config(PaperTablesConfig, argv, program="paper_tables.py", description=__doc__)
    print(paper_tables(config))


if __name__ == "__main__":
    run_program(main)
