"""Show what the store of vectors and ranked lists holds, and prune it: `python eval/store.py`.

What is removed is computed again when it is needed; a process that uses the store goes on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from claim2source.core.config import MOST, Between, Settings, flag, read_config
from claim2source.core.errors import run_program
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.io.contents import DAY, Entry, chosen, entries, remove
from claim2source.io.store import default_root


@dataclass(frozen=True)
class Config(Settings):
    """Settings of `eval/store.py`.

    Args:
        store: folder of the store; none: CLAIM2SOURCE_STORE, or the user's cache.
        older_than: remove what was written more than so many days ago.
        at_most: remove the oldest until the store holds at most so many MiB.
    """

    store: Path | None = None
    older_than: Annotated[float, Between(0, MOST)] | None = None
    at_most: Annotated[float, Between(0, MOST)] | None = None
    all: bool = flag("remove everything that the store holds")
    dry_run: bool = flag("only say what would be removed")


def main(argv: Sequence[str] | None = None) -> None:
    """Print what is there, remove what was asked for, and say what that was."""
    config = read_config(Config, argv, program="eval/store.py", description=__doc__ or "")
    root = config.store or default_root()
    found = entries(root)
    say(f"{root}: {total(found)}")
    if found:
        say(f"\n{render([table(found)])}")
    if config.all or config.older_than is not None or config.at_most is not None:
        gone = chosen(
            found, days=config.older_than, mebibytes=config.at_most, everything=config.all
        )
        if not config.dry_run:
            remove(gone)
        say(f"\n{'would be removed' if config.dry_run else 'removed'}: {total(gone)}")


def total(found: Sequence[Entry]) -> str:
    """Count files and their size."""
    files = f"{len(found)} file{'' if len(found) == 1 else 's'}"
    return f"{files}, {sum(entry.size for entry in found) / 2**20:.1f} MiB"


def table(found: Sequence[Entry]) -> TextTable:
    """Tabulate the files by what they hold, the largest first."""
    kinds: dict[str, list[Entry]] = {}
    for entry in found:
        kinds.setdefault(entry.what, []).append(entry)
    rows: list[list[Cell]] = [
        [
            what,
            sum(entry.count for entry in those),
            len(those),
            f"{sum(entry.size for entry in those) / 2**20:.1f}",
            *(f"{(time.time() - entry.written) / DAY:.1f}" for entry in (those[0], those[-1])),
        ]
        for what, those in kinds.items()
    ]
    rows.sort(key=lambda row: -float(row[3] or 0))
    columns = ["what", "entries", "files", "MiB", "oldest, days", "newest, days"]
    return TextTable(columns, rows, numeric=[False, *[True] * 5])


if __name__ == "__main__":
    run_program(main)
