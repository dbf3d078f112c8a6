"""Give Lightning the training pairs of a run, in batches that a stopped run goes on with."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl

from claim2source.core.errors import ConfigError
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.config import FinetuneConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.distributed import World
from claim2source.training.steps import TrainingModule


class PlannedData(pl.LightningDataModule):
    """Give the batches of a sampler, as `limits` of a trainer allow.

    Val has no batches: it is ranked as a whole (`callbacks/evaluate.py`).
    """

    def __init__(self, sampler: BatchSampler, trainer: pl.Trainer) -> None:
        super().__init__()
        self.sampler, overfit = sampler, is_overfitting(trainer)
        limit, whole = trainer.limit_train_batches, sampler.batches
        most = int(limit * whole) if isinstance(limit, float) else int(limit or 0)
        if most == 0:
            key = "overfit_batches" if overfit else "limit_train_batches"
            raise ConfigError(f"trainer.{key}", limit, f"at least one of {whole} batches an epoch")
        sampler.cut(most)
        self.optimizer_steps = sampler.optimizer_steps
        if trainer.max_steps >= 0:
            self.optimizer_steps = min(self.optimizer_steps, trainer.max_steps)

    def train_dataloader(self) -> BatchLoader[Any]:
        """Give the batches, epoch after epoch, as the trainer's module makes them."""
        assert self.trainer is not None
        module = self.trainer.lightning_module
        assert isinstance(module, TrainingModule)
        return BatchLoader(self.sampler, module.ready)


def is_overfitting(trainer: pl.Trainer) -> bool:
    """Tell whether a trainer repeats its first batches."""
    return bool(vars(trainer)["overfit_batches"])


class ClaimSourceData(PlannedData):
    """Deal the retriever's training pairs to the batches of all epochs."""

    def __init__(
        self,
        pairs: TrainingPairs,
        config: FinetuneConfig,
        world: World,
        trainer: pl.Trainer,
    ) -> None:
        optimisation = config.optimisation
        self.pairs = pairs
        sampler = BatchSampler(
            pairs.groups(),
            optimisation.batch_size,
            epochs=optimisation.epochs,
            accumulation=optimisation.accumulation,
            seed=optimisation.seed,
            rank=world.rank,
            world_size=world.size,
            gather=optimisation.gather,
            config=config.batches,
            languages=[pairs.languages[row.claim] for row in pairs.rows],
            lengths=pairs.lengths() if config.batches.order == "length" else None,
            repeat=config.data.repeat,
            remine_every=optimisation.remine_every,
            fixed=is_overfitting(trainer),
        )
        super().__init__(sampler, trainer)
