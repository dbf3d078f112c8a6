"""Save what a run resumes from, through Lightning's own checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.plugins import CheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.trainer.call import _call_callback_hooks
from torch import Tensor

from claim2source.core.errors import Stopped
from claim2source.training.distributed import World, gather_values
from claim2source.training.negatives import KeptNegatives
from claim2source.training.run_folder import RunFolder
from claim2source.training.state import (
    OURS,
    RandomState,
    RunState,
    TrainingState,
    random_state,
    restore_random_state,
)
from claim2source.training.steps import TrainingModule


class StateFile(CheckpointIO):
    """Write and read Lightning's checkpoints as `TrainingState` does.

    Atomically, the one before is kept, weights that are not finite are refused, and nothing but
    tensors and plain values is read. A snapshot is taken at once and written while the training
    goes on, one at a time: what is wrong with a file is raised at the next save, or at the end.
    """

    def __init__(self) -> None:
        self._writer: ThreadPoolExecutor | None = None
        self._saving: Future[None] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Begin to write a checkpoint, once the one before is written."""
        self.wait()
        snapshot = apply_to_collection(checkpoint, Tensor, _copied)
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "state")
        self._saving = self._writer.submit(lambda: TrainingState.of(snapshot).save(Path(path)))

    def wait(self) -> None:
        """Wait until what was saved is written. Raises what went wrong."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def teardown(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
                self._writer = None

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint."""
        self.wait()
        return TrainingState.load(Path(path)).checkpoint()

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


def _copied(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU: a GPU has no room for another optimizer state."""
    tensor = tensor.detach()
    return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()


class KeepState(Checkpoint):
    """Save the state every so many steps, at an epoch's last step and once it is scored.

    A signal ends the training after a step, once that is saved. What Lightning does not hold is
    added: the RNG states of all processes, losses, the mined negatives, and hashes of what the run
    was begun with. `saved_steps` is the last save's, `random` the RNG state to begin with.
    """

    def __init__(
        self,
        run: RunFolder,
        world: World,
        negatives: KeptNegatives,
        begun_with: Mapping[str, str | None],
        every: int,
    ) -> None:
        self.run, self.world, self.negatives = run, world, negatives
        self.begun_with, self.every = dict(begun_with), every
        self.saved_steps: int | None = None
        # Whether the last step of an epoch is done that is not scored.
        self.epoch_open = False
        self._ended = self._between = False
        self.random: RandomState | None = None

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Restore the RNG state; score an epoch that was left open."""
        assert isinstance(module, TrainingModule)
        # Before anything else: Lightning has put its own handlers in place.
        module.stop.install()
        # Here, since Lightning's set-up draws random numbers when a run starts or resumes.
        if self.random is not None:
            restore_random_state(self.random)
        self.close_epoch(trainer)

    def close_epoch(self, trainer: pl.Trainer) -> None:
        """Do what is done at an epoch's end, where the epoch was left open."""
        if self.epoch_open:
            for monitoring in (False, True):  # Lightning's order
                _call_callback_hooks(trainer, "on_train_epoch_end", monitoring_callbacks=monitoring)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, *arguments: Any
    ) -> None:
        """Save after a step where it is due, the epoch's last, or a signal came."""
        assert isinstance(module, TrainingModule)
        if not module.window.closed:
            return
        self.epoch_open = trainer.is_last_batch or _is_ended(trainer)
        due = self.every and module.steps_done % self.every == 0
        if self.epoch_open or module.stopping or due:
            self._save(trainer, module, between=self.epoch_open)
        if module.stopping:
            raise Stopped("", module.stop.received or SIGTERM)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Save once the epoch is scored."""
        assert isinstance(module, TrainingModule)
        self.epoch_open, self._ended = False, _is_ended(trainer)
        self._save(trainer, module, between=True)

    def _save(self, trainer: pl.Trainer, module: TrainingModule, between: bool) -> None:
        self._between = between
        trainer.save_checkpoint(self.run.state, weights_only=False)
        self.saved_steps = module.steps_done

    def on_save_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add what Lightning does not hold."""
        assert isinstance(module, TrainingModule)
        ours: RunState = {
            "batches_done": module.batches_done,
            "steps_done": module.steps_done,
            "losses": list(module.losses),
            "world_size": self.world.size,
            "begun_with": self.begun_with,
            "mined": self.negatives.state(),
            "random": gather_values(random_state(), self.world),
            "epoch_open": self.epoch_open,
            "ended": self._ended,
        }
        checkpoint[OURS] = ours
        if self._between:
            _begin_next_epoch(checkpoint["loops"]["fit_loop"])

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take up what was added."""
        assert isinstance(module, TrainingModule)
        ours: RunState = checkpoint[OURS]
        module.batches_done, module.steps_done = ours["batches_done"], ours["steps_done"]
        module.losses = list(ours["losses"])
        self.random = ours["random"][self.world.rank]
        self.epoch_open, self.saved_steps = ours["epoch_open"], ours["steps_done"]


def _is_ended(trainer: pl.Trainer) -> bool:
    """Tell whether the training ends with this epoch, though others were planned."""
    loop = trainer.fit_loop
    steps = 0 <= loop.max_steps <= trainer.global_step
    return steps or (trainer.should_stop and loop._can_stop_early)


def _begin_next_epoch(loop: dict[str, Any]) -> None:
    """Count an epoch as complete whose last step is done.

    Lightning counts it after the last of its hooks; with `max_steps` it would then begin the epoch
    again where a run resumes.
    """
    for count in (loop["epoch_progress"][key] for key in ("total", "current")):
        count |= dict.fromkeys(("started", "processed", "completed"), count["ready"])
    batches = loop["epoch_loop.batch_progress"]
    batches["current"] = dict.fromkeys(batches["current"], 0)
    batches["total"] |= {"completed": batches["total"]["processed"]}
    batches["is_last_batch"] = False
    loop["state_dict"].pop("combined_loader", None)
