"""Define the settings of out-of-fold training."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from claim2source.core.config import require, require_between, require_seed
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

    folds: int = 3
    seen_share: float | None = None
    fold_seed: int = 13
    depth: int = 1000
    out: Path = Path("checkpoints/folds")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("folds", self.folds, 2, 100)
        require_between("depth", self.depth, 1, 10**6)
        require_seed("fold_seed", self.fold_seed)
        share = self.seen_share
        require(share is None or 0 <= share <= 1, "seen_share", share, "0 to 1, or none")
        allowed = "false: folds go on by themselves, and another --out begins others"
        require(not self.overwrite, "overwrite", self.overwrite, allowed)

    def recipe(self) -> FinetuneConfig:
        """Return the settings of the fine-tuning alone."""
        return FinetuneConfig(**{f.name: getattr(self, f.name) for f in fields(FinetuneConfig)})
