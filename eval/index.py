"""Make an index of papers, or let it grow: `python eval/index.py SOURCE --out DIR`.

SOURCE is `demo` or another data set, or a file or folder of JSON (corpus.jsonl, works of OpenAlex
and Crossref), XML of PubMed or JATS, RIS, NBIB, BibTeX, CSV or Parquet. What is in the index as it
is stays: a stopped run goes on. In several processes (a Slurm array, or accelerate) each encodes
its share into the store and leaves the index alone; a last run by itself then writes it. With
`--launcher ray` the workers of a Ray cluster encode, and this process writes the index afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.find.index import PROGRAM, IndexProgramConfig, index_words, write_index

# The keys that people need first.
COMMON = (
    "source",
    "out",
    "model.name",
    "claims",
    "columns",
    "retractions",
    "delete",
    "translator",
    "workers",
    "undo",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the papers, and print the index's contents."""
    words = index_words(sys.argv[1:] if argv is None else argv)
    config = read_config(
        IndexProgramConfig,
        words,
        program=PROGRAM,
        description=__doc__,
        common=COMMON,
        positionals=("source",),
    )
    write_index(config)


if __name__ == "__main__":
    run_program(main)
