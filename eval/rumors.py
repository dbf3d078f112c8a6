"""Verify rumours: `python eval/rumors.py --systems FILE --dataset FILE.json --out DIR`.

CheckThat! 2024 Task 5: up to five tweets of authorities as evidence, and a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.pipeline.rumors import PROGRAM, RumorsConfig, verify_rumors


def main(argv: Sequence[str] | None = None) -> None:
    """Run the systems, read given outputs, score all, write the folder, print the tables."""
    say(verify_rumors(read_config(RumorsConfig, argv, program=PROGRAM, description=__doc__)))


if __name__ == "__main__":
    run_program(main)
