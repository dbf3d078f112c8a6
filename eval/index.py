"""Make an index of papers, or add papers to it: `python eval/index.py SOURCE --out DIR`.

SOURCE is `demo` or another data set, or a file or folder of papers: CSV, Excel, Parquet, RIS, NBIB,
BibTeX, JSON (corpus.jsonl, works of OpenAlex and Crossref), or XML of PubMed or JATS. Papers that
are in the index and have not changed are not encoded again, so a stopped run resumes.

With several processes (a Slurm array, or accelerate) each encodes its share into the store and does
not write the index; a last single run writes it. With `--launcher ray` the workers of a Ray cluster
encode, and this process then writes the index.
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
    """Index the papers, and print the index's contents."""
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
