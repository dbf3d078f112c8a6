"""Choose how far to go from the base: `python train/interpolate.py --checkpoint DIR`."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.training.export.interpolate import InterpolateConfig, interpolate


def main(argv: Sequence[str] | None = None) -> None:
    """Score every scale on val, pick, report on the split, write what was picked."""
    config = read_config(
        InterpolateConfig, argv, program="train/interpolate.py", description=__doc__
    )
    print(interpolate(config))


if __name__ == "__main__":
    run_program(main)
