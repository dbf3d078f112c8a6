"""Save a training run's state every few steps, and restore it exactly."""

# Callbacks take our own modules; Lightning passes any module.
# mypy: disable-error-code="override"

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import CheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.trainer.call import _call_callback_hooks
from torch import Tensor

from claim2source.core.errors import Stopped
from claim2source.training.distributed import gather_values
from claim2source.training.module import TrainingModule
from claim2source.training.on_val import EvaluateOnVal
from claim2source.training.resume import (
    OURS,
    RandomState,
    TrainingState,
    random_state,
    restore_random_state,
    skipped_steps,
)


class StateFile(CheckpointIO):
    """Write and read Lightning's checkpoints with `TrainingState`.

    Writing is atomic and keeps the previous state; weights that are not finite are refused, and
    only tensors and plain values are read. A snapshot is taken at once and written while training
    continues, one at a time: errors of writing are raised at the next save, or at the end.
    """

    def __init__(self) -> None:
        self._saving: Future[None] | None = None

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Any = None,
    ) -> None:
        self.teardown()
        # On the CPU: a GPU has no room for another optimizer state.
        snapshot = apply_to_collection(
            checkpoint,
            Tensor,
            lambda t: t.detach().to("cpu", copy=True),
        )
        writer = ThreadPoolExecutor(1, "state")
        self._saving = writer.submit(lambda: TrainingState.of(snapshot).save(Path(path)))
        writer.shutdown(wait=False)

    def teardown(self) -> None:
        """Wait until the last save is on disk. Raises its error."""
        saving = self._saving
        self._saving = None
        if saving is not None:
            saving.result()

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        self.teardown()
        state = TrainingState.load(Path(path))
        return dict(state.checkpoint)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class KeepState(Checkpoint):
    """Save the state every `interval` steps, at an epoch's last step and once it is scored.

    A signal ends training after a step, once that is saved. The state also has what Lightning does
    not store: the RNG states of all processes, losses and mined negatives. `random` is the initial
    RNG state. With `keep: best`, checkpoints that will not be chosen are deleted only after the
    save, because a repeated epoch may get another score on a GPU.
    """

    def __init__(self, evaluation: EvaluateOnVal, interval: int) -> None:
        self.evaluation = evaluation
        self.interval = interval
        self.run = evaluation.run
        self.world = evaluation.world
        # Whether an epoch's last step is done but not scored.
        self.epoch_open = False
        # Whether no epoch is in progress.
        self._between = False
        self.random: RandomState | None = None

    def on_train_start(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        # First of all, because Lightning has installed its own handlers.
        module.stop.install()
        # Here, because Lightning's set-up draws random numbers when a run starts or resumes.
        if self.random is None:
            # Dropout is seeded by process.
            torch.manual_seed(module.config.seed + self.world.rank)
        else:
            restore_random_state(self.random)
        self._close_epoch(trainer)

    def on_fit_end(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        """Close the last epoch if a resumed run had nothing left to train."""
        self._close_epoch(trainer)
        trainer.strategy.checkpoint_io.teardown()

    def _close_epoch(self, trainer: pl.Trainer) -> None:
        if not self.epoch_open:
            return
        for monitoring in (False, True):  # Lightning's order
            _call_callback_hooks(
                trainer,
                "on_train_epoch_end",
                monitoring_callbacks=monitoring,
            )

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        module: TrainingModule,
        *_: Any,
    ) -> None:
        """Save after a step if a save is due, the epoch ends, or a signal was received."""
        if not module.window.closed:
            return
        self.epoch_open = trainer.is_last_batch or _is_ended(trainer)
        is_due = self.interval and module.steps_done % self.interval == 0
        if self.epoch_open or module.stopping or is_due:
            self._save(trainer, module, between=self.epoch_open)
        if module.stopping:
            signal = module.stop.received or SIGTERM
            raise Stopped("", signal)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        self.epoch_open = False
        self._save(trainer, module, between=True)
        if self.world.is_first and self.run.config.keep == "best":
            trainer.strategy.checkpoint_io.teardown()
            epoch, _ = self.evaluation.choose()
            self.run.prune(epoch)

    def _save(
        self,
        trainer: pl.Trainer,
        module: TrainingModule,
        between: bool,
    ) -> None:
        self._between = between
        trainer.save_checkpoint(self.run.state, weights_only=False)
        file = self.run.file
        file.steps = module.steps_done
        file.skipped_steps = skipped_steps(module.losses)

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        module: TrainingModule,
        checkpoint: dict[str, Any],
    ) -> None:
        content = bytearray(self.run.mined.read_bytes())
        mined = torch.frombuffer(content, dtype=torch.uint8)
        checkpoint[OURS] = {
            "batches_done": module.batches_done,
            "steps_done": module.steps_done,
            "losses": list(module.losses),
            "world_size": self.world.size,
            "mined": {
                "file": self.run.mined.name,
                "content": mined,
            },
            "random": gather_values(random_state(), self.world),
            "epoch_open": self.epoch_open,
            "ended": not self.epoch_open and _is_ended(trainer),
        }
        if self._between:
            fit_loop = checkpoint["loops"]["fit_loop"]
            _begin_next_epoch(fit_loop)

    def on_load_checkpoint(
        self,
        trainer: pl.Trainer,
        module: TrainingModule,
        checkpoint: dict[str, Any],
    ) -> None:
        ours = TrainingState.of(checkpoint)
        module.batches_done = ours.batches_done
        module.steps_done = ours.steps_done
        module.losses = list(ours.losses)
        self.random = ours.random[self.world.rank]
        self.epoch_open = ours.epoch_open
        self.run.file.steps = ours.steps_done


def _is_ended(trainer: pl.Trainer) -> bool:
    loop = trainer.fit_loop
    has_all_steps = 0 <= loop.max_steps <= trainer.global_step
    return has_all_steps or (trainer.should_stop and loop._can_stop_early)


def _begin_next_epoch(loop: dict[str, Any]) -> None:
    """Count an epoch as complete if its last step is done.

    Lightning counts it only after its last hook; with `max_steps` a resumed run would repeat the
    epoch.
    """
    progress = loop["epoch_progress"]
    stages = ("started", "processed", "completed")
    for key in ("total", "current"):
        count = progress[key]
        count |= dict.fromkeys(stages, count["ready"])
    batches = loop["epoch_loop.batch_progress"]
    batches["current"] = dict.fromkeys(batches["current"], 0)
    processed = batches["total"]["processed"]
    batches["total"] |= {"completed": processed}
    batches["is_last_batch"] = False
    loop["state_dict"].pop("combined_loader", None)
