"""Make an index of a snapshot: `python eval/restore.py SNAPSHOT OUT`.

Nothing is encoded again. One that was killed goes on.
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
from claim2source.engines import restore


@dataclass(frozen=True)
class RestoreConfig:
    """Settings of `eval/restore.py`; SNAPSHOT and OUT may stand first.

    Args:
        snapshot: folder of the snapshot.
        out: folder of the index, or qdrant://HOST:PORT/COLLECTION; nothing may be there.
    """

    snapshot: Path
    out: str


def main(argv: Sequence[str] | None = None) -> None:
    """Make the index, and say how many papers it holds."""
    words = with_places(sys.argv[1:] if argv is None else argv, ("snapshot", "out"))
    config = read_config(RestoreConfig, words, program="eval/restore.py", description=__doc__)
    engine = restore(config.snapshot, config.out, progress=True, say=say)
    engine.close()
    say(f"{config.out}: {engine.stats().papers} papers")


if __name__ == "__main__":
    run_program(main)
