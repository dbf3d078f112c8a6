"""Copy an index to another place: `python eval/migrate.py INDEX OUT`.

Papers, terms and vectors are read from the one and written to the other; nothing is encoded again.
One that was killed goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.keys import with_places
from claim2source.core.terminal import say
from claim2source.engines import migrate, open_engine


@dataclass(frozen=True)
class MigrateConfig:
    """Settings of `eval/migrate.py`; INDEX and OUT may stand first.

    Args:
        index: folder of the index, or qdrant://HOST:PORT/COLLECTION.
        out: folder or address of the copy; nothing may be there.
    """

    index: str
    out: str


def main(argv: Sequence[str] | None = None) -> None:
    """Copy the index, and say how many papers the copy holds."""
    words = with_places(sys.argv[1:] if argv is None else argv, ("index", "out"))
    config = read_config(MigrateConfig, words, program="eval/migrate.py", description=__doc__)
    engine = migrate(open_engine(config.index), config.out, progress=True, say=say)
    engine.close()
    say(f"{config.out}: {engine.stats().papers} papers")


if __name__ == "__main__":
    run_program(main)
