"""Show how far a training is."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl

from claim2source.core.progress import Progress
from claim2source.training.steps import TrainingModule


class TrainingProgress(pl.Callback):
    """Count optimizer steps of all epochs on stderr, with the loss; a resumed run goes on."""

    def __init__(self) -> None:
        self.progress = Progress(None, 0)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Begin where the run begins or resumes."""
        assert isinstance(module, TrainingModule)
        self.progress = Progress("training", module.optimizer_steps, module.steps_done, quiet=0)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, *arguments: Any
    ) -> None:
        """Show the step that this batch closed."""
        assert isinstance(module, TrainingModule)
        if steps := module.steps_done - self.progress.done:
            self.progress.update(steps, f"loss {module.losses[-1]:.4g}")

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Remove the bar."""
        self.progress.close()

    def on_exception(
        self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Remove the bar."""
        self.progress.close()
