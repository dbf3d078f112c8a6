"""Run a training: what the retriever's and the re-ranker's share, from the locks to the last state.

A training finds its folder, checks all it reads, scores the model before training, trains with
Lightning from where it was stopped, and ends in its own way: it chooses, and reports.
"""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from signal import SIGTERM
from typing import Any, Generic, TypeVar

import pytorch_lightning as pl
import torch

from claim2source.core.errors import Stopped, UserError, said_once
from claim2source.core.files import same_file
from claim2source.core.report import Report
from claim2source.core.terminal import say
from claim2source.core.threads import use_cores
from claim2source.io.store import Store
from claim2source.io.wandb import require_tracking, wandb_mode
from claim2source.mining import MinedRow
from claim2source.models import DataRecord
from claim2source.training.callbacks import (
    DropCheckpoints,
    KeepState,
    StateFile,
    Throughput,
    TrainingProgress,
    WandbTables,
)
from claim2source.training.config import RunConfig
from claim2source.training.data import TrainingData
from claim2source.training.distributed import (
    World,
    check_same_world,
    chosen_strategy,
    gather_values,
    joined_world,
    launched_world,
    together,
)
from claim2source.training.loggers import RunLog
from claim2source.training.module import PlannedData, TrainingModule
from claim2source.training.negatives import KeptNegatives
from claim2source.training.resume import StopSignals, TrainingState, previous_state, random_state
from claim2source.training.run_folder import RunFolder
from claim2source.training.trainer import make_trainer, trainer_arguments

log = logging.getLogger(__name__)

Config = TypeVar("Config", bound=RunConfig)
Data = TypeVar("Data", bound=TrainingData)


def run_training(
    config: Config,
    make: Callable[[Config, World, RunFolder, StopSignals], TrainingRun[Config, Any]],
    check: Callable[[Config], None],
) -> Report | None:
    """Train as the config says; return the report (None on later ranks).

    `check` raises what can be known before anything is loaded; `make` loads the data and the model,
    and writes nothing. Raises `UserError` for anything the user can correct.
    """
    with said_once():
        world = launched_world(device=config.device)
        use_cores(world.local_size, config.threads)
        require_tracking(wandb_mode(config.wandb.mode), "--wandb.mode")
        check(config)
    if not world.is_first:
        # What a lenient loading leaves out is said once.
        logging.getLogger("claim2source.datasets").setLevel(logging.ERROR)
    with joined_world(world, config.device), StopSignals().installed() as stop:
        run = together(world, lambda: RunFolder.find(config, lock=world.is_first))
        training = None
        try:
            settled = run.settled(config)
            # All that can be wrong is found before anything is made, moved or changed.
            training = together(world, lambda: make(settled, world, run, stop))
            together(world, lambda: run.begin(settled) if world.is_first else None)
            return training.go()
        except (Stopped, RuntimeError) as error:
            # Where one process stops first, the others' exchange with it fails.
            if stop.received is None and not isinstance(error, Stopped):
                raise
            told = _stopped_text(run, training) if world.is_first else ""
            signal = error.signal if isinstance(error, Stopped) else stop.received
            raise Stopped(told, signal or SIGTERM) from None
        finally:
            run.release()


def _listed(value: object) -> list[object]:
    """Give a value, a list of values or None as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _stopped_text(run: RunFolder, training: TrainingRun[Any, Any] | None) -> str:
    """Say where a run was stopped, and how it goes on."""
    if training is not None and training.saved_steps is not None:
        return f"stopped at step {training.saved_steps}; go on with --resume"
    if run.history:
        return "stopped before the first step was saved; go on with --resume"
    return "stopped before anything was scored; run it again"


class TrainingRun(ABC, Generic[Config, Data]):
    """Run one training on this process; nothing is written before `go`.

    A training loads its model in `__init__`, then calls `prepare`.
    """

    negatives: KeptNegatives

    def __init__(
        self, config: Config, world: World, data: Data, run: RunFolder, stop: StopSignals
    ) -> None:
        self.config, self.world, self.data, self.run = config, world, data, run
        self.stop = stop
        self.store = Store(config.store)
        self.losses: list[float] = []
        self.logs: RunLog | None = None
        self.fell_back = False

    def prepare(self, device: torch.device) -> None:
        """Read the saved state, and make what Lightning needs, for a model on a device."""
        config, world = self.config, self.world
        self.device = device
        self.state = self._saved_state()
        logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
        self.arguments = trainer_arguments(config.trainer)
        self.strategy = chosen_strategy(self.arguments.pop("strategy", None), world)
        self.file = StateFile()
        every = config.optimisation.save_every
        self.keep = KeepState(self.run, world, self.negatives, self.begun_with, every)

    @property
    def data_record(self) -> DataRecord:
        """Say in a manifest what was trained on, and what was held out."""
        data, languages = self.config.data, self.config.languages
        return DataRecord(
            dataset=data.dataset,
            train_split=data.train_split,
            val_share=data.val_share,
            val_seed=data.val_seed,
            languages=None if languages is None else tuple(languages),
            train_sha256=self.data.train.fingerprint,
            val_sha256=self.data.val.fingerprint,
            mined_sha256=self.negatives.sha256,
            val_seen_share=self.config.held_out_seen,
            seen_share_expected=self.data.seen_share,
        )

    # What a training does in its own way

    @cached_property
    @abstractmethod
    def begun_with(self) -> dict[str, str | None]:
        """Hash the inputs outside the run's folder that determine its losses and its choice."""

    @abstractmethod
    def score_base(self) -> None:
        """Write and score the checkpoint of epoch 0, the model before training.

        Every process calls it, the first one records the scores.
        """

    @abstractmethod
    def first_rows(self) -> list[MinedRow]:
        """Find what is trained on."""

    @abstractmethod
    def make_trainable(self, rows: list[MinedRow]) -> None:
        """Make the model trainable, and the training pairs of these rows."""

    @abstractmethod
    def parts(self, trainer: pl.Trainer) -> tuple[TrainingModule, PlannedData]:
        """Make the module and its batches."""

    @abstractmethod
    def summary(self, data: PlannedData) -> list[str]:
        """Say what is trained on, and what is left out."""

    @abstractmethod
    def own_callbacks(self) -> Sequence[pl.Callback]:
        """List the callbacks that save and score an epoch, in their order."""

    @abstractmethod
    def chosen_epoch(self) -> int:
        """Return the epoch that would be chosen now."""

    @abstractmethod
    def _end(self) -> Report | None:
        """Choose a checkpoint and report, once all is trained."""

    # What all do

    @property
    def saved_steps(self) -> int | None:
        """Return the steps of the last saved state."""
        found = self.keep.saved_steps
        return found if found is not None or self.state is None else self.state.steps_done

    def go(self) -> Report | None:
        """Run all steps in order."""
        first, state = self.world.is_first, self.state
        if first and self.fell_back:
            # The next save must keep this one, not the damaged one.
            same_file(previous_state(self.run.state), self.run.state)
        if not gather_values(bool(self.run.history), self.world)[0]:
            self.score_base()
        rows = self.first_rows() if state is None else self.negatives.restore(state.mined)
        self.make_trainable(rows)
        trainer = self._trainer()
        module, data = self.parts(trainer)
        torch.manual_seed(self.config.optimisation.seed + self.world.rank)
        self.keep.random = random_state()
        if first:
            lines = self.summary(data)
            if state is not None and state.batches_done:
                lines.append(f"resuming after batch {state.batches_done}")
            say("\n".join(lines))
        done = 0 if state is None else state.batches_done
        if state is not None:
            begun = -(-done // data.sampler.batches)
            self.run.check_history(begun - (state.epoch_open or done % data.sampler.batches > 0))
            self.losses = state.losses
        planned = data.sampler.batches * data.sampler.epochs
        if state is None or state.epoch_open or (done < planned and not state.ended):
            self._fit(trainer, module, data)
            self.losses = module.losses
        return self._end()

    def _saved_state(self) -> TrainingState | None:
        """Load the state to resume from; None where the run begins.

        Raises `UserError` where it is the state of other data, another base or another world.
        """
        if not self.config.resume:
            return None
        path = self.run.state
        if not self.run.resumes or not (path.is_file() or previous_state(path).is_file()):
            if self.world.is_first:
                log.warning("%s: nothing was saved yet; the run begins again", self.run.path)
            return None
        state, damage = TrainingState.newest(path)
        if state.lightning is None and not self._is_whole(state):
            raise UserError(
                f"{path}: an earlier version stopped in mid-training, and this one cannot go on "
                "from its state; begin again with --overwrite"
            )
        self.fell_back = damage is not None
        if damage is not None and self.world.is_first:
            log.warning("%s; going on from the state before it, step %d", damage, state.steps_done)
        if state.world_size != self.world.size:
            raise UserError(
                f"the run was begun with {state.world_size} processes, not {self.world.size}: "
                "batches would differ"
            )
        for what, sha256 in self.begun_with.items():
            if state.begun_with[what] != sha256:
                raise UserError(f"the {what} is not what the run was begun with")
        return state

    def _is_whole(self, state: TrainingState) -> bool:
        """Tell whether a state is that of a run whose every planned epoch is scored."""
        epochs = {entry.epoch for entry in self.run.history}
        return not state.epoch_open and self.config.optimisation.epochs in epochs

    # Training

    def callbacks(self) -> list[pl.Callback]:
        """List the run's callbacks in the order in which Lightning calls them."""
        config, world, run = self.config, self.world, self.run
        callbacks: list[pl.Callback] = [
            *self.own_callbacks(),
            Throughput(),
        ]
        if world.is_first:
            seed, train = config.optimisation.seed, self.data.train
            callbacks.append(WandbTables(self.negatives, train, seed, self.open_logs))
            callbacks.append(TrainingProgress())
        callbacks += self.arguments.get("callbacks") or []
        callbacks.append(self.keep)
        callbacks.append(
            DropCheckpoints(run, config.keep, self.chosen_epoch, self.file.wait, world)
        )
        return callbacks

    def _trainer(self) -> pl.Trainer:
        """Make Lightning's trainer of the config's settings."""
        on_gpu = self.device.type == "cuda"
        optimisation = self.config.optimisation
        # Chunks are moved one after the other, in the step.
        warnings.filterwarnings("ignore", message=".*overridden `transfer_batch_to_device`.*")
        warnings.filterwarnings("ignore", message="You requested to overfit.*shuffling.*")
        # Every process logs the scores that the first one computed.
        warnings.filterwarnings("ignore", message=r".*self\.log\('val/.*sync_dist=True")
        # The rate goes on where the first step is skipped.
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
        ours: dict[str, Any] = {
            "max_epochs": optimisation.epochs,
            "accelerator": "gpu" if on_gpu else "cpu",
            "devices": self.world.local_size,
            "num_nodes": self.world.nodes,
            "strategy": self.strategy,
            "precision": "bf16-mixed" if optimisation.precision == "bf16" else "32-true",
            "accumulate_grad_batches": optimisation.accumulation,
            "gradient_clip_val": optimisation.max_grad_norm or None,
            "logger": False,
            "callbacks": self.callbacks(),
            "plugins": [*_listed(self.arguments.get("plugins")), self.file],
            "default_root_dir": self.run.path,
            "enable_progress_bar": False,
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
        }
        trainer = make_trainer({"enable_model_summary": False} | self.arguments | ours)
        check_same_world(self.world, trainer.world_size)
        return trainer

    def _fit(self, trainer: pl.Trainer, module: TrainingModule, data: PlannedData) -> None:
        """Train all remaining epochs, and score one that was left open."""
        if self.world.is_first:
            logs = self.open_logs()
            if self.state is None:
                # Epoch 0 was scored before there were loggers.
                logs.scores(self.run.history[0], 0)
            trainer.loggers = logs.loggers
        module.model.train()
        resumed = None if self.state is None else self.run.state
        with self.stop.after_step():
            trainer.fit(module, datamodule=data, ckpt_path=resumed, weights_only=True)
            # Where it was the last epoch, Lightning trained nothing.
            self.keep.close_epoch(trainer)
            self.file.teardown()
        done, planned = module.epochs_done, self.config.optimisation.epochs
        if done < planned and self.world.is_first:
            log.warning("epoch %d was the last, of %d planned", done, planned)

    def open_logs(self) -> RunLog:
        """Open the run's logs; also where nothing is trained: the tables go to the same page."""
        if self.logs is None:
            done = 0 if self.state is None else self.state.steps_done
            self.logs = RunLog(self.config, self.run.path, done)
        return self.logs
