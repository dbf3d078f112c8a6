"""Define the settings of out-of-fold training."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from claim2source.core.config import Between, Seed, require
from claim2source.training.config import FinetuneConfig


@dataclass(frozen=True)
class FoldsConfig(FinetuneConfig):
    """Hold the settings of `train/folds.py`: those of a fine-tuning, and of the folds.

    Args:
        folds: number of folds, and of trainings.
        seen_share: share of the claims whose papers are spread over the folds, so that the model
            that ranks them has seen the paper; none: the share of the claims whose paper has
            another claim.
        fold_seed: draws the folds.
        depth: sources kept for each claim.
    """

    folds: Annotated[int, Between(2, 100)] = 3
    seen_share: float | None = None
    fold_seed: Seed = 13
    depth: Annotated[int, Between(1, 10**6)] = 1000
    out: Path = Path("checkpoints/folds")

    def check(self) -> None:
        super().check()
        share = self.seen_share
        require(share is None or 0 <= share <= 1, "seen_share", share, "0 to 1, or none")
        allowed = "false: folds go on by themselves, and another --out begins others"
        require(not self.overwrite, "overwrite", self.overwrite, allowed)

    def recipe(self) -> FinetuneConfig:
        """Return the settings of the fine-tuning alone."""
        return FinetuneConfig(**{f.name: getattr(self, f.name) for f in fields(FinetuneConfig)})
