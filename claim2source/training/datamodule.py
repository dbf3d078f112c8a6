"""Give Lightning the training pairs of a run, in batches that a stopped run goes on with."""

from __future__ import annotations

import pytorch_lightning as pl

from claim2source.core.errors import ConfigError
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.config import FinetuneConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.distributed import World
from claim2source.training.module import RetrieverModule
from claim2source.training.ready import ReadyBatch


class ClaimSourceData(pl.LightningDataModule):
    """Deal training pairs to the batches of all epochs, as `limits` of a trainer allow.

    Val has no batches: it is ranked as a whole (`callbacks/evaluate.py`). `epochs` may be fewer
    than the learning rate is planned for.
    """

    def __init__(
        self,
        pairs: TrainingPairs,
        config: FinetuneConfig,
        world: World,
        trainer: pl.Trainer,
        epochs: int | None = None,
    ) -> None:
        super().__init__()
        optimisation, overfit = config.optimisation, bool(vars(trainer)["overfit_batches"])
        self.pairs = pairs
        self.sampler = BatchSampler(
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
            fixed=overfit,
        )
        limit, whole = trainer.limit_train_batches, self.sampler.batches
        most = int(limit * whole) if isinstance(limit, float) else int(limit or 0)
        if most == 0:
            key = "overfit_batches" if overfit else "limit_train_batches"
            raise ConfigError(f"trainer.{key}", limit, f"at least one of {whole} batches an epoch")
        self.sampler.cut(most)
        self.optimizer_steps = self.sampler.optimizer_steps
        if trainer.max_steps >= 0:
            self.optimizer_steps = min(self.optimizer_steps, trainer.max_steps)
        self.sampler.epochs = epochs or self.sampler.epochs

    def train_dataloader(self) -> BatchLoader[ReadyBatch]:
        """Give the batches, epoch after epoch, as the trainer's module makes them."""
        assert self.trainer is not None
        module = self.trainer.lightning_module
        assert isinstance(module, RetrieverModule)
        return BatchLoader(self.sampler, module.ready)
