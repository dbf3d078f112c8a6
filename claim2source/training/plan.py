"""Plan the batches of a run within the limits of Lightning's trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytorch_lightning as pl

from claim2source.core.errors import ConfigError
from claim2source.training.batches import BatchSampler
from claim2source.training.config import BatchesConfig, RetrieverRecipe, TrainingRecipe
from claim2source.training.data import TrainingPairs
from claim2source.training.session import Session
from claim2source.training.splits import TrainingData

if TYPE_CHECKING:
    from claim2source.training.reranker_data import RerankerPairs


def check_limits(trainer: pl.Trainer, batch_size: int, data: TrainingData) -> None:
    """Raise `ConfigError`, before mining, for limits that allow no step."""
    if trainer.max_steps == 0:
        raise ConfigError("trainer.max_steps", 0, "1 or more, or leave it out")
    pairs = sum(len(claim.golds) for claim in data.train.claims) * data.settings.repeat
    # Mining may leave pairs out, but adds none.
    _count_batches(trainer, max(1, -(-pairs // batch_size)))


def _count_batches(trainer: pl.Trainer, total: int) -> int:
    """Count the batches of an epoch, out of `total`. Raises `ConfigError` for none."""
    limit = trainer.limit_train_batches
    count = int(limit * total) if isinstance(limit, float) else int(limit or 0)
    if count == 0:
        key = "overfit_batches" if vars(trainer)["overfit_batches"] else "limit_train_batches"
        raise ConfigError(f"trainer.{key}", limit, f"at least one of {total} batches per epoch")
    return count


def plan_batches(
    pairs: TrainingPairs | RerankerPairs,
    recipe: TrainingRecipe,
    session: Session,
    trainer: pl.Trainer,
) -> tuple[BatchSampler, int]:
    """Deal the pairs to the batches of all epochs; count the optimizer steps.

    Epochs and training end at the trainer's limits.
    """
    overfits = bool(vars(trainer)["overfit_batches"])
    optimisation, batches, gather, remine_every = recipe.optimisation, BatchesConfig(), False, 0
    if isinstance(recipe, RetrieverRecipe):
        train, batches = recipe.optimisation, recipe.batches
        gather, remine_every = train.gather, train.remine_every
    sampler = BatchSampler(
        pairs.groups(),
        optimisation.batch_size,
        epochs=optimisation.epochs,
        accumulation=optimisation.accumulation,
        seed=optimisation.seed,
        rank=session.world.rank,
        world_size=session.world.size,
        gather=gather,
        config=batches,
        languages=pairs.languages,
        repeat=session.run.config.data.repeat,
        remine_every=remine_every,
        fixed=overfits,
    )
    sampler.limit = _count_batches(trainer, sampler.batches)
    steps = sampler.optimizer_steps
    return sampler, steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)
