"""Score the model on val at every epoch's end."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import pytorch_lightning as pl

from claim2source.core.report import Epoch
from claim2source.io.store import Store
from claim2source.models import Encoder, Identity, Manifest
from claim2source.models.reranker_manifest import RerankerManifest
from claim2source.text import Rendering
from claim2source.training.choose import ValScores, score_on_val
from claim2source.training.distributed import World, gather_values
from claim2source.training.loggers import RunLog
from claim2source.training.run_folder import RunFolder
from claim2source.training.sharing import encode_shares
from claim2source.training.splits import TrainingData
from claim2source.training.steps import TrainingModule


class EvaluateEpoch(pl.Callback):
    """Score the checkpoint that an epoch has just written, by language.

    The scores go to the run's history, to the checkpoint's manifest, to the logs, and to Lightning
    as `val/en/mrr@5`, `val/macro/mrr@5` and so on, for every metric: an EarlyStopping can monitor
    them.
    """

    manifest: type[Manifest] | type[RerankerManifest] = Manifest

    def __init__(self, run: RunFolder, world: World, logs: Callable[[], RunLog]) -> None:
        self.run, self.world, self.logs = run, world, logs

    @abstractmethod
    def share(self, epoch: int) -> None:
        """Do this process's share of the work on val."""

    @abstractmethod
    def scored(self) -> ValScores:
        """Score the model as it is, in the first process."""

    def forget(self) -> None:
        """Drop what was kept for the scores: the weights will move."""

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Score the epoch; tell all processes."""
        assert isinstance(module, TrainingModule)
        with module.stop.after_step(waits=False):
            self.share(module.epochs_done)
            entry = self._score(module) if self.world.is_first else None
            found = gather_values(entry, self.world)[0]
        self.forget()
        # An epoch that was left open before the last one's end is scored outside of a training.
        if found is not None and trainer.training:
            for lang, row in found.val.items():
                values = {f"val/{lang}/{metric}": float(value) for metric, value in row.items()}
                # The logs have them already, at the step.
                module.log_dict(values, logger=False)

    def _score(self, module: TrainingModule) -> Epoch:
        epoch = module.epochs_done
        losses = module.losses[module.steps_before(epoch) :]
        taken = [loss for loss in losses if not math.isnan(loss)]
        mean = sum(taken) / len(taken) if taken else None
        said = f"loss {taken[0]:.4g} to {taken[-1]:.4g}" if taken else "no loss"
        skipped = len(losses) - len(taken)
        more = f"; {skipped} of {len(losses)} steps skipped (not finite)" if skipped else ""
        folder = self.run.checkpoint(epoch)
        manifest = self.manifest.read(folder)
        scores = self.scored()
        replace(manifest, scores=scores.by_split()).write(folder)
        self.run.record(scores.epoch(epoch, mean))
        self.logs().scores(self.run.history[-1], module.steps_done)
        print(f"epoch {epoch}: {said}, val MRR@5  {scores}{more}", flush=True)
        return self.run.history[-1]


class EvaluateOnVal(EvaluateEpoch):
    """Score a retriever; `untrained` identifies the base's weights."""

    def __init__(
        self,
        run: RunFolder,
        encoder: Encoder,
        data: TrainingData,
        rendering: Rendering,
        store: Store,
        world: World,
        logs: Callable[[], RunLog],
        *,
        untrained: Identity,
    ) -> None:
        super().__init__(run, world, logs)
        self.encoder, self.data, self.rendering = encoder, data, rendering
        self.store, self.untrained = store, untrained

    def share(self, epoch: int) -> None:
        """Name the weights after an epoch, and encode this process's share of val with them."""
        identity = None
        if self.world.is_first:
            manifest = Manifest.read(self.run.checkpoint(epoch))
            identity = manifest.weights.identity(self.untrained)
        self.encoder.weights = gather_values(identity, self.world)[0]
        val = self.data.val
        encode_shares(self.encoder, self.rendering, val.claims, val.sources, self.store, self.world)

    def forget(self) -> None:
        """Drop the name of the weights."""
        self.encoder.weights = None

    def scored(self, repeats: int = 0) -> ValScores:
        """Score the model as it is; `repeats` bootstrap draws give intervals, 0 none."""
        return score_on_val(self.encoder, self.data, self.rendering, self.store, repeats)
