"""Make Lightning's trainer for a run, with its callbacks, and train from its last state."""

# Callbacks take our own modules; Lightning passes any module.
# mypy: disable-error-code="override"

from __future__ import annotations

import gc
import logging
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.loggers.logger import DummyLogger

from claim2source.core.errors import ConfigError
from claim2source.core.machine import peak_memory
from claim2source.core.progress import Progress
from claim2source.core.terminal import say
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.config import TrainingRecipe
from claim2source.training.distributed import Sharded, check_same_world, chosen_strategy
from claim2source.training.keep_state import KeepState, StateFile
from claim2source.training.lightning_parts import listed
from claim2source.training.module import TrainingModule
from claim2source.training.monitors import LOSS, NOT_LOGGED, check_callbacks, logged_names
from claim2source.training.on_val import EvaluateOnVal
from claim2source.training.plan import check_limits
from claim2source.training.resume import skipped_steps
from claim2source.training.session import Session
from claim2source.training.trainer import trainer_arguments

log = logging.getLogger(__name__)


class StepLog(pl.Callback):
    """Log losses, claims and tokens per second and memory of every optimizer step.

    Lightning gets the same numbers, so that other callbacks can monitor them. The first process
    shows the steps of all epochs on stderr; a resumed run continues the count.
    """

    def __init__(self) -> None:
        self.progress = Progress(None, 0)

    def on_train_start(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if trainer.is_global_zero:
            steps = module.optimizer_steps, module.steps_done
            self.progress = Progress("training", *steps, quiet=0)

    def on_train_batch_end(self, trainer: pl.Trainer, module: TrainingModule, *_: Any) -> None:
        if not module.window.closed:
            return
        window, world = module.window, trainer.world_size
        seconds = max(time.perf_counter() - window.started, 1e-9)
        rates = {
            "learning_rate": window.rate,
            "gradient_norm": window.norm,
            "skipped_steps": skipped_steps(module.losses),
            "claims_per_second": world * window.claims / seconds,
            "real_tokens_per_second": world * window.real / seconds,
            "padded_tokens_per_second": world * window.padded / seconds,
            "peak_memory_mib": peak_memory() / 2**20,
        }
        terms = {
            name if name in module.measures else f"{LOSS}/{name}": value
            for name, value in window.means.items()
            if name != LOSS
        }
        values = {LOSS: window.means[LOSS], **terms, **rates}
        # By our own count of steps, which a resumed run continues.
        for logger in trainer.loggers:
            logger.log_metrics(values, step=module.steps_done)
        module.log_dict({name: float(value) for name, value in values.items()}, logger=False)
        self.progress.update(1, f"loss {module.losses[-1]:.4g}")

    def on_train_end(self, *_: Any) -> None:
        self.progress.close()

    def on_exception(self, *_: Any) -> None:
        self.progress.close()


def lightning_trainer(
    recipe: TrainingRecipe, evaluation: EvaluateOnVal, device: torch.device
) -> pl.Trainer:
    """Make Lightning's trainer, with the evaluation before all other callbacks.

    Raises `ConfigError` for settings that Lightning or the run refuses.
    """
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    # Chunks are moved to the device one by one, in the step.
    warnings.filterwarnings("ignore", message=".*overridden `transfer_batch_to_device`.*")
    warnings.filterwarnings("ignore", message="You requested to overfit.*shuffling.*")
    # Every process logs the scores that the first one computed.
    warnings.filterwarnings("ignore", message=r".*self\.log\('val/.*sync_dist=True")
    # The learning rate advances even if the first step is skipped.
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
    session, optimisation, world = evaluation.session, recipe.optimisation, evaluation.world
    # Lightning calls the last one last, after those of the config.
    callbacks = [evaluation, StepLog(), KeepState(evaluation, optimisation.save_every)]
    ours: dict[str, Any] = {
        "max_epochs": optimisation.epochs,
        "accelerator": "gpu" if device.type == "cuda" else "cpu",
        "devices": world.local_size,
        "num_nodes": world.size // world.local_size,
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
    arguments = {"enable_model_summary": False, **trainer_arguments(recipe.trainer), **ours}
    if evaluation.session.has_own_callbacks:
        check_callbacks(listed(arguments.get("callbacks")), logged_names(recipe, evaluation.data))
    for name, part in (("callbacks", callbacks), ("plugins", [StateFile()])):
        arguments[name] = [*part, *listed(arguments.get(name))]
    arguments["strategy"] = strategy = chosen_strategy(arguments.get("strategy"), world)
    if isinstance(strategy, Sharded) and (allowed := recipe.unsharded):
        raise ConfigError("trainer.strategy", "fsdp2", allowed)
    try:
        trainer = pl.Trainer(**arguments)
    except (ImportError, MisconfigurationException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError("trainer", "these arguments", f"those of Lightning: {reason}") from None
    check_same_world(world, trainer.world_size)
    check_limits(trainer, optimisation.batch_size * world.size, evaluation.data)
    return trainer


def fit(
    session: Session,
    trainer: pl.Trainer,
    module: TrainingModule,
    sampler: BatchSampler,
    summary: Sequence[str],
) -> None:
    """Train all remaining epochs; score an epoch that was trained but not scored."""
    run, first, state = session.run, session.world.is_first, session.state
    batches_done = 0 if state is None else state.batches_done
    if first:
        resumed = [f"resuming after batch {batches_done}"] if batches_done else []
        say("\n".join([*summary, *resumed]))
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
    else:
        # Lightning's callbacks that log refuse to run without a logger.
        trainer.loggers = [DummyLogger()]
    module.model.train()
    with session.stop.after_step():
        loader = BatchLoader(sampler, module.collate)
        path = None if state is None else run.state
        _train(trainer, module, loader, path)
    if module.epochs_done < sampler.epochs and first:
        log.warning("epoch %d was the last, of %d planned", module.epochs_done, sampler.epochs)


def _train(
    trainer: pl.Trainer, module: TrainingModule, loader: BatchLoader, state: Path | None
) -> None:
    """Train in Lightning's loop. Raises `ConfigError` if one of the config's callbacks refuses."""
    try:
        trainer.fit(module, train_dataloaders=loader, ckpt_path=state, weights_only=True)
    except MisconfigurationException as error:
        reason = " ".join(str(error).split())
        raise ConfigError("trainer", "these arguments", f"those of Lightning: {reason}") from None
    except RuntimeError as error:
        # A name that a callback of the user might have logged.
        if not str(error).startswith(NOT_LOGGED):
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(
            "trainer.callbacks", "EarlyStopping", f"a logged name: {reason}"
        ) from None


def free_device(model: torch.nn.Module) -> None:
    """Move a trained model to the CPU, and free the GPU's memory."""
    model.to(torch.device("cpu"))
    gc.collect()
    torch.cuda.empty_cache()
