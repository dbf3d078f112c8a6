"""Share what both trainings do: their processes and folder, the saved state, Lightning's fit."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from signal import SIGTERM
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import Strategy

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, Stopped, UserError, said_once
from claim2source.core.provenance import git_state, versions
from claim2source.core.terminal import say
from claim2source.core.threads import use_cores
from claim2source.io.store import Store
from claim2source.io.wandb import require_tracking, wandb_mode
from claim2source.models import DataRecord
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.callbacks import (
    DropCheckpoints,
    KeepState,
    StateFile,
    Throughput,
    TrainingProgress,
    WandbTables,
)
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.data import TrainingData, TrainingPairs
from claim2source.training.distributed import (
    Sharded,
    World,
    check_same_world,
    chosen_strategy,
    gather_values,
    joined_world,
    launched_world,
    together,
)
from claim2source.training.loggers import RunLog
from claim2source.training.module import TrainingModule
from claim2source.training.negatives import RunNegatives
from claim2source.training.resume import StopSignals, TrainingState, random_state
from claim2source.training.run_folder import RunFolder, previous_state
from claim2source.training.trainer import make_trainer, trainer_arguments

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """Hold a training's processes, its folder and its signals, before anything is loaded."""

    world: World
    run: RunFolder
    stop: StopSignals
    store: Store

    def together(self) -> AbstractContextManager[None]:
        """Run the body on every process; what the user must correct ends them all."""
        return together(self.world)

    def begin(self, config: RunConfig) -> None:
        """Make the run's folder, once all is known to be right."""
        with self.together():
            if self.world.is_first:
                self.run.begin(config)

    @property
    def has_history(self) -> bool:
        """Tell all processes whether the model before training is scored."""
        return gather_values(bool(self.run.history), self.world)[0]


@contextmanager
def open_session(config: RunConfig) -> Iterator[Session]:
    """Join the launch's processes and find the run's folder; nothing is written.

    A signal ends the body with `Stopped`, which says how the run goes on.
    """
    with said_once():
        world = launched_world(device=config.device)
        use_cores(world.local_size, config.threads)
        require_tracking(wandb_mode(config.wandb.mode), "--wandb.mode")
    if not world.is_first:
        # What a lenient loading leaves out is said once.
        logging.getLogger("claim2source.datasets").setLevel(logging.ERROR)
    with joined_world(world, config.device), StopSignals().installed() as stop:
        with together(world):
            run = RunFolder.find(config, lock=world.is_first)
        try:
            yield Session(world, run, stop, Store(config.store))
        except (Stopped, RuntimeError) as error:
            # Where one process stops first, the others' exchange with it fails.
            if stop.received is None and not isinstance(error, Stopped):
                raise
            signal = error.signal if isinstance(error, Stopped) else stop.received
            raise Stopped(run.stopped_text if world.is_first else "", signal or SIGTERM) from None
        finally:
            run.release()


@dataclass(frozen=True)
class Frame:
    """Hold what both trainings go on from: the session, data, state and Lightning's settings.

    `begun_with` are the hashes of the inputs outside the run's folder that determine its losses
    and its choice; `state` is what is resumed from, none where the run begins.
    """

    session: Session
    config: RunConfig
    data: TrainingData
    negatives: RunNegatives
    begun_with: Mapping[str, str | None]
    state: TrainingState | None
    logs: RunLog
    arguments: dict[str, Any]
    strategy: Strategy | str
    file: StateFile

    @property
    def shards(self) -> bool:
        """Tell whether the weights are sharded over the processes."""
        return isinstance(self.strategy, Sharded)


def make_frame(
    session: Session,
    config: RunConfig,
    data: TrainingData,
    begun_with: Mapping[str, str | None],
) -> Frame:
    """Read the saved state, and make Lightning's settings. Raises `UserError` for wrong ones."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    run, world = session.run, session.world
    state = saved_state(session, config, begun_with) if config.resume else None
    arguments = trainer_arguments(config.trainer)
    strategy = chosen_strategy(arguments.pop("strategy", None), world)
    if isinstance(strategy, Sharded) and (allowed := config.unsharded):
        raise ConfigError("trainer.strategy", "fsdp2", allowed)
    # Built once more with the run's callbacks: what Lightning refuses is said here.
    make_trainer(arguments | {"logger": False, "enable_progress_bar": False})
    logs = RunLog(config, run.path, 0 if state is None else state.steps_done)
    negatives = RunNegatives(data.train, run, world)
    return Frame(
        session,
        config,
        data,
        negatives,
        begun_with,
        state,
        logs,
        arguments,
        strategy,
        StateFile(),
    )


def saved_state(
    session: Session, config: RunConfig, begun_with: Mapping[str, str | None]
) -> TrainingState | None:
    """Load the state to resume from; None where nothing was saved.

    Raises `UserError` where it is the state of other data, another base or another world.
    """
    run, world = session.run, session.world
    path = run.state
    if not run.resumes or not (path.is_file() or previous_state(path).is_file()):
        if world.is_first:
            log.warning("%s: nothing was saved yet; the run begins again", run.path)
        return None
    state, damage = TrainingState.newest(path)
    is_whole = config.optimisation.epochs in {entry.epoch for entry in run.history}
    if state.lightning is None and (state.epoch_open or not is_whole):
        raise UserError(
            f"{path}: an earlier version stopped in mid-training, and this one cannot go on "
            "from its state; begin again with --overwrite"
        )
    run.damaged, run.saved_steps = damage is not None, state.steps_done
    if damage is not None and world.is_first:
        log.warning("%s; going on from the state before it, step %d", damage, state.steps_done)
    if state.world_size != world.size:
        raise UserError(
            f"the run was begun with {state.world_size} processes, not {world.size}: "
            "batches would differ"
        )
    for what, sha256 in begun_with.items():
        if state.begun_with[what] != sha256:
            raise UserError(f"the {what} is not what the run was begun with")
    return state


def provenance(frame: Frame) -> dict[str, Any]:
    """Say in a manifest what was trained on and held out, with which settings and versions."""
    data, languages = frame.config.data, frame.config.languages
    record = DataRecord(
        dataset=data.dataset,
        train_split=data.train_split,
        val_share=data.val_share,
        val_seed=data.val_seed,
        languages=None if languages is None else tuple(languages),
        train_sha256=frame.data.train.fingerprint,
        val_sha256=frame.data.val.fingerprint,
        mined_sha256=frame.negatives.sha256,
        val_seen_share=frame.config.held_out_seen,
        seen_share_expected=frame.data.seen_share,
    )
    config = as_plain(frame.config)
    return {"data": record, "config": config, "git": git_state(), "versions": versions()}


def lightning_trainer(frame: Frame, device: torch.device, own: Sequence[pl.Callback]) -> pl.Trainer:
    """Make Lightning's trainer, with `own` callbacks before those that all trainings have."""
    config, world, run = frame.config, frame.session.world, frame.session.run
    optimisation = config.optimisation
    # Chunks are moved one after the other, in the step.
    warnings.filterwarnings("ignore", message=".*overridden `transfer_batch_to_device`.*")
    warnings.filterwarnings("ignore", message="You requested to overfit.*shuffling.*")
    # Every process logs the scores that the first one computed.
    warnings.filterwarnings("ignore", message=r".*self\.log\('val/.*sync_dist=True")
    # The rate goes on where the first step is skipped.
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
    callbacks: list[pl.Callback] = [*own, Throughput()]
    if world.is_first:
        callbacks.append(WandbTables(frame.negatives, optimisation.seed, frame.logs))
        callbacks.append(TrainingProgress())
    callbacks += frame.arguments.get("callbacks") or []
    callbacks.append(
        KeepState(run, world, frame.negatives, frame.begun_with, optimisation.save_every)
    )
    callbacks.append(DropCheckpoints(run, config, frame.data, frame.file, world))
    plugins = frame.arguments.get("plugins") or []
    ours: dict[str, Any] = {
        "max_epochs": optimisation.epochs,
        "accelerator": "gpu" if device.type == "cuda" else "cpu",
        "devices": world.local_size,
        "num_nodes": world.nodes,
        "strategy": frame.strategy,
        "precision": "bf16-mixed" if optimisation.precision == "bf16" else "32-true",
        "accumulate_grad_batches": optimisation.accumulation,
        "gradient_clip_val": optimisation.max_grad_norm or None,
        "logger": False,
        "callbacks": callbacks,
        "plugins": [*(plugins if isinstance(plugins, list) else [plugins]), frame.file],
        "default_root_dir": run.path,
        "enable_progress_bar": False,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
    }
    trainer = make_trainer({"enable_model_summary": False} | frame.arguments | ours)
    check_same_world(world, trainer.world_size)
    return trainer


def fit(
    frame: Frame,
    trainer: pl.Trainer,
    module: TrainingModule,
    sampler: BatchSampler,
    summary: Sequence[str],
) -> list[float]:
    """Train all remaining epochs, and score one that was left open; return every step's loss."""
    session, state = frame.session, frame.state
    run, first = session.run, session.world.is_first
    (keep,) = (one for one in trainer.callbacks if isinstance(one, KeepState))  # type: ignore[attr-defined]
    # Dropout is seeded by process.
    torch.manual_seed(frame.config.optimisation.seed + session.world.rank)
    keep.random = random_state()
    done = 0 if state is None else state.batches_done
    if first:
        say("\n".join([*summary, *([f"resuming after batch {done}"] if done else [])]))
    if state is not None:
        begun = -(-done // sampler.batches)
        run.check_history(begun - (state.epoch_open or done % sampler.batches > 0))
        if not state.epoch_open and (done >= sampler.batches * sampler.epochs or state.ended):
            return state.losses
    if first:
        if state is None:
            # Epoch 0 was scored before there were loggers.
            frame.logs.scores(run.history[0], 0)
        trainer.loggers = frame.logs.loggers
    module.model.train()
    loader: BatchLoader[Any] = BatchLoader(sampler, module.collate)
    with session.stop.after_step():
        resumed = None if state is None else run.state
        trainer.fit(module, train_dataloaders=loader, ckpt_path=resumed, weights_only=True)
        # Where it was the last epoch, Lightning trained nothing.
        keep.close_epoch(trainer)
        frame.file.teardown()
    ended, planned = module.epochs_done, frame.config.optimisation.epochs
    if ended < planned and first:
        log.warning("epoch %d was the last, of %d planned", ended, planned)
    return module.losses


def free_device(model: torch.nn.Module) -> None:
    """Move a trained model to the CPU, and give the GPU's memory back."""
    model.to(torch.device("cpu"))
    gc.collect()
    torch.cuda.empty_cache()


def limit_batches(sampler: BatchSampler, trainer: pl.Trainer) -> int:
    """End the epochs where a trainer's limits do; return the optimizer steps of the training."""
    limit, whole = trainer.limit_train_batches, sampler.batches
    most = int(limit * whole) if isinstance(limit, float) else int(limit or 0)
    if most == 0:
        key = "overfit_batches" if is_overfitting(trainer) else "limit_train_batches"
        raise ConfigError(f"trainer.{key}", limit, f"at least one of {whole} batches an epoch")
    sampler.cut(most)
    steps = sampler.optimizer_steps
    return steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)


def is_overfitting(trainer: pl.Trainer) -> bool:
    """Tell whether a trainer repeats its first batches."""
    return bool(vars(trainer)["overfit_batches"])


def plan_batches(
    pairs: TrainingPairs, config: FinetuneConfig, world: World, trainer: pl.Trainer
) -> tuple[BatchSampler, int]:
    """Deal the training pairs to the batches of all epochs; count the optimizer steps."""
    optimisation = config.optimisation
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
    return sampler, limit_batches(sampler, trainer)
