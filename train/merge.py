"""Export a checkpoint: `python train/merge.py --checkpoint DIR [--scale 0.5] --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.training.export.merge import MergeConfig, merge


def main(argv: Sequence[str] | None = None) -> None:
    """Merge, write a sentence-transformers folder, say what it is made of."""
    config = read_config(MergeConfig, argv, program="train/merge.py", description=__doc__)
    for line in merge(config):
        print(line)


if __name__ == "__main__":
    run_program(main)
