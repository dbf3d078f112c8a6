"""Make Lightning's trainer for a run, with its callbacks, and train from if it was stopped."""

# Callbacks take our own modules where Lightning passes any.
# mypy: disable-error-code="override"

from __future__ import annotations

import gc
import logging
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins import CheckpointIO
from lightning_fabric.utilities.exceptions import MisconfigurationException
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.loggers.logger import DummyLogger
from pytorch_lightning.trainer.call import _call_callback_hooks
from torch import Tensor

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, Stopped
from claim2source.core.machine import peak_memory
from claim2source.core.progress import Progress
from claim2source.core.provenance import git_state, versions
from claim2source.core.report import MACRO, MAIN_METRIC, Choice, Epoch
from claim2source.core.terminal import say
from claim2source.evaluation.evaluate import METRICS, Scoring, score_encoder
from claim2source.evaluation.training_views import scores_by_split
from claim2source.models import DataRecord, Manifest
from claim2source.models.manifest import RerankerManifest
from claim2source.models.trained_on import TrainedOn
from claim2source.training.base import LoadedBase
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.choose import (
    choose_epoch,
    interval_text,
    scored_epoch,
    scores_text,
    val_size_error,
)
from claim2source.training.config import TrainingRecipe
from claim2source.training.data import TrainingData
from claim2source.training.distributed import (
    Sharded,
    check_same_world,
    chosen_strategy,
    encode_shares,
    gather_values,
)
from claim2source.training.module import RetrieverModule, TrainingModule
from claim2source.training.monitors import (
    LOSS,
    NOT_LOGGED,
    STEP_VALUES,
    check_monitors,
    logged_scores,
    part_score_name,
    score_name,
)
from claim2source.training.negatives import log_negatives, mine_pairs, mined_rows, mines_after
from claim2source.training.plan import check_limits
from claim2source.training.resume import (
    OURS,
    RandomState,
    TrainingState,
    random_state,
    restore_random_state,
    skipped_steps,
)
from claim2source.training.session import Session
from claim2source.training.trainer import trainer_arguments

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

# Bootstrap draws of the interval of a small val.
_REPEATS = 2_000


class StepLog(pl.Callback):
    """Log losses, claims and tokens per second and memory of every optimizer step.

    Lightning gets the same numbers, so that other callbacks can monitor them. The first process
    counts the steps of all epochs on stderr; a resumed run goes on.
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
        # By our own count of steps: it goes on where a run resumes.
        for logger in trainer.loggers:
            logger.log_metrics(values, step=module.steps_done)
        module.log_dict({name: float(value) for name, value in values.items()}, logger=False)
        self.progress.update(1, f"loss {module.losses[-1]:.4g}")

    def on_train_end(self, *_: Any) -> None:
        self.progress.close()

    def on_exception(self, *_: Any) -> None:
        self.progress.close()


class EvaluateOnVal(pl.Callback, ABC):
    """Write the checkpoint of `model`, a base or a re-ranker, at every epoch's end, and score it.

    `manifest` is what all epochs have in common, with the claims that the base was trained on;
    `metric` is what is chosen by; `interval` says how sure the scores before training are, where
    val is small.
    """

    interval = ""

    def __init__(
        self,
        session: Session,
        manifest: Manifest | RerankerManifest,
        data: TrainingData,
        model: Any,
        metric: str = MAIN_METRIC,
    ) -> None:
        self.session, self.manifest, self.data = session, manifest, data
        self.model, self.metric = model, metric
        self.run, self.world = session.run, session.world
        seen = TrainedOn.on(data.train.claims)
        self.trained_on = seen if manifest.trained_on is None else manifest.trained_on | seen

    @abstractmethod
    def score(self, epoch: int) -> Epoch | None:
        """Score the weights as they are, in all processes together; None on later ranks."""

    def choose(self) -> tuple[int, Choice]:
        """Choose the run's epoch, or epoch 0, the base, on val."""
        return choose_epoch(self.run, self.data.weighing, self.metric)

    def score_base(self) -> str | None:
        """Write and score the checkpoint of epoch 0, the model before training, if none has.

        The first process records and returns the scores; it warns where something is chosen on a
        val that is small.
        """
        if gather_values(bool(self.run.file.history), self.world)[0]:
            return None
        if (entry := self._save_and_score(0)) is None:
            return None
        self.run.record(entry)
        if self.run.config.choose == "best" and (small := val_size_error(self.data.val)):
            log.warning("%s%s", small, self.interval)
        return scores_text(entry)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        """Save and score the epoch; record its scores, log them, and give them to Lightning.

        There they are `val/en/mrr@5`, `val/macro/mrr@5` and so on, for every metric, and
        `val/seen papers/mrr@5`: an EarlyStopping can monitor them, see `monitors`.
        """
        with module.stop.after_step(waits=False):
            if (entry := self._save_and_score(module.epochs_done)) is not None:
                self._record(entry, module)
            shared = gather_values(entry, self.world)[0]
        if shared is not None:
            for lang, row in shared.val.items():
                values = {score_name(lang, metric): float(value) for metric, value in row.items()}
                # The logs have them already, at the step.
                module.log_dict(values, logger=False)
            for part, table in shared.parts.items():
                module.log(part_score_name(part), float(table[MACRO][MAIN_METRIC]), logger=False)

    def _save_and_score(self, epoch: int) -> Epoch | None:
        folder, manifest = self.run.checkpoint(epoch), self.manifest
        if self.world.is_first:
            data = replace(self.manifest.data, mined_sha256=self.run.mined_sha256)
            manifest = replace(self.manifest, epoch=epoch, data=data)
            # A student's projection is fitted on the claims before the first epoch.
            if epoch or getattr(manifest, "source_model", None) is not None:
                manifest = replace(manifest, trained_on=self.trained_on)
            manifest = self.model.save(folder, manifest)
        if (entry := self.score(epoch)) is not None:
            replace(manifest, scores=scores_by_split(entry)).write(folder)
        return entry

    def _record(self, entry: Epoch, module: TrainingModule) -> None:
        trainer = module.trainer
        per_epoch = -(-int(trainer.num_training_batches) // trainer.accumulate_grad_batches)
        losses = module.losses[(entry.epoch - 1) * per_epoch :]
        finite = [loss for loss in losses if not math.isnan(loss)]
        mean = sum(finite) / len(finite) if finite else None
        text = f"loss {finite[0]:.4g} to {finite[-1]:.4g}" if finite else "no loss"
        skipped = len(losses) - len(finite)
        skip_note = f"; {skipped} of {len(losses)} steps skipped (not finite)" if skipped else ""
        entry = replace(entry, loss=mean)
        self.run.record(entry)
        self.session.logs.scores(entry, module.steps_done)
        scores = scores_text(entry)
        print(f"epoch {entry.epoch}: {text}, val MRR@5  {scores}{skip_note}", flush=True)


class RetrieverOnVal(EvaluateOnVal):
    """Score a retriever, of which every process encodes a share of val, and mine again with it.

    Negatives are mined before an epoch, every `optimisation.remine_every` epochs (ANCE). The
    weights are named as the checkpoint of the epoch before: what was encoded to score it is not
    encoded again.
    """

    model: LoadedBase

    def on_train_epoch_start(self, trainer: pl.Trainer, module: RetrieverModule) -> None:
        """Mine if it is due after the last epoch, and train on the new negatives."""
        epoch, session, train = trainer.current_epoch, self.session, self.data.train
        run, recipe = self.run, self.model.recipe
        if not mines_after(recipe.optimisation, epoch):
            return
        with module.stop.after_step(waits=False):
            before, run.mined = run.mined, run.path / f"mined-epoch-{epoch}.jsonl"
            with self.model.as_checkpoint(run.checkpoint(epoch), self.world):
                counts = mine_pairs(session, recipe, train, self.model.encoder, before)
            module.pairs.use(mined_rows(session, train))
        log_negatives(session, module.pairs.rows, train, recipe.optimisation.seed)
        if counts is not None and (lines := counts.sentences()):
            say("\n".join(lines))

    def score(self, epoch: int) -> Epoch | None:
        base, val, store, world = self.model, self.data.val, self.session.store, self.world
        rendering = self.manifest.rendering
        with base.as_checkpoint(self.run.checkpoint(epoch), world):
            encode_shares(base.encoder, rendering, val, store, world)
            if not world.is_first:
                return None
            repeats = _REPEATS if epoch == 0 and val_size_error(val) else 0
            settings = Scoring(METRICS, repeats, 0, self.data.selection.train.golds)
            scored = score_encoder(
                base.encoder, val, rendering, settings, store=store, progress=True
            )
        self.interval, weighing = interval_text(scored.report), self.data.weighing
        return scored_epoch(epoch, scored.report, weighing.of(scored.run), weighing)


class StateFile(CheckpointIO):
    """Write and read Lightning's checkpoints as `TrainingState` does.

    Atomically, the one before is kept, weights that are not finite are refused, and nothing but
    tensors and plain values is read. A snapshot is taken at once and written while the training
    goes on, one at a time: what is wrong with a file is raised at the next save, or at the end.
    """

    def __init__(self) -> None:
        self._saving: Future[None] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        self.teardown()
        # On the CPU: a GPU has no room for another optimizer state.
        snapshot = apply_to_collection(
            checkpoint, Tensor, lambda t: t.detach().to("cpu", copy=True)
        )
        writer = ThreadPoolExecutor(1, "state")
        self._saving = writer.submit(lambda: TrainingState.of(snapshot).save(Path(path)))
        writer.shutdown(wait=False)

    def teardown(self) -> None:
        """Wait until the last save is on disk. Raises its error."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        self.teardown()
        return dict(TrainingState.load(Path(path)).checkpoint)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class KeepState(Checkpoint):
    """Save the state every so many steps, at an epoch's last step and once it is scored.

    A signal ends the training after a step, once that is saved. What Lightning does not keep is
    added: the RNG states of all processes, losses, and the mined negatives. `random` is the RNG
    state to begin with. With `keep: best` checkpoints that will not be chosen are deleted then: an
    epoch that is repeated may get another score on a GPU.
    """

    def __init__(self, evaluation: EvaluateOnVal, interval: int) -> None:
        self.evaluation, self.interval = evaluation, interval
        self.run, self.world = evaluation.run, evaluation.world
        # Whether the last step of an epoch is done that is not scored; whether none is begun.
        self.epoch_open = self._between = False
        self.random: RandomState | None = None

    def on_train_start(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        # Before anything else: Lightning has put its own handlers in place.
        module.stop.install()
        # Here, since Lightning's set-up draws random numbers when a run starts or resumes.
        if self.random is None:
            # Dropout is seeded by process.
            torch.manual_seed(module.config.seed + self.world.rank)
        else:
            restore_random_state(self.random)
        self._close_epoch(trainer)

    def on_fit_end(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        """Close an epoch that was left open if it was the last: Lightning trained nothing."""
        self._close_epoch(trainer)
        trainer.strategy.checkpoint_io.teardown()

    def _close_epoch(self, trainer: pl.Trainer) -> None:
        if self.epoch_open:
            for monitoring in (False, True):  # Lightning's order
                _call_callback_hooks(trainer, "on_train_epoch_end", monitoring_callbacks=monitoring)

    def on_train_batch_end(self, trainer: pl.Trainer, module: TrainingModule, *_: Any) -> None:
        """Save after a step if it is due, the epoch's last, or a signal came."""
        if not module.window.closed:
            return
        self.epoch_open = trainer.is_last_batch or _is_ended(trainer)
        due = self.interval and module.steps_done % self.interval == 0
        if self.epoch_open or module.stopping or due:
            self._save(trainer, module, between=self.epoch_open)
        if module.stopping:
            raise Stopped("", module.stop.received or SIGTERM)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        self.epoch_open = False
        self._save(trainer, module, between=True)
        if self.world.is_first and self.run.config.keep == "best":
            trainer.strategy.checkpoint_io.teardown()
            self.run.prune(self.evaluation.choose()[0])

    def _save(self, trainer: pl.Trainer, module: TrainingModule, between: bool) -> None:
        self._between = between
        trainer.save_checkpoint(self.run.state, weights_only=False)
        self.run.file.steps = module.steps_done
        self.run.file.skipped_steps = skipped_steps(module.losses)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, module: TrainingModule, checkpoint: dict[str, Any]
    ) -> None:
        mined = torch.frombuffer(bytearray(self.run.mined.read_bytes()), dtype=torch.uint8)
        checkpoint[OURS] = {
            "batches_done": module.batches_done,
            "steps_done": module.steps_done,
            "losses": list(module.losses),
            "world_size": self.world.size,
            "mined": {"file": self.run.mined.name, "content": mined},
            "random": gather_values(random_state(), self.world),
            "epoch_open": self.epoch_open,
            "ended": not self.epoch_open and _is_ended(trainer),
        }
        if self._between:
            _begin_next_epoch(checkpoint["loops"]["fit_loop"])

    def on_load_checkpoint(
        self, trainer: pl.Trainer, module: TrainingModule, checkpoint: dict[str, Any]
    ) -> None:
        ours = TrainingState.of(checkpoint)
        module.batches_done, module.steps_done = ours.batches_done, ours.steps_done
        module.losses = list(ours.losses)
        self.random = ours.random[self.world.rank]
        self.epoch_open, self.run.file.steps = ours.epoch_open, ours.steps_done


def _is_ended(trainer: pl.Trainer) -> bool:
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
        train_languages=data.train.languages,
    )
    return {
        "data": record,
        # With numbers in place of `auto`.
        "config": as_plain(replace(session.run.config, optimisation=recipe.optimisation)),
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
    check_monitors(_listed(arguments.get("callbacks")), logged_names(recipe, evaluation.data))
    for name, part in (("callbacks", callbacks), ("plugins", [StateFile()])):
        arguments[name] = [*part, *_listed(arguments.get(name))]
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


def _listed(parts: object) -> list[object]:
    """List an argument that may be one object, several or none."""
    if parts is None:
        return []
    return parts if isinstance(parts, list) else [parts]


def logged_names(recipe: TrainingRecipe, data: TrainingData) -> list[str]:
    """List all that callbacks can monitor: values of a step, and scores on val after an epoch."""
    return [*STEP_VALUES, *recipe.measures, *logged_scores(data.val, data.val_parts)]


def fit(
    session: Session,
    trainer: pl.Trainer,
    module: TrainingModule,
    sampler: BatchSampler,
    summary: Sequence[str],
) -> None:
    """Train all remaining epochs, and score one that was left open."""
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
        # Callbacks of Lightning's that log refuse to run where there is no logger.
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
        # A name that a callback of the user's own might have logged.
        if not str(error).startswith(NOT_LOGGED):
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(
            "trainer.callbacks", "EarlyStopping", f"what is logged: {reason}"
        ) from None


def free_device(model: torch.nn.Module) -> None:
    """Move a trained model to the CPU, and give the GPU's memory back."""
    model.to(torch.device("cpu"))
    gc.collect()
    torch.cuda.empty_cache()
