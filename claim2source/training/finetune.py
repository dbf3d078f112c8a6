"""Fine-tune a retriever: set up, train with Lightning, choose a checkpoint, report."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import pytorch_lightning as pl
import torch

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.provenance import git_state, versions
from claim2source.core.report import MACRO, MAIN_METRIC, Report
from claim2source.core.terminal import say
from claim2source.io.wandb import table_key
from claim2source.mining import MinedRow
from claim2source.models import Encoder, Manifest, Weights, resolve
from claim2source.models.manifest import FILE
from claim2source.models.query_only import base_encoder
from claim2source.models.resolve import checkpoint_folder
from claim2source.training.after import check_after, evaluate_after
from claim2source.training.callbacks import EvaluateOnVal, GatherWeights, KeepCheckpoints, Remine
from claim2source.training.checkpoint import (
    adapt,
    check_model,
    frozen_copy,
    save_checkpoint,
    train_projection,
)
from claim2source.training.choose import (
    ChosenCheckpoint,
    choose_checkpoint,
    choose_point,
    help_to_choose,
)
from claim2source.training.config import FinetuneConfig
from claim2source.training.data import (
    BaseVectors,
    TrainingData,
    TrainingPairs,
    load_data,
    missing_translations,
    unused_data,
    why_too_small,
)
from claim2source.training.distributed import Sharded, World, barrier, encode_shares
from claim2source.training.held_out import require_held_out
from claim2source.training.memory_plan import settle_here
from claim2source.training.module import ClaimSourceData, PlannedData, RetrieverModule
from claim2source.training.negatives import RunNegatives
from claim2source.training.report import (
    build_report,
    next_steps,
    plot_scales,
    run_tables,
    run_text,
    training_of,
)
from claim2source.training.resume import StopSignals, skipped_steps, trainable_weights
from claim2source.training.run import TrainingRun, run_training
from claim2source.training.run_folder import RunFolder
from claim2source.training.teacher import SourceTeacher, check_strategy, run_hash
from claim2source.training.trainer import make_trainer

log = logging.getLogger(__name__)

# Bootstrap draws of the interval of a small val.
_REPEATS = 2_000


def finetune(config: FinetuneConfig) -> Report | None:
    """Fine-tune as the config says; return the report (None on later ranks).

    Raises `UserError` for anything the user can correct.
    """
    return run_training(
        config,
        lambda config, world, run, stop: Finetuning(config, world, load_data(config), run, stop),
        check_after,
    )


def _refuse_checkpoint(name: str) -> None:
    """Raise `UserError` for a base model that is a checkpoint of a run."""
    folder = checkpoint_folder(name)
    if (folder / FILE).is_file():
        raise UserError(
            f"model.name: {name} is a checkpoint of a run; train from its export "
            f"(python train/merge.py --checkpoints {name} --out DIR) or from its base "
            f"({Manifest.read(folder).base.name})"
        )


class Finetuning(TrainingRun[FinetuneConfig, TrainingData]):
    """Fine-tune a retriever."""

    def __init__(
        self,
        config: FinetuneConfig,
        world: World,
        data: TrainingData,
        run: RunFolder,
        stop: StopSignals,
    ) -> None:
        super().__init__(config, world, data, run, stop)
        model, base = config.model, run.checkpoint(0)
        if run.resumes and (base / FILE).is_file():
            # A run of version 0.1.0 did not apply the prompts that its base declares.
            template = Manifest.read(base).encoder.template
            model = replace(model, template=template, prompts=False)
        _refuse_checkpoint(model.name)
        require_held_out("model.name", [model.name], data.val, config)
        teacher = [] if config.teacher is None else [config.teacher.name]
        require_held_out("teacher.name", teacher, data.val, config)
        self.resolved = resolve(model, config.device)
        self.encoder: Encoder = self.resolved.encoder
        if self.encoder.source_encoder is not None:
            raise UserError(
                f"model.name: {config.model.name} was tuned for claims alone; train from its base"
            )
        self.untrained = self.encoder.weights or {}
        dense, self.teacher = self.encoder.dense, None
        if config.teacher is not None and dense is None:
            self.teacher = SourceTeacher(config, self.encoder)
        check_model(config, self.encoder, dense)
        longest, local = self.encoder.settings.max_length, world.local_size
        self.config, self.memory = settle_here(config, self.encoder.model, longest, local)
        self.negatives: RunNegatives = RunNegatives(
            config, data.train, run, self.store, world, data.teacher
        )
        self.query_only = config.optimisation.train == "query_only"
        # The whole model moves to the CPU while its shards are trained.
        self.prepare(self.encoder.device)
        if isinstance(self.strategy, Sharded) and config.tuning == "qlora":
            allowed = "auto or ddp with tuning: qlora: weights in 4 bits are not sharded"
            raise ConfigError("trainer.strategy", "fsdp2", allowed)
        check_strategy(config, isinstance(self.strategy, Sharded))
        on_val = config.rendering, self.store, world, self.open_logs
        self.evaluation = EvaluateOnVal(run, self.encoder, data, *on_val, untrained=self.untrained)
        # Built once more in `go`, with the run's callbacks: what Lightning refuses is said here.
        make_trainer(self.arguments | {"logger": False, "enable_progress_bar": False})

    def go(self) -> Report | None:
        """Encode what a teacher teaches, then run all steps in order."""
        if self.teacher is not None:
            start = None if self.state is not None else self.run.checkpoint(0)
            self.teacher.prepare(self.data.train, self.store, self.world, self.untrained, start)
        return super().go()

    # Set-up

    def score_base(self) -> None:
        """Write and score the checkpoint of epoch 0, the model before training."""
        val = self.data.val
        texts = self.config.rendering, val.claims, val.sources
        encode_shares(self.encoder, *texts, self.store, self.world)
        if not self.world.is_first:
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

    @cached_property
    def begun_with(self) -> dict[str, str | None]:
        """Hash data, base model and teacher."""
        distillation = self.config.losses.distillation
        teacher = distillation.scores if distillation.weight else None
        return {
            "training data": self.data.train.fingerprint,
            "val data": self.data.val.fingerprint,
            "base model": self.resolved.base.sha256,
            "teacher's run": run_hash(teacher) if teacher and teacher.exists() else None,
            **({} if self.teacher is None else {"teacher": self.teacher.sha256}),
        }

    def first_rows(self) -> list[MinedRow]:
        """Mine with the teacher or the base model, or read what was mined."""
        return self.negatives.first(self.teacher.encoder if self.teacher else self.encoder)

    def make_trainable(self, rows: list[MinedRow]) -> None:
        """Make the model trainable and tokenise the pairs; first encode what losses compare."""
        config, train = self.config, self.data.train
        base, teacher = None, self.teacher
        if teacher is not None:
            base = teacher.base
        elif config.losses.keep_base.weight or self.query_only:
            # The first process encodes; the others then read the vectors from the store.
            for turn in (True, False):
                if self.world.is_first is turn:
                    texts = config.rendering, train.claims, train.sources
                    base = BaseVectors(self.encoder, *texts, self.store, progress=turn)
                barrier(self.world)
        own = self.query_only and teacher is None
        frozen = frozen_copy(self.encoder) if own and config.tuning == "full" else None
        # All processes start with the same adapters; dropout is seeded by process in `go`.
        pl.seed_everything(config.optimisation.seed, verbose=False)
        adapt(self.encoder, config)
        self.encoder.weights = None
        if teacher is not None:
            train_projection(self.encoder)
        elif own:
            self.encoder.source_encoder = frozen or base_encoder(self.encoder, self.untrained)
        self.pairs = TrainingPairs(
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
            aligned=None if teacher is None else teacher.aligned,
        )

    def parts(self, trainer: pl.Trainer) -> tuple[RetrieverModule, ClaimSourceData]:
        """Make the module and its batches; what is sharded trains a copy of the model."""
        data = ClaimSourceData(self.pairs, self.config, self.world, trainer)
        trained = self.encoder
        if isinstance(self.strategy, Sharded):
            # What is sharded cannot be scored and saved: that is done with a whole model.
            trained = copy.copy(self.encoder)
            trained.model = copy.deepcopy(self.encoder.model)
            self.encoder.model.to("cpu")  # type: ignore[arg-type]
        module = RetrieverModule(
            trained,
            self.pairs,
            self.config.optimisation,
            self.config.losses,
            data.optimizer_steps,
            self.stop,
        )
        return module, data

    def summary(self, data: PlannedData) -> list[str]:
        """Say what is trained on, and what is left out."""
        config, train, pairs, sampler = self.config, self.data.train, self.pairs, data.sampler
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
        return lines

    def own_callbacks(self) -> Sequence[pl.Callback]:
        """List the callbacks that mine again, save and score an epoch."""
        config, world, run = self.config, self.world, self.run
        kind: Literal["full", "lora"] = "full" if config.tuning == "full" else "lora"
        base = self.resolved.folder

        def save(folder: Path, epoch: int) -> None:
            save_checkpoint(folder, self.encoder, base, self._manifest(epoch), kind)

        return [
            *([GatherWeights(self.encoder)] if isinstance(self.strategy, Sharded) else []),
            Remine(self.negatives, self.encoder, self.untrained, world),
            KeepCheckpoints(run, save, world),
            self.evaluation,
        ]

    def chosen_epoch(self) -> int:
        """Return the epoch that would be chosen now."""
        chosen, _ = choose_point(self.run, self.data, self.config)
        return chosen.epoch

    def _end(self) -> Report | None:
        """Choose a checkpoint, and report."""
        logs = self.open_logs() if self.world.is_first else None
        self.encoder.model.to(torch.device("cpu"))  # type: ignore[arg-type]
        gc.collect()
        torch.cuda.empty_cache()
        if logs is None:
            help_to_choose(self.data, self.config, self.store, self.world)
            return None
        return self._report(
            choose_checkpoint(self.run, self.data, self.config, self.store, self.world)
        )

    def _manifest(self, epoch: int) -> Manifest:
        return Manifest(
            base=self.resolved.base,
            weights=Weights(trained=self.config.optimisation.train),
            encoder=self.encoder.settings,
            rendering=self.config.rendering,
            epoch=epoch,
            data=self.data_record,
            source_model=None if self.teacher is None else self.teacher.record,
            config=as_plain(self.config),
            git=git_state(),
            versions=versions(),
        )

    # The report

    def _report(self, chosen: ChosenCheckpoint) -> Report:
        """Score epoch 0 and the chosen one from disk, write the report."""
        logs = self.open_logs()
        self.run.write(chosen.folder)
        report = build_report(
            self.run,
            chosen,
            self.data,
            self.config,
            self.store,
            skipped_steps(self.losses),
        )
        for name, table in run_tables(report).items():
            logs.table(table_key(name), table)
        if training_of(report).scales:
            logs.figure("scales_plot", plot_scales(report, self.run.path))
        logs.close()
        say(run_text(report))
        evaluated = evaluate_after(self.config, self.run.path)
        say(next_steps(self.config, chosen.folder, chosen.epoch > 0, evaluated))
        return report
