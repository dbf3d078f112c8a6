"""Check a config and read its inputs: the first half of a training's set-up, without torch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from claim2source.core.errors import UserError, report_once
from claim2source.core.files import require_writable
from claim2source.core.program import next_command
from claim2source.data.store import Store
from claim2source.data.wandb import Tracking, require_tracking, wandb_mode
from claim2source.models.config import ModelConfig
from claim2source.models.hub import require_model
from claim2source.models.local import require_device
from claim2source.models.manifest import FILE, Manifest, checkpoint_folder
from claim2source.systems.seen import require_held_out
from claim2source.systems.system import System
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.launcher import LaunchedSettings, World, launched_world
from claim2source.training.monitors import check_monitors, logged_names, named_monitors
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.reranker_data import RerankerPairs, first_system
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import TrainingData, load_data, load_splits, require_new_val
from claim2source.training.teacher_scores import read_teacher

if TYPE_CHECKING:
    from claim2source.evaluation.table import EvaluateConfig


@dataclass(frozen=True)
class Place:
    """Processes, locked folder, store and W&B mode of a training run."""

    config: RunConfig
    world: World
    run: RunFolder
    store: Store
    tracking: Tracking


@dataclass(frozen=True)
class RetrieverInputs:
    """Checked inputs of a retriever's training, for the second half of its set-up.

    `has_own_callbacks`: monitors must be checked once the user's callbacks are made.
    """

    place: Place
    data: TrainingData
    has_own_callbacks: bool
    after: EvaluateConfig | None


@dataclass(frozen=True)
class RerankerInputs:
    """Checked inputs of a re-ranker's training; `first` is the system of its first stage."""

    place: Place
    data: TrainingData
    has_own_callbacks: bool
    first: System


def check_early(config: FinetuneConfig) -> RetrieverInputs:
    """Find, read and check all inputs of a retriever's training, each once.

    Every process checks: none loads what another refuses, and no run begins before all have
    joined. Raises `UserError` for a device, launcher, folder, data set, model, monitor or later
    evaluation that the run cannot use; nothing is written.
    """
    with report_once(), find_place(config) as place:
        after = None
        if config.after is not None:
            # Imported here, because it imports the whole evaluation.
            from claim2source.training.after import read_after

            after = read_after(config, place.tracking)
        require_model(ModelConfig(name=config.model.name, revision=config.model.revision))
        data = load_data(config.losses, place.run)
        require_new_val(config.models, data)
        _refuse_checkpoint(config.model.name)
        return RetrieverInputs(place, data, _has_own_callbacks(config, data), after)


def check_reranker_early(config: RerankerConfig) -> RerankerInputs:
    """Find, read and check all inputs of a re-ranker's training, as `check_early` does."""
    with report_once(), find_place(config) as place:
        mined = config.require_mined()
        require_model(ModelConfig(name=config.model.name, revision=config.model.revision))
        first = first_system(config.first)
        data = load_splits(place.run)
        scores = config.loss.scores
        if scores is not None:
            data = replace(data, teacher=read_teacher(scores, data.train, key="loss.scores"))
        require_new_val(config.models, data)
        key = "first.system" if config.first.checkpoint is None else "first.checkpoint"
        models = [*(model.name for model in first.dense_models), *first.models()]
        require_held_out(key, models, data.val, data.settings)
        if data.mined is not None:
            pairs = RerankerPairs.of_training(data, data.mined, config)
            if not pairs.rows:
                raise UserError(f"{mined}: no pair has a negative to train on")
        return RerankerInputs(place, data, _has_own_callbacks(config, data), first)


@contextmanager
def find_place(config: RunConfig) -> Iterator[Place]:
    """Find the processes, folder and store of a run; unlock the folder if the body fails."""
    require_device(config.device)
    steps = config.optimisation
    world = launched_world(
        settings=LaunchedSettings(config.device, steps.precision, steps.accumulation)
    )
    if not world.is_first:
        # Only one process warns of rows that are left out, or texts that are cut.
        for part in ("data", "models"):
            logging.getLogger(f"claim2source.{part}").setLevel(logging.ERROR)
    tracking = wandb_mode(config.wandb.mode)
    require_tracking(tracking, "--wandb.mode")
    store = Store(config.store)
    require_writable(store.root, "folder")
    run = RunFolder.find(config, lock=world.is_first)
    try:
        yield Place(config, world, run, store, tracking)
    except BaseException:
        run.release()
        raise


def _has_own_callbacks(config: RunConfig, data: TrainingData) -> bool:
    """Check the monitors of Lightning's callbacks; return whether there are other callbacks."""
    monitors = named_monitors(config.trainer)
    if monitors is None:
        return True
    check_monitors(monitors, logged_names(config, data))
    return False


def _refuse_checkpoint(name: str) -> None:
    """Raise `UserError` if the base is a checkpoint of a run."""
    folder = checkpoint_folder(name)
    if (folder / FILE).is_file():
        raise UserError(
            f"model.name: {name} is a checkpoint of a run; train from its export "
            f"({next_command('train/merge.py')} --checkpoints {name} --out DIR) or from its base "
            f"({Manifest.read(folder).base.name})"
        )
