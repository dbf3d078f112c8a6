"""Mine hard negatives again with the model as it is."""

from __future__ import annotations

import pytorch_lightning as pl

from claim2source.core.terminal import say
from claim2source.models import Encoder, Identity, Manifest
from claim2source.training.distributed import World, gather_values
from claim2source.training.module import RetrieverModule
from claim2source.training.negatives import RunNegatives


class Remine(pl.Callback):
    """Mine again before an epoch, every `optimisation.remine_every` epochs (ANCE)."""

    def __init__(
        self, negatives: RunNegatives, encoder: Encoder, untrained: Identity, world: World
    ) -> None:
        self.negatives, self.encoder, self.world = negatives, encoder, world
        self.untrained = untrained

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Mine where it is due after the epoch before, and train on what was mined."""
        assert isinstance(module, RetrieverModule)
        if not self.negatives.due(trainer.current_epoch):
            return
        with module.stop.after_step(waits=False):
            self._name_weights(trainer.current_epoch)
            module.pairs.use(self.negatives.again(self.encoder, trainer.current_epoch))
        self.encoder.weights = None
        if self.world.is_first:
            say("\n".join(self.negatives.sentences))

    def _name_weights(self, epoch: int) -> None:
        """Name the weights as the epoch's checkpoint does, where several processes share them."""
        identity, folder = None, self.negatives.run.checkpoint(epoch)
        # One process needs no store.
        if self.world.is_first and self.world.size > 1:
            identity = Manifest.read(folder).weights.identity(self.untrained)
        self.encoder.weights = gather_values(identity, self.world)[0]
