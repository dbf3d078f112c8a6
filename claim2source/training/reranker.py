"""Fine-tune a re-ranker on what a first stage finds; choose by the whole pipeline on val."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pytorch_lightning as pl
import torch

from claim2source.core.config import as_plain
from claim2source.core.errors import EXIT_CODE, ConfigError, UserError
from claim2source.core.provenance import git_state, versions
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.core.run import Result, join_results
from claim2source.core.terminal import say
from claim2source.metrics.metrics import evaluate
from claim2source.mining import MinedRow, read_mined
from claim2source.models import Weights
from claim2source.models.reranker_manifest import RerankerManifest
from claim2source.pipeline.evaluate import METRICS, Scoring, score_result
from claim2source.text.views import untranslated_sentences
from claim2source.training.batches import BatchSampler
from claim2source.training.callbacks import EvaluateEpoch, KeepCheckpoints
from claim2source.training.choose import ValScores, choose_point
from claim2source.training.data import TrainingData, load_splits, why_too_small
from claim2source.training.distributed import Sharded, World, gather_values
from claim2source.training.held_out import require_held_out
from claim2source.training.loggers import RunLog
from claim2source.training.module import PlannedData, is_overfitting
from claim2source.training.reranker_config import TAUGHT, RerankerConfig
from claim2source.training.reranker_data import FirstStage, RerankerPairs, RunCandidates
from claim2source.training.reranker_models import TrainedReranker, load_to_train
from claim2source.training.reranker_module import COLLAPSED, RerankerModule, are_alike
from claim2source.training.reranker_report import log_report, report_pipeline
from claim2source.training.resume import StopSignals, skipped_steps, trainable_weights
from claim2source.training.run import TrainingRun, run_training
from claim2source.training.run_folder import RunFolder
from claim2source.training.teacher import Teacher, run_hash, teacher_of
from claim2source.training.trainer import make_trainer

log = logging.getLogger(__name__)

TRAIN, VAL, REPORTED = "train", "val", "reported"


def finetune_reranker(config: RerankerConfig) -> Report | None:
    """Fine-tune as the config says; return the report (None on later ranks).

    Raises `UserError` for anything the user can correct.
    """

    def make(
        config: RerankerConfig, world: World, run: RunFolder, stop: StopSignals
    ) -> RerankerTraining:
        return RerankerTraining(config, world, load_reranker_data(config), run, stop)

    return run_training(config, make, lambda config: None)


def load_reranker_data(config: RerankerConfig) -> TrainingData:
    """Load the splits and the teacher's scores.

    Raises `InputError` for a teacher's run or mined negatives that do not fit the claims.
    """

    def check(train: Dataset) -> None:
        # A resumed run has its own copy.
        if config.mined is not None and not config.resume:
            read_mined(config.mined, train)

    data = load_splits(config, check)
    teacher: Teacher | None = None
    if config.loss.kind in TAUGHT:
        assert config.loss.scores is not None
        teacher = teacher_of(config.loss.scores, data.train, None, "loss.scores")
    return replace(data, teacher=teacher)


class PipelineOnVal(EvaluateEpoch):
    """Score the first stage, re-ranked, on val; every process re-ranks a share of the claims.

    `first` is the first stage's result on val, once it is known. Raises `UserError` where the
    re-ranker has collapsed.
    """

    manifest = RerankerManifest

    def __init__(
        self,
        run: RunFolder,
        world: World,
        logs: Callable[[], RunLog],
        reranker: TrainedReranker,
        data: TrainingData,
        config: RerankerConfig,
    ) -> None:
        super().__init__(run, world, logs)
        self.reranker, self.data, self.config = reranker, data, config
        self.first: Result | None = None
        self.result: Result | None = None

    def share(self, epoch: int) -> None:
        """Re-rank this process's share of val's claims with the weights as they are."""
        assert self.first is not None
        val, world = self.data.val, self.world
        mine = val.claims[world.rank :: world.size]
        part = self.first.run.restricted([claim.id for claim in mine])
        model = self.reranker.model
        training = model.training
        model.eval()
        found = self.reranker.stage(self.config.first.depth).apply(mine, val.sources, part)
        model.train(training)
        self.result = join_results(gather_values(found, world), val.claims)
        if epoch and self._has_collapsed():
            if not world.is_first:
                raise SystemExit(EXIT_CODE)
            raise UserError(COLLAPSED.format(where=f"on val, after epoch {epoch}"))

    def _has_collapsed(self) -> bool:
        """Tell whether no claim of val has sources with different scores."""
        assert self.result is not None
        run, depth = self.result.run, self.config.first.depth
        # Scores that are no numbers rank nothing either.
        failed = {failure.claim_id for failure in self.result.failures}
        ranked = {one.id: list(run.scored(one.id).values())[:depth] for one in self.data.val.claims}
        several = {claim: torch.tensor(row) for claim, row in ranked.items() if len(row) > 1}
        alike = (claim in failed or are_alike(row) for claim, row in several.items())
        return bool(several) and all(alike)

    def forget(self) -> None:
        """Drop the ranking."""
        self.result = None

    def scored(self) -> ValScores:
        """Score what was re-ranked."""
        assert self.result is not None
        return pipeline_scores(self.result, self.data, self.config)


def pipeline_scores(result: Result, data: TrainingData, config: RerankerConfig) -> ValScores:
    """Score a ranking of val; what is chosen by is `choose_by`."""
    one = score_result("val", result, data.val, Scoring(METRICS, 0, 0, data.seen_golds))
    ids, metric = data.weighing.claim_ids, config.choose_by
    values = evaluate(result.run, data.val.qrels, [metric], ids)[metric]
    # Without claims of seen papers there are no parts to tell apart.
    parts = one.report.slices if all(one.report.slices.values()) else {}
    by_claim = dict(zip(ids, values.tolist(), strict=True))
    return ValScores(one.report.table, parts, data.weighing.score(values), by_claim)


class RerankerTraining(TrainingRun[RerankerConfig, TrainingData]):
    """Fine-tune a re-ranker."""

    def __init__(
        self,
        config: RerankerConfig,
        world: World,
        data: TrainingData,
        run: RunFolder,
        stop: StopSignals,
    ) -> None:
        super().__init__(config, world, data, run, stop)
        self.first = FirstStage(config)
        require_held_out("model.name", [config.model.name], data.val, config)
        key = "first.system" if config.first.checkpoint is None else "first.checkpoint"
        require_held_out(key, self.first.models, data.val, config)
        self.reranker = load_to_train(config)
        if missing := self.reranker.too_long(config.rendering.claim_texts(data.train.claims)):
            allowed = f"more: {missing} claims of train leave no room for a source"
            raise ConfigError("model.max_length", config.model.max_length, allowed)
        self.negatives: RunCandidates = RunCandidates(config, data.train, run, world)
        self.prepare(self.reranker.device)
        if isinstance(self.strategy, Sharded):
            raise ConfigError("trainer.strategy", "fsdp2", "auto or ddp for a re-ranker")
        self.evaluation = PipelineOnVal(run, world, self.open_logs, self.reranker, data, config)
        # Built once more in `go`, with the run's callbacks: what Lightning refuses is said here.
        make_trainer(self.arguments | {"logger": False, "enable_progress_bar": False})
        # Also found before anything is written: a run's file that does not fit.
        splits = {TRAIN: data.train, VAL: data.val, REPORTED: data.report}
        self.rankings = self.first.rank(splits, data.report, self.store) if world.is_first else {}

    @cached_property
    def begun_with(self) -> dict[str, str | None]:
        """Hash data, base model, first stage and teacher."""
        scores = self.config.loss.scores
        return {
            "training data": self.data.train.fingerprint,
            "val data": self.data.val.fingerprint,
            "base model": self.reranker.base.sha256,
            "first stage": self.first.hash(),
            "teacher's run": None if scores is None else run_hash(scores),
        }

    def go(self) -> Report | None:
        """Run all steps in order."""
        self.evaluation.first = gather_values(self.rankings.get(VAL), self.world)[0]
        return super().go()

    def score_base(self) -> None:
        """Write and score the checkpoint of epoch 0, the re-ranker before training."""
        self.evaluation.share(0)
        if not self.world.is_first:
            return
        folder = self.run.checkpoint(0)
        self._save(folder, 0)
        scores = self.evaluation.scored()
        manifest = RerankerManifest.read(folder)
        replace(manifest, scores=scores.by_split()).write(folder)
        self.run.record(scores.epoch(0, None))
        say(f"before training: val MRR@5  {scores}")
        small = why_too_small(self.data.val)
        if small and self.config.chooses:
            log.warning("%s", small)

    def first_rows(self) -> list[MinedRow]:
        """Take negatives from the first stage, or read what was mined."""
        ranking = self.rankings.get(TRAIN)
        return self.negatives.first(None if ranking is None else ranking.run)

    def make_trainable(self, rows: list[MinedRow]) -> None:
        """Make the model trainable, and the groups of these rows."""
        config, teacher = self.config, self.data.teacher
        self.pairs = RerankerPairs(
            self.data.train,
            rows,
            config.rendering,
            config.candidates,
            None if teacher is None else teacher.scores,
        )
        if not self.pairs.rows:
            raise UserError(f"{self.negatives.current}: no pair has a negative to learn from")
        # All processes start with the same adapters; dropout is seeded by process in `go`.
        pl.seed_everything(config.optimisation.seed, verbose=False)
        self.reranker.adapt()

    def parts(self, trainer: pl.Trainer) -> tuple[RerankerModule, PlannedData]:
        """Make the module and its batches."""
        config, world = self.config, self.world
        optimisation = config.optimisation
        sampler = BatchSampler(
            self.pairs.groups(),
            optimisation.batch_size,
            epochs=optimisation.epochs,
            accumulation=optimisation.accumulation,
            seed=optimisation.seed,
            rank=world.rank,
            world_size=world.size,
            gather=False,
            languages=self.pairs.languages,
            repeat=config.data.repeat,
            fixed=is_overfitting(trainer),
        )
        data = PlannedData(sampler, trainer)
        steps = data.optimizer_steps
        return RerankerModule(self.reranker, self.pairs, config, steps, self.stop), data

    def summary(self, data: PlannedData) -> list[str]:
        """Say what is trained on, and what is left out."""
        config, pairs = self.config, self.pairs
        trained = sum(p.numel() for p in trainable_weights(self.reranker.model).values())
        lines = [
            *untranslated_sentences(self.data.train.claims, config.rendering.claims),
            *self.negatives.sentences,
            f"{len(pairs.rows)} claims with a gold in {data.sampler.batches} batches an epoch, "
            f"{data.optimizer_steps} optimizer steps; {trained:,} of "
            f"{self.reranker.parameters:,} weights are trained",
        ]
        if config.data.limit is not None:
            lines.append(f"data.limit: only {len(self.data.train.claims)} claims are trained on")
        if pairs.untaught:
            lines.append(
                f"{pairs.untaught} pairs are left out: fewer than two candidates to compare"
            )
        if self.data.teacher is not None:
            lines += self.data.teacher.sentences()
        return lines

    def own_callbacks(self) -> Sequence[pl.Callback]:
        """List the callbacks that save and score an epoch."""
        return [KeepCheckpoints(self.run, self._save, self.world), self.evaluation]

    def chosen_epoch(self) -> int:
        """Return the epoch that would be chosen now."""
        chosen, _ = choose_point(self.run, self.data, self.config)
        return chosen.epoch

    def _save(self, folder: Path, epoch: int) -> None:
        self.reranker.save(folder, self._manifest(epoch), base=epoch == 0)

    def _manifest(self, epoch: int) -> RerankerManifest:
        return RerankerManifest(
            base=self.reranker.base,
            weights=Weights(),
            reranker=self.reranker.settings,
            rendering=self.config.rendering,
            depth=self.config.first.depth,
            epoch=epoch,
            data=self.data_record,
            config=as_plain(self.config),
            git=git_state(),
            versions=versions(),
        )

    def _end(self) -> Report | None:
        """Choose a checkpoint; report the first stage, the re-ranker as it was, and as chosen."""
        if not self.world.is_first:
            return None
        logs = self.open_logs()
        self.reranker.model.to(torch.device("cpu"))
        gc.collect()
        torch.cuda.empty_cache()
        point, choice = choose_point(self.run, self.data, self.config)
        folder = self.run.checkpoint(point.epoch)
        self.run.write(folder)
        choice = replace(choice, metric=self.config.choose_by)
        choice = replace(choice, tried=tuple(replace(one, scores={}) for one in choice.tried))
        val = pipeline_scores(self.rankings[VAL], self.data, self.config)
        found = report_pipeline(
            self.run,
            self.config,
            self.data,
            first=(self.first.name, self.rankings[REPORTED], val),
            chosen=(point.epoch, choice),
            store=self.store,
            skipped=skipped_steps(self.losses),
        )
        log_report(found, self.config, logs)
        logs.close()
        return found
