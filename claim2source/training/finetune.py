"""Fine-tune a retriever: set up, train with Lightning, choose a checkpoint, report."""

from __future__ import annotations

import copy
import gc
import logging
import warnings
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from signal import SIGTERM
from typing import Any, Literal

import pytorch_lightning as pl
import torch

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, Stopped, UserError
from claim2source.core.files import same_file
from claim2source.core.provenance import git_state, versions
from claim2source.core.report import MACRO, MAIN_METRIC, Epoch, Report
from claim2source.core.terminal import say
from claim2source.core.threads import use_cores
from claim2source.io.store import Store
from claim2source.io.wandb import require_tracking, table_key, wandb_mode
from claim2source.mining import MinedRow
from claim2source.models import DataRecord, Encoder, Manifest, Weights, resolve
from claim2source.models.manifest import FILE
from claim2source.models.query_only import base_encoder
from claim2source.models.resolve import checkpoint_folder
from claim2source.training.adapt import adapt, check_model, frozen_copy
from claim2source.training.after import check_after, evaluate_after
from claim2source.training.callbacks import (
    DropCheckpoints,
    EvaluateOnVal,
    GatherWeights,
    KeepCheckpoints,
    KeepState,
    Remine,
    Throughput,
    TrainingProgress,
    WandbTables,
)
from claim2source.training.callbacks.keep_state import StateFile
from claim2source.training.checkpoint import save_checkpoint
from claim2source.training.choose import (
    ChosenCheckpoint,
    choose_checkpoint,
    choose_point,
    help_to_choose,
)
from claim2source.training.config import FinetuneConfig
from claim2source.training.data import BaseVectors, TrainingPairs
from claim2source.training.datamodule import ClaimSourceData
from claim2source.training.distributed import (
    World,
    barrier,
    check_same_world,
    joined_world,
    launched_world,
    together,
)
from claim2source.training.loggers import RunLog
from claim2source.training.memory_plan import settle_here
from claim2source.training.module import RetrieverModule
from claim2source.training.negatives import RunNegatives
from claim2source.training.next_steps import next_steps
from claim2source.training.refit import Again, refit
from claim2source.training.report import (
    build_report,
    plot_scales,
    run_tables,
    run_text,
    training_of,
)
from claim2source.training.run_folder import RunFolder
from claim2source.training.sharing import encode_shares
from claim2source.training.splits import (
    TrainingData,
    load_data,
    missing_translations,
    unused_data,
    why_too_small,
)
from claim2source.training.state import (
    TrainingState,
    previous_state,
    random_state,
    skipped_steps,
    trainable_weights,
)
from claim2source.training.stop import StopSignals
from claim2source.training.strategies import Sharded, chosen_strategy
from claim2source.training.teacher import run_hash
from claim2source.training.trainer_settings import make_trainer, trainer_arguments

log = logging.getLogger(__name__)

# Bootstrap draws of the interval of a small val.
_REPEATS = 2_000


def finetune(config: FinetuneConfig) -> Report | None:
    """Fine-tune as the config says; return the report (None on later ranks).

    Raises `UserError` for anything the user can correct.
    """
    world = launched_world()
    use_cores(world.local_size, config.threads)
    require_tracking(wandb_mode(config.wandb.mode), "--wandb.mode")
    check_after(config)
    if not world.is_first:
        # What a lenient loading leaves out is said once.
        logging.getLogger("claim2source.datasets").setLevel(logging.ERROR)
    with joined_world(world, config.device), StopSignals().installed() as stop:
        run = together(world, lambda: RunFolder.find(config, lock=world.is_first))
        training = None
        try:
            config = run.settled(config)
            # All that can be wrong is found before anything is made, moved or changed.
            training = together(
                world, lambda: Finetuning(config, world, load_data(config), run, stop)
            )
            together(world, lambda: run.begin(config) if world.is_first else None)
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


def _refuse_checkpoint(name: str) -> None:
    """Raise `UserError` for a base model that is a checkpoint of a run."""
    folder = checkpoint_folder(name)
    if (folder / FILE).is_file():
        raise UserError(
            f"model.name: {name} is a checkpoint of a run; train from its export "
            f"(python train/merge.py --checkpoint {name} --out DIR) or from its base "
            f"({Manifest.read(folder).base.name})"
        )


def _listed(value: object) -> list[object]:
    """Give a value, a list of values or None as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _stopped_text(run: RunFolder, training: Finetuning | None) -> str:
    """Say where a run was stopped, and how it goes on."""
    if training is not None and training.saved_steps is not None:
        return f"stopped at step {training.saved_steps}; go on with --resume"
    if run.history:
        return "stopped before the first step was saved; go on with --resume"
    return "stopped before anything was scored; run it again"


class Finetuning:
    """Run one fine-tuning on this process; nothing is written before `go`."""

    def __init__(
        self,
        config: FinetuneConfig,
        world: World,
        data: TrainingData,
        run: RunFolder,
        stop: StopSignals,
        again: Again | None = None,
    ) -> None:
        self.again = again
        self.config, self.world, self.data, self.run = config, world, data, run
        self.stop = stop
        self.store = Store(config.store)
        model, base = config.model, run.checkpoint(0)
        if run.resumes and (base / FILE).is_file():
            # A run of version 0.1.0 did not apply the prompts that its base declares.
            template = Manifest.read(base).encoder.template
            model = replace(model, template=template, prompts=False)
        _refuse_checkpoint(model.name)
        self.resolved = resolve(model, config.device)
        self.encoder: Encoder = self.resolved.encoder
        if self.encoder.source_encoder is not None:
            raise UserError(
                f"model.name: {config.model.name} was tuned for claims alone; train from its base"
            )
        check_model(config, self.encoder)
        longest, local = self.encoder.settings.max_length, world.local_size
        self.config, self.memory = settle_here(config, self.encoder.model, longest, local)
        self.losses: list[float] = []
        self.logs: RunLog | None = None
        self.untrained = self.encoder.weights or {}
        self.negatives = RunNegatives(config, data.train, run, self.store, world, data.teacher)
        self.query_only = config.optimisation.train == "query_only"
        # Fewer than the learning rate is planned for, where a refit stops at a chosen epoch.
        self.epochs = config.optimisation.epochs if again is None else again.epochs
        self.fell_back = False
        self.state = self._saved_state()
        logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
        self.arguments = trainer_arguments(config.trainer)
        self.strategy = chosen_strategy(self.arguments.pop("strategy", None), world)
        if isinstance(self.strategy, Sharded) and config.tuning == "qlora":
            allowed = "auto or ddp with tuning: qlora: weights in 4 bits are not sharded"
            raise ConfigError("trainer.strategy", "fsdp2", allowed)
        # The whole model moves to the CPU while its shards are trained.
        self.device = self.encoder.device
        on_val = config.rendering, self.store, world, self._open_logs
        self.evaluation = EvaluateOnVal(
            run,
            self.encoder,
            data,
            *on_val,
            untrained=self.untrained,
            refitting=again is not None,
        )
        every = config.optimisation.save_every
        self.file = StateFile()
        self.keep = KeepState(run, world, self.negatives, self._begun_with, every)
        # Built once more in `go`, with the run's callbacks: what Lightning refuses is said here.
        make_trainer(self.arguments | {"logger": False, "enable_progress_bar": False})

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
        if not self.run.history and self.again is None:
            val = self.data.val
            texts = self.config.rendering, val.claims, val.sources
            encode_shares(self.encoder, *texts, self.store, self.world)
        if first and not self.run.history:
            self._validate_base()
        if state is None:
            rows = self.negatives.first(self.encoder)
        else:
            rows = self.negatives.restore(state.mined)
        pairs = self._make_trainable(rows)
        trainer = self._trainer()
        data = ClaimSourceData(pairs, self.config, self.world, trainer, self.epochs)
        trained = self.encoder
        if isinstance(self.strategy, Sharded):
            # What is sharded cannot be scored and saved: that is done with a whole model.
            trained = copy.copy(self.encoder)
            trained.model = copy.deepcopy(self.encoder.model)
            self.encoder.model.to("cpu")  # type: ignore[arg-type]
        module = RetrieverModule(
            trained,
            pairs,
            self.config.optimisation,
            self.config.losses,
            data.optimizer_steps,
            self.stop,
        )
        torch.manual_seed(self.config.optimisation.seed + self.world.rank)
        self.keep.random = random_state()
        if first:
            self._print_summary(data)
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

    def _end(self) -> Report | None:
        """Choose a checkpoint, train it again where that is asked for, and report."""
        logs = self._open_logs() if self.world.is_first else None
        self.encoder.model.to(torch.device("cpu"))  # type: ignore[arg-type]
        gc.collect()
        torch.cuda.empty_cache()
        if self.again is not None:
            if logs is not None:
                logs.close()
            return None
        chosen, refitted = None, None
        if logs is not None:
            chosen = choose_checkpoint(self.run, self.data, self.config, self.store, self.world)
        else:
            help_to_choose(self.data, self.config, self.store, self.world)
        if self.config.refit:
            refitted = refit(
                self.config,
                self.world,
                self.data,
                self.run,
                chosen,
                lambda *parts: Finetuning(
                    parts[0], self.world, parts[1], parts[2], self.stop, parts[3]
                ),
            )
        return None if chosen is None else self._report(chosen, refitted)

    # Set-up

    def _validate_base(self) -> None:
        """Write and score the checkpoint of epoch 0, the model before training."""
        if self.again is not None:
            # What is trained on val is not scored on it.
            self.run.record(Epoch(0, {}))
            return
        folder = self.run.checkpoint(0)
        base = self.resolved.folder
        manifest = save_checkpoint(folder, self.encoder, base, self._manifest(0), "base")
        small = why_too_small(self.data.val)
        scores = self.evaluation.scored(repeats=_REPEATS if small else 0)
        replace(manifest, scores=scores.by_split()).write(folder)
        self.run.record(scores.epoch(0, None))
        bounds = scores.intervals.of(MAIN_METRIC) if scores.intervals else None
        if small and bounds and self.config.chooses:
            low, high = bounds
            log.warning(
                "%s; before training its %s is %.4f with a 95 %% interval from %.4f to %.4f, "
                "%.4f wide",
                *(small, MAIN_METRIC, scores.table[MACRO][MAIN_METRIC], low, high, high - low),
            )

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
        for what, sha256 in self._begun_with.items():
            if state.begun_with[what] != sha256:
                raise UserError(f"the {what} is not what the run was begun with")
        return state

    def _is_whole(self, state: TrainingState) -> bool:
        """Tell whether a state is that of a run whose every planned epoch is scored."""
        epochs = {entry.epoch for entry in self.run.history}
        return not state.epoch_open and self.epochs in epochs

    @cached_property
    def _begun_with(self) -> dict[str, str | None]:
        """Hash the inputs outside the run's folder that determine its losses and its choice."""
        distillation = self.config.losses.distillation
        teacher = distillation.scores if distillation.weight else None
        return {
            "training data": self.data.train.fingerprint,
            "val data": self.data.val.fingerprint,
            "base model": self.resolved.base.sha256,
            "teacher's run": run_hash(teacher) if teacher and teacher.exists() else None,
        }

    def _make_trainable(self, rows: list[MinedRow]) -> TrainingPairs:
        """Make the model trainable and tokenise the pairs; first encode what losses compare."""
        config, train = self.config, self.data.train
        base = None
        if config.losses.keep_base.weight or self.query_only:
            # The first process encodes; the others then read the vectors from the store.
            for turn in (True, False):
                if self.world.is_first is turn:
                    texts = config.rendering, train.claims, train.sources
                    base = BaseVectors(self.encoder, *texts, self.store, progress=turn)
                barrier(self.world)
        frozen = frozen_copy(self.encoder) if self.query_only and config.tuning == "full" else None
        # All processes start with the same adapters; dropout is seeded by process in `go`.
        pl.seed_everything(config.optimisation.seed, verbose=False)
        adapt(self.encoder, config)
        self.encoder.weights = None
        if self.query_only:
            self.encoder.source_encoder = frozen or base_encoder(self.encoder, self.untrained)
        return TrainingPairs(
            train,
            rows,
            self.encoder,
            config.rendering,
            config.optimisation.negatives,
            rotate=config.batches.rotate_negatives,
            losses=config.losses,
            base=base,
            query_only=self.query_only,
            teacher=None if self.data.teacher is None else self.data.teacher.scores,
            mining=config.mining,
        )

    def _print_summary(self, data: ClaimSourceData) -> None:
        """Print what is trained on, and what is left out."""
        config, train, pairs, sampler = self.config, self.data.train, data.pairs, data.sampler
        trained = sum(p.numel() for p in trainable_weights(self.encoder.model).values())
        repeated = f", {config.data.repeat} times each," if config.data.repeat > 1 else ""
        lines = [
            *([self.memory] if self.memory else []),
            *missing_translations(config, train),
            *unused_data(config, train, len(pairs)),
            *self.negatives.sentences,
            f"{len(pairs)} pairs{repeated} in {sampler.batches} batches an epoch, "
            f"{data.optimizer_steps} optimizer steps; "
            f"{trained:,} of {self.encoder.parameters:,} weights are trained",
        ]
        if config.data.limit is not None:
            lines.append(f"data.limit: only {len(train.claims)} claims are trained on")
        if sampler.repeats():
            lines.append(f"{sampler.repeats()} pairs share a batch with their own paper (masked)")
        if sampler.left_out():
            lines.append(
                f"{sampler.left_out()} pairs are left out of an epoch, so that all processes get "
                "equally many"
            )
        if pairs.short_rows:
            lines.append(f"{pairs.short_rows} pairs have fewer negatives than asked")
        if self.data.teacher is not None:
            lines += self.data.teacher.sentences()
        lines += pairs.taught_sentences()
        if config.batches.alpha != 1:
            quotas = ", ".join(f"{name} {count}" for name, count in sampler.quotas.items())
            lines.append(f"pairs an epoch by language: {quotas}")
        if self.state is not None and self.state.batches_done:
            lines.append(f"resuming after batch {self.state.batches_done}")
        say("\n".join(lines))

    # Training

    def _callbacks(self) -> list[pl.Callback]:
        """List the run's callbacks in the order in which Lightning calls them."""
        config, world, run = self.config, self.world, self.run
        only = None if self.again is None else {self.again.epochs, *self.again.soup}
        kind: Literal["full", "lora"] = "full" if config.tuning == "full" else "lora"
        base = self.resolved.folder
        callbacks: list[pl.Callback] = [
            *([GatherWeights(self.encoder)] if isinstance(self.strategy, Sharded) else []),
            Remine(self.negatives, self.encoder, self.untrained, world),
            KeepCheckpoints(run, self.encoder, base, kind, self._manifest, world, only),
            self.evaluation,
            Throughput(config.optimisation.log_every),
        ]
        if world.is_first:
            seed, train = config.optimisation.seed, self.data.train
            callbacks.append(WandbTables(self.negatives, train, seed, self._open_logs))
            callbacks.append(TrainingProgress())
        callbacks += self.arguments.get("callbacks") or []
        callbacks.append(self.keep)
        if self.again is None:
            callbacks.append(
                DropCheckpoints(run, config.keep, self._chosen_epoch, self.file.wait, world)
            )
        return callbacks

    def _chosen_epoch(self) -> int:
        chosen, _ = choose_point(self.run, self.data, self.config)
        return chosen.epoch

    def _trainer(self) -> pl.Trainer:
        """Make Lightning's trainer of the config's settings."""
        on_gpu = self.device.type == "cuda"
        optimisation = self.config.optimisation
        # Chunks are moved one after the other, in the step.
        warnings.filterwarnings("ignore", message=".*overridden `transfer_batch_to_device`.*")
        warnings.filterwarnings("ignore", message="You requested to overfit.*shuffling.*")
        # The rate goes on where the first step is skipped.
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
        ours: dict[str, Any] = {
            "max_epochs": self.epochs,
            "accelerator": "gpu" if on_gpu else "cpu",
            "devices": self.world.local_size,
            "num_nodes": self.world.nodes,
            "strategy": self.strategy,
            "precision": "bf16-mixed" if optimisation.precision == "bf16" else "32-true",
            "accumulate_grad_batches": optimisation.accumulation,
            "gradient_clip_val": optimisation.max_grad_norm or None,
            "logger": False,
            "callbacks": self._callbacks(),
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

    def _fit(self, trainer: pl.Trainer, module: RetrieverModule, data: ClaimSourceData) -> None:
        """Train all remaining epochs, and score one that was left open."""
        if self.world.is_first:
            logs = self._open_logs()
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
        if module.epochs_done < self.epochs and self.world.is_first:
            log.warning("epoch %d was the last, of %d planned", module.epochs_done, self.epochs)

    def _manifest(self, epoch: int) -> Manifest:
        data, languages = self.config.data, self.config.languages
        return Manifest(
            base=self.resolved.base,
            weights=Weights(trained=self.config.optimisation.train),
            encoder=self.encoder.settings,
            rendering=self.config.rendering,
            epoch=epoch,
            data=DataRecord(
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
            ),
            refit=None if self.again is None else self.again.of,
            config=as_plain(self.config),
            git=git_state(),
            versions=versions(),
        )

    def _open_logs(self) -> RunLog:
        """Open the run's logs; also where nothing is trained: the tables go to the same page."""
        if self.logs is None:
            done = 0 if self.state is None else self.state.steps_done
            self.logs = RunLog(self.config, self.run.path, done)
        return self.logs

    # The report

    def _report(self, chosen: ChosenCheckpoint, again: Path | None) -> Report:
        """Score epoch 0, the chosen one and its refit from disk, write the report."""
        logs, folder = self._open_logs(), again or chosen.folder
        self.run.write(folder)
        report = build_report(
            self.run,
            chosen,
            self.data,
            self.config,
            self.store,
            again,
            skipped_steps(self.losses),
        )
        for name, table in run_tables(report).items():
            logs.table(table_key(name), table)
        if training_of(report).scales:
            logs.figure("scales_plot", plot_scales(report, self.run.path))
        logs.close()
        say(run_text(report))
        evaluate_after(self.config, self.run)
        say(next_steps(self.config, folder, chosen.epoch > 0))
        return report
