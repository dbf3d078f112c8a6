"""Give the whole model, which is scored and saved, the weights of the sharded one."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl

from claim2source.models import Encoder
from claim2source.training.steps import TrainingModule
from claim2source.training.strategies import moved_weights


class GatherWeights(pl.Callback):
    """Keep a whole model beside the sharded one that is trained; on the CPU while it is.

    Processes that encode by themselves cannot use shards: every pass through these is one of all
    processes together.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._current = False

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Gather for what is done before an epoch, such as mining; not before the first."""
        if trainer.current_epoch:
            self._gather(module)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Gather for what is done after an epoch."""
        self._current = False
        self._gather(module)

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, *arguments: Any
    ) -> None:
        """Leave the device to the training."""
        if self._current:
            self.encoder.model.to("cpu")  # type: ignore[arg-type]
            self._current = False

    def _gather(self, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        if self._current:
            return
        weights = moved_weights(module.model, everywhere=True)
        self.encoder.model.load_state_dict(weights, strict=False)
        self.encoder.model.to(module.device)  # type: ignore[arg-type]
        self._current = True
