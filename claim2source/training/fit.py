"""Make Lightning's trainer for a run, and train with it, from where the run was stopped."""

from __future__ import annotations

import copy
import gc
import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError
from claim2source.core.provenance import git_state, versions
from claim2source.core.terminal import say
from claim2source.models import DataRecord, Encoder
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.callbacks import (
    EvaluateOnVal,
    GatherWeights,
    KeepState,
    StateFile,
    StepLog,
)
from claim2source.training.config import BatchesConfig, StepsConfig, TrainingRecipe
from claim2source.training.data import TrainingData, TrainingPairs
from claim2source.training.distributed import Sharded, World, check_same_world, chosen_strategy
from claim2source.training.module import TrainingModule
from claim2source.training.resume import random_state
from claim2source.training.session import Session
from claim2source.training.trainer import trainer_arguments

if TYPE_CHECKING:
    from claim2source.training.reranker_data import RerankerPairs

log = logging.getLogger(__name__)


def provenance(recipe: TrainingRecipe, data: TrainingData, session: Session) -> dict[str, Any]:
    """Record a training's data and its held-out claims, settings and versions for a manifest."""
    settings, languages = data.settings, session.run.config.languages
    record = DataRecord(
        dataset=settings.dataset,
        train_split=settings.train_split,
        val_share=settings.val_share,
        val_seed=settings.val_seed,
        languages=None if languages is None else tuple(languages),
        train_sha256=data.train.fingerprint,
        val_sha256=data.val.fingerprint,
        mined_sha256=session.run.mined_sha256,
        val_seen_share=settings.val_seen_share,
        seen_share_expected=data.selection.seen_share,
    )
    return {
        "data": record,
        "config": as_plain(session.run.config_with(recipe)),
        "git": git_state(),
        "versions": versions(),
    }


def lightning_trainer(
    recipe: TrainingRecipe, evaluation: EvaluateOnVal, device: torch.device
) -> pl.Trainer:
    """Make Lightning's trainer, with the evaluation before all other callbacks.

    Raises `ConfigError` for settings that Lightning, or the run, refuses.
    """
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    # Chunks are moved one after the other, in the step.
    warnings.filterwarnings("ignore", message=".*overridden `transfer_batch_to_device`.*")
    warnings.filterwarnings("ignore", message="You requested to overfit.*shuffling.*")
    # Every process logs the scores that the first one computed.
    warnings.filterwarnings("ignore", message=r".*self\.log\('val/.*sync_dist=True")
    # The rate goes on where the first step is skipped.
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
    session, optimisation, world = evaluation.session, recipe.optimisation, evaluation.world
    # Lightning calls the last one last, after those of the config.
    callbacks: list[pl.Callback] = [
        evaluation,
        StepLog(),
        KeepState(evaluation, optimisation.save_every),
    ]
    ours: dict[str, Any] = {
        "max_epochs": optimisation.epochs,
        "accelerator": "gpu" if device.type == "cuda" else "cpu",
        "devices": world.local_size,
        "num_nodes": world.nodes,
        "precision": "bf16-mixed" if optimisation.precision == "bf16" else "32-true",
        "accumulate_grad_batches": optimisation.accumulation,
        "gradient_clip_val": optimisation.max_grad_norm or None,
        "logger": False,
        "default_root_dir": session.run.path,
        "enable_progress_bar": False,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
    }
    arguments: dict[str, Any] = {"enable_model_summary": False}
    arguments |= trainer_arguments(recipe.trainer) | ours
    parts: dict[str, list[Any]] = {"callbacks": [*callbacks], "plugins": [StateFile()]}
    for name, part in parts.items():
        extra = arguments.get(name) or []
        arguments[name] = part + (extra if isinstance(extra, list) else [extra])
    arguments["strategy"] = strategy = chosen_strategy(arguments.get("strategy"), world)
    if isinstance(strategy, Sharded) and (allowed := recipe.unsharded):
        raise ConfigError("trainer.strategy", "fsdp2", allowed)
    try:
        trainer = pl.Trainer(**arguments)
    except (MisconfigurationException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError("trainer", "these arguments", f"those of Lightning: {reason}") from None
    check_same_world(world, trainer.world_size)
    return trainer


def fit(
    session: Session,
    trainer: pl.Trainer,
    module: TrainingModule,
    sampler: BatchSampler,
    summary: Sequence[str],
) -> None:
    """Train all remaining epochs, and score one that was left open."""
    run, first, state = session.run, session.world.is_first, session.state
    (keep_state,) = (callback for callback in trainer.callbacks if isinstance(callback, KeepState))  # type: ignore[attr-defined]
    # Dropout is seeded by process.
    torch.manual_seed(module.config.seed + session.world.rank)
    keep_state.random = random_state()
    batches_done = 0 if state is None else state.batches_done
    if first:
        say(
            "\n".join(
                [*summary, *([f"resuming after batch {batches_done}"] if batches_done else [])]
            )
        )
    if state is not None:
        first_epoch = -(-batches_done // sampler.batches)
        run.check_history(first_epoch - (state.epoch_open or batches_done % sampler.batches > 0))
        if not state.epoch_open and (
            batches_done >= sampler.batches * sampler.epochs or state.ended
        ):
            return
    if first:
        if state is None:
            # Epoch 0 was scored before there were loggers.
            session.logs.scores(run.file.history[0], 0)
        trainer.loggers = [session.logs]
    module.model.train()
    with session.stop.after_step():
        resumed = None if state is None else run.state
        loader = BatchLoader(sampler, module.collate)
        trainer.fit(module, train_dataloaders=loader, ckpt_path=resumed, weights_only=True)
        # Where it was the last epoch, Lightning trained nothing.
        keep_state.close_epoch(trainer)
        trainer.strategy.checkpoint_io.teardown()
    if module.epochs_done < sampler.epochs and first:
        log.warning("epoch %d was the last, of %d planned", module.epochs_done, sampler.epochs)


def free_device(model: torch.nn.Module) -> None:
    """Move a trained model to the CPU, and give the GPU's memory back."""
    model.to(torch.device("cpu"))
    gc.collect()
    torch.cuda.empty_cache()


def trained_encoder(trainer: pl.Trainer, encoder: Encoder) -> Encoder:
    """Return the encoder to train: where weights are sharded, a copy of it.

    What is sharded cannot be scored and saved: that is done with the whole model.
    """
    if not isinstance(trainer.strategy, Sharded):
        return encoder
    trained = copy.copy(encoder)
    trained.model = copy.deepcopy(encoder.model)
    encoder.model.to("cpu")  # type: ignore[arg-type]
    trainer.callbacks.insert(0, GatherWeights(encoder))  # type: ignore[attr-defined]
    return trained


def plan_batches(
    pairs: TrainingPairs | RerankerPairs,
    optimisation: StepsConfig,
    world: World,
    trainer: pl.Trainer,
    *,
    repeat: int = 1,
    gather: bool = False,
    batches: BatchesConfig | None = None,
    remine_every: int = 0,
) -> tuple[BatchSampler, int]:
    """Deal the pairs to the batches of all epochs; count the optimizer steps.

    Epochs and the training end where the trainer's limits do.
    """
    overfits = bool(vars(trainer)["overfit_batches"])
    sampler = BatchSampler(
        pairs.groups(),
        optimisation.batch_size,
        epochs=optimisation.epochs,
        accumulation=optimisation.accumulation,
        seed=optimisation.seed,
        rank=world.rank,
        world_size=world.size,
        gather=gather,
        config=batches,
        languages=pairs.languages,
        repeat=repeat,
        remine_every=remine_every,
        fixed=overfits,
    )
    limit, total = trainer.limit_train_batches, sampler.batches
    count = int(limit * total) if isinstance(limit, float) else int(limit or 0)
    if count == 0:
        key = "overfit_batches" if overfits else "limit_train_batches"
        raise ConfigError(f"trainer.{key}", limit, f"at least one of {total} batches an epoch")
    sampler.limit_batches(count)
    steps = sampler.optimizer_steps
    return sampler, steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)
