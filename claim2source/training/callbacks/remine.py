"""Mine hard negatives again with the model as it is."""

from __future__ import annotations

import pytorch_lightning as pl

from claim2source.core.terminal import say
from claim2source.models import Encoder
from claim2source.training.distributed import World
from claim2source.training.module import RetrieverModule
from claim2source.training.negatives import RunNegatives


class Remine(pl.Callback):
    """Mine again before an epoch, every `optimisation.remine_every` epochs (ANCE)."""

    def __init__(self, negatives: RunNegatives, encoder: Encoder, world: World) -> None:
        self.negatives, self.encoder, self.world = negatives, encoder, world

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Mine where it is due after the epoch before, and train on what was mined."""
        assert isinstance(module, RetrieverModule)
        if not self.negatives.due(trainer.current_epoch):
            return
        with module.stop.after_step(waits=False):
            module.pairs.use(self.negatives.again(self.encoder, trainer.current_epoch))
        if self.world.is_first:
            say("\n".join(self.negatives.sentences))
