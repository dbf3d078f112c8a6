"""Mine hard negatives: `python train/mine.py --out mined.jsonl [--dataset DIR]`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.mining.program import MineConfig, mine_file


def main(argv: Sequence[str] | None = None) -> None:
    """Mine, write the JSONL, say what was found and what is missing."""
    config = read_config(MineConfig, argv, program="train/mine.py", description=__doc__)
    for line in mine_file(config):
        print(line)


if __name__ == "__main__":
    run_program(main)
