"""Write a checkpoint at every epoch's end, and delete those that cannot be chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint

from claim2source.training.distributed import World
from claim2source.training.run_folder import RunFolder
from claim2source.training.steps import TrainingModule


class KeepCheckpoints(pl.Callback):
    """Write every epoch's model to the run's folder with `save`."""

    def __init__(self, run: RunFolder, save: Callable[[Path, int], None], world: World) -> None:
        self.run, self.save, self.world = run, save, world

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Write the checkpoint."""
        assert isinstance(module, TrainingModule)
        epoch = module.epochs_done
        if not self.world.is_first:
            return
        with module.stop.after_step(waits=False):
            self.save(self.run.checkpoint(epoch), epoch)


class DropCheckpoints(Checkpoint):
    """Delete checkpoints that will not be chosen, with `keep: best`.

    Lightning calls callbacks of this kind last, in their order: after the state was saved, since
    an epoch that is repeated may get another score on a GPU. `chosen` gives the epoch that would
    be chosen now; `saved` waits until the state is written.
    """

    def __init__(
        self,
        run: RunFolder,
        keep: str,
        chosen: Callable[[], int],
        saved: Callable[[], None],
        world: World,
    ) -> None:
        self.run, self.keep, self.chosen, self.saved = run, keep, chosen, saved
        self.world = world

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Delete them."""
        if self.world.is_first and self.keep != "all":
            self.saved()
            self.run.prune(self.keep, self.chosen())
