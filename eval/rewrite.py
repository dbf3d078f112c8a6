"""Rewrite claims and sources in the papers' styles: `python eval/rewrite.py --out DIR`.

The folder holds one file a style, and what made it; `eval/style_grid.py --texts DIR` scores them.
"""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.pipeline.rewrite import RewriteConfig, rewrite


def main(argv: Sequence[str] | None = None) -> None:
    """Rewrite; print what each style's texts are like."""
    rewrite(read_config(RewriteConfig, argv, program="eval/rewrite.py", description=__doc__))


if __name__ == "__main__":
    run_program(main)
