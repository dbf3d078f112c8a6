"""Write everything that an index holds to a folder: `python eval/snapshot.py INDEX OUT`.

What others write meanwhile is not in it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.keys import with_places
from claim2source.core.terminal import say
from claim2source.engines import open_engine


@dataclass(frozen=True)
class SnapshotConfig:
    """Settings of `eval/snapshot.py`; INDEX and OUT may stand first.

    Args:
        index: folder of the index, or qdrant://HOST:PORT/COLLECTION.
        out: folder for the snapshot; an older one there is replaced.
    """

    index: str
    out: Path


def main(argv: Sequence[str] | None = None) -> None:
    """Write the snapshot, and say how many papers it holds."""
    words = with_places(sys.argv[1:] if argv is None else argv, ("index", "out"))
    config = read_config(
        SnapshotConfig, words, program="eval/snapshot.py", description=__doc__ or ""
    )
    papers = open_engine(config.index).snapshot(config.out, progress=True)
    say(f"{config.out}: {papers} papers")


if __name__ == "__main__":
    run_program(main)
