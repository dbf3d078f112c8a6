"""Translate a data set's claims to English: `python eval/translate.py --dataset DIR`.

The translations stand in `metadata.translation` of queries.jsonl. What has one is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.pipeline.translate import TranslateConfig, translate


def main(argv: Sequence[str] | None = None) -> None:
    """Translate; print what was translated and what failed."""
    translate(read_config(TranslateConfig, argv, program="eval/translate.py", description=__doc__))


if __name__ == "__main__":
    run_program(main)
