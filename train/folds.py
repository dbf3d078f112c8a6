"""Rank training claims by models not trained on them: `python train/folds.py --config FILE`.

Takes the settings of a fine-tuning, trains it on each part of the training claims that leaves a
fold out, and ranks that fold. `eval/hybrid.py --choose_on OUT` then chooses a fusion on all
training claims. A finished fold is not trained again, a stopped one goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.terminal import say
from claim2source.training.folds_config import FoldsConfig


def main(argv: Sequence[str] | None = None) -> None:
    """Train the folds, write the rankings, print their scores."""
    config = read_config(FoldsConfig, argv, program="train/folds.py", description=__doc__)
    # torch and all that needs it are imported once the arguments are good.
    from claim2source.training.folds import train_folds

    say(train_folds(config))


if __name__ == "__main__":
    run_program(main)
