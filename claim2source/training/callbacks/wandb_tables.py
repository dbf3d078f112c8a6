"""Show tables of a training in Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl

from claim2source.core.records import Dataset
from claim2source.training.loggers import RunLog
from claim2source.training.negatives import KeptNegatives, negatives_table
from claim2source.training.steps import TrainingModule


class WandbTables(pl.Callback):
    """Show a sample of the mined negatives that are trained on, whenever they are others."""

    def __init__(
        self, negatives: KeptNegatives, train: Dataset, seed: int, logs: Callable[[], RunLog]
    ) -> None:
        self.negatives, self.train, self.seed, self.logs = negatives, train, seed, logs
        self._shown: Path | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Show what the training begins with."""
        self._show(module)

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Show what was mined again."""
        self._show(module)

    def _show(self, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        if self.negatives.current == self._shown or not module.shown_rows:
            return
        self._shown = self.negatives.current
        table = negatives_table(module.shown_rows, self.train, self.seed)
        self.logs().table("mined negatives", table)
